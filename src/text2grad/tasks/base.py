"""What a task is: prompts with reference answers, its critic's prompt, and a measure that needs no
model."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import isclose
from typing import Any, Literal, Protocol, cast

from pydantic import Field, field_validator

from text2grad.errors import UserError, warn_once
from text2grad.feedback import Environment, Example, Feedback, Preference, conversation_text
from text2grad.named import call_user_code, is_import_path, load_named, refuse_result
from text2grad.settings import Settings
from text2grad.tasks.prompt_files import prompt_version as prompt_version
from text2grad.tasks.prompt_files import read_prompt as read_prompt
from text2grad.unicode_words import RougeWords, beyond_rouge

Split = Literal["sft", "reward", "train", "heldout"]
ROUGE_TYPES = {"rouge1": "rouge1", "rouge2": "rouge2", "rouge_l": "rougeL"}
SHARES: tuple[Split, ...] = ("sft", "reward", "train")
"""The splits that `task.split` gives the shares of, in its order."""

TASKS = {
    "code": "text2grad.tasks.code:CodeTask",
    "demo": "text2grad.tasks.demo:DemoTask",
    "function_summaries": "text2grad.tasks.function_summaries:FunctionSummariesTask",
    "qa": "text2grad.tasks.qa:QATask",
    "summarization": "text2grad.tasks.summarization:SummarizationTask",
}
"""The tasks of the package by name, each as `module:Class`."""


class TaskSettings(Settings):
    """Which task, and which data."""

    name: str = Field(description=f"{', '.join(TASKS)}, or a plug-in as module:Class")
    data: str = Field(
        default="",
        description="file of a published shape, or a hub name; empty: the task's default; imported: the prompts of"
        " imported feedback",
    )
    limit: int | None = Field(default=None, ge=1, description="maximum of records read; null: all")
    context_characters: int | None = Field(
        default=None, ge=0, description="maximum of the passages shown; null: all"
    )
    heldout_data: str = Field(
        default="",
        description="file of the questions to measure on; empty: the validation or test split that a hub data set"
        " comes with, else heldout_share",
    )
    heldout_share: float = Field(
        default=0.2, ge=0.0, lt=1.0, description="share of the questions held out from all training"
    )
    split: tuple[float, float, float] | None = Field(
        default=None,
        description="shares of the training questions for SFT, reward model and policy, no question in two of them,"
        " e.g. [0.3, 0.5, 0.2] (paper, UltraFeedback); null: every stage takes all",
    )
    seed: int = Field(default=0, description="of the split")

    @field_validator("split")
    @classmethod
    def _whole(cls, shares: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        if shares is not None and (min(shares) < 0 or not isclose(sum(shares), 1)):
            raise ValueError("three shares that add up to 1, e.g. [0.3, 0.5, 0.2]")
        return shares


class Task(Protocol):
    """Prompts to train on and to be judged on. A plug-in is a class called with its `TaskSettings`.

    A task may have a `tiny_model: TinyShape`, the shape of a model made from scratch for it.

    A task of several turns has a method `environment()` too, which makes the `Environment` of one
    episode; a response to one of its prompts is then a `Transcript`.
    """

    name: str
    critic_prompt: str
    """Stem of the annotator's prompt file in tasks/prompts."""

    def examples(self, split: Split) -> list[Example]:
        """The prompts of one split: `sft` with what the policy first imitates in `reference`,
        `train` for feedback and policy optimisation (they may be the same prompts), `heldout` to
        measure on. No question of `heldout` is in the others. `reward` is asked for only where
        `task.split` is set: then it is for feedback, `train` for policy optimisation, and no
        question is in two of them.
        """
        ...

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """How good a response is, by a measure that needs no model; each in [0, 1], higher is
        better."""
        ...


def load_task(settings: TaskSettings) -> Task:
    """Load a task.

    Args:
        settings: `name` is one of `TASKS`, or a class of your own as `module:Class`.

    Returns:
        The task.

    Raises:
        UserError: the task, module or class does not exist, or the class is not a task.
    """
    target = TASKS.get(settings.name, settings.name)
    if not is_import_path(target):
        near = difflib.get_close_matches(settings.name.lower(), TASKS, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown task {settings.name!r}{hint}", f"one of {', '.join(TASKS)}, or module:Class")
    made = load_named("task", settings.name, target)
    task = call_user_code("it is called with the TaskSettings", made, settings)
    return cast(Task, _OwnTask(task) if target == settings.name else task)


class _OwnTask:
    """A task of the user's own: whatever it raises or returns in another shape is one line."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def examples(self, split: Split) -> list[Example]:
        expects = "examples(split) returns a list of text2grad.Example"
        examples = call_user_code(expects, self.task.examples, split)
        if not isinstance(examples, list) or not all(isinstance(example, Example) for example in examples):
            refuse_result(expects, self.task, "examples", examples)
        return examples

    def scores(self, example: Example, response: str) -> dict[str, float]:
        expects = "scores(example, response) returns numbers from 0 to 1 by name"
        scores = call_user_code(expects, self.task.scores, example, response)
        if not isinstance(scores, dict):
            refuse_result(expects, self.task, "scores", scores)
        return scores


def environment_of(task: Task) -> Callable[[], Environment] | None:
    """What makes the environment of an episode, where the task has one."""
    found: Callable[[], Environment] | None = getattr(task, "environment", None)
    return found


def split_of(question: str, settings: TaskSettings) -> Literal["train", "heldout"]:
    """Which split a question belongs to: decided by its words alone.

    Equal questions (but for case and white space) always fall together, whatever record they stand
    in and however many records are read, so that nothing learnt in training is measured as new.
    """
    share = int.from_bytes(digest(f"{settings.seed}\n{words_of(question)}")[:8], "big") / 2**64
    return "heldout" if share < settings.heldout_share else "train"


def digest(text: str) -> bytes:
    """32 bytes that look random and are the same on every machine; what splits and orders go by."""
    return hashlib.sha256(text.encode()).digest()


def words_of(question: str) -> str:
    """A question by its words alone: case and white space do not count."""
    return " ".join(question.casefold().split())


def in_split(
    examples: Iterable[Example], split: Split, settings: TaskSettings, heldout: Sequence[Example] | None = None
) -> list[Example]:
    """The examples of one split, by `question_of`. `heldout`: those of a data set that comes with
    some; None: a share of the questions is held out (`split_of`).

    Without `task.split`, the training splits are the same examples.
    """
    asked = [(words_of(question_of(example)), example) for example in examples]
    if heldout is None:
        out = {words for words, _ in asked if split_of(words, settings) == "heldout"}
    elif split == "heldout":
        return list(heldout)
    else:
        out = {words_of(question_of(example)) for example in heldout}
    chosen = out if split == "heldout" else {words for words, _ in asked} - out
    if settings.split is not None and split != "heldout":
        chosen = _share(chosen, split, settings)
    return [example for words, example in asked if words in chosen]


def _share(questions: set[str], split: Split, settings: TaskSettings) -> set[str]:
    """The questions of one share of `task.split`: a slice of all of them in the order of a hash."""
    ordered = sorted(questions, key=lambda question: digest(f"share {settings.seed}\n{question}"))
    place = SHARES.index(split)
    start, end = (round(len(ordered) * sum((settings.split or ())[:count])) for count in (place, place + 1))
    return set(ordered[start:end])


def feedback_split(settings: TaskSettings) -> Split:
    """The split whose answers are judged, for the reward model to learn from."""
    return "train" if settings.split is None else "reward"


def refuse_shares(settings: TaskSettings) -> None:
    """For tasks that have splits of their own.

    Raises:
        UserError: `task.split` or `task.heldout_data` is set.
    """
    if settings.split is not None or settings.heldout_data:
        raise UserError(
            f"task {settings.name!r} has splits of its own",
            "leave out task.split and task.heldout_data; of a preset: --task.split null --task.heldout_data ''",
        )


def question_of(example: Example | Feedback | Preference) -> str:
    """The words that tell one question from another: `meta["question"]` where given, else the
    prompt."""
    return str(example.meta.get("question") or conversation_text(example.prompt))


def rouge_l_scores(reference: str, response: str) -> dict[str, float]:
    """Those of `rouge_scores` that are of the longest common subsequence."""
    found = rouge_scores(reference, response)
    return {name: value for name, value in found.items() if name.startswith("rouge_l")}


def rouge_scores(reference: str, response: str, stemmer: bool = True) -> dict[str, float]:
    """ROUGE-1, 2 and L, F1 in [0, 1]; 0 where either text is empty.

    Returns:
        `rouge1`, `rouge2` and `rouge_l` as published: of words of a to z and 0 to 9. Where the
        reference has other words also `rouge1_unicode`, `rouge2_unicode` and `rouge_l_unicode`, of
        the words of all scripts (`unicode_words`); of a text of English words these would be the
        same.
    """
    published = _rouge_scorer(stemmer).score(reference, response)
    found = {name: published[theirs].fmeasure for name, theirs in ROUGE_TYPES.items()}
    if beyond_rouge(reference):
        warn_once("ROUGE as published counts words of a to z and 0 to 9 alone: see rouge_l_unicode for all words")
        read = _rouge_scorer(stemmer, RougeWords).score(reference, response)
        found |= {f"{name}_unicode": read[theirs].fmeasure for name, theirs in ROUGE_TYPES.items()}
    return found


@cache
def _rouge_scorer(stemmer: bool, words: type[RougeWords] | None = None) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    reader = words(stemmer) if words else None
    return RougeScorer(list(ROUGE_TYPES.values()), use_stemmer=stemmer, tokenizer=reader)
