"""Tasks: prompts with reference answers, a critic's prompt, and a metric that needs no model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import isclose
from typing import Any, Literal, Protocol, cast

from pydantic import Field, field_validator

from text2grad.errors import UserError, suggestion, warn_once
from text2grad.feedback import Environment, Example, Feedback, Preference, conversation_text
from text2grad.named import call_user_code, is_import_path, load_named, refuse_result
from text2grad.settings import Settings
from text2grad.tasks.prompt_files import prompt_version as prompt_version
from text2grad.tasks.prompt_files import read_prompt as read_prompt
from text2grad.unicode_words import RougeWords, beyond_rouge

Split = Literal["sft", "reward", "train", "heldout"]
ROUGE_TYPES = {"rouge1": "rouge1", "rouge2": "rouge2", "rouge_l": "rougeL"}
SHARES: tuple[Split, ...] = ("sft", "reward", "train")
"""The splits whose shares `task.split` sets, in its order."""

TASKS = {
    "code": "text2grad.tasks.code:CodeTask",
    "demo": "text2grad.tasks.demo:DemoTask",
    "function_summaries": "text2grad.tasks.function_summaries:FunctionSummariesTask",
    "qa": "text2grad.tasks.qa:QATask",
    "summarization": "text2grad.tasks.summarization:SummarizationTask",
}
"""Built-in tasks by name, as `module:Class`."""


class TaskSettings(Settings):
    """The task and its data."""

    name: str = Field(description=f"{', '.join(TASKS)}, or a plug-in as module:Class")
    data: str = Field(
        default="",
        description="data file in a published format, or a hub name; empty: the task's default; imported: the"
        " prompts of imported feedback",
    )
    limit: int | None = Field(default=None, ge=1, description="maximum number of records to read; null: all")
    context_characters: int | None = Field(
        default=None, ge=0, description="maximum length of the passages in a prompt, in characters; null: all"
    )
    heldout_data: str = Field(
        default="",
        description="file of held-out questions to evaluate on; empty: the validation or test split of a hub data"
        " set, or else heldout_share",
    )
    heldout_share: float = Field(
        default=0.2, ge=0.0, lt=1.0, description="share of the questions held out from all training"
    )
    split: tuple[float, float, float] | None = Field(
        default=None,
        description="disjoint shares of the training questions for SFT, reward model and policy, e.g."
        " [0.3, 0.5, 0.2] (paper, UltraFeedback); null: every stage uses all",
    )
    seed: int = Field(default=0, description="seed of the split")

    @field_validator("split")
    @classmethod
    def _check_shares(cls, shares: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        if shares is not None and (min(shares) < 0 or not isclose(sum(shares), 1)):
            raise ValueError("three shares that add up to 1, e.g. [0.3, 0.5, 0.2]")
        return shares


class Task(Protocol):
    """Prompts to train and evaluate on. A plug-in is a class called with its `TaskSettings`.

    Optional members: `tiny_model: TinyShape`, the shape of a model made from scratch for the task;
    and, for a task of several turns, a method `environment()` that makes the `Environment` of one
    episode. The responses of such a task are `Transcript`s.
    """

    name: str
    critic_prompt: str
    """Stem of the critic's prompt file in tasks/prompts."""

    def examples(self, split: Split) -> list[Example]:
        """Return the examples of one split; `heldout` shares no question with the others.

        `sft`: `reference` is the answer to imitate. `train`: for feedback and policy optimisation;
        its prompts may be those of `sft`. `heldout`: for evaluation. `reward`: only requested if
        `task.split` is set; then it is for feedback, `train` for policy optimisation, and all
        splits are disjoint.
        """
        ...

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Score a response without a model; values are in [0, 1], higher is better."""
        ...


def load_task(settings: TaskSettings) -> Task:
    """Load a task: one of `TASKS`, or a user-defined class (`module:Class`).

    Args:
        settings: the name of the task, and which data it uses.

    Returns:
        The task.

    Raises:
        UserError: the task, module or class does not exist, or the class is not a task.
    """
    target = TASKS.get(settings.name, settings.name)
    if not is_import_path(target):
        cure = suggestion(settings.name.lower(), TASKS, f"one of {', '.join(TASKS)}, or module:Class")
        raise UserError(f"unknown task {settings.name!r}", cure)
    task_class = load_named("task", settings.name, target)
    task = call_user_code("it is called with the TaskSettings", task_class, settings)
    return cast(Task, _UserTask(task) if target == settings.name else task)


class _UserTask:
    """A user-defined task, whose exceptions and malformed results become one-line errors."""

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


def get_environment_factory(task: Task) -> Callable[[], Environment] | None:
    """Return the method that makes the environment of an episode; None for single-turn tasks."""
    factory: Callable[[], Environment] | None = getattr(task, "environment", None)
    return factory


def assign_split(question: str, settings: TaskSettings) -> Literal["train", "heldout"]:
    """Assign a question to a split by a hash of its words.

    Questions that differ only in case and whitespace get the same split, in any record and for any
    `task.limit`, so that no training question is evaluated as new.
    """
    share = int.from_bytes(digest(f"{settings.seed}\n{_normalise(question)}")[:8], "big") / 2**64
    return "heldout" if share < settings.heldout_share else "train"


def digest(text: str) -> bytes:
    """Return 32 pseudo-random bytes, equal on every machine; splits and orders derive from them."""
    return hashlib.sha256(text.encode()).digest()


def select_split(
    examples: Iterable[Example], split: Split, settings: TaskSettings, heldout: Sequence[Example] | None = None
) -> list[Example]:
    """Return the examples of one split.

    Without `task.split`, all training splits are the same examples.

    Args:
        examples: all examples, without a data set's own held-out examples.
        heldout: the held-out examples of the data set; None: hold out a share of the questions
            (`assign_split`).
    """
    by_question = [(question_key(example), example) for example in examples]
    if heldout is None:
        held_out = {question for question, _ in by_question if assign_split(question, settings) == "heldout"}
    elif split == "heldout":
        return list(heldout)
    else:
        held_out = {question_key(example) for example in heldout}
    selected = held_out if split == "heldout" else {question for question, _ in by_question} - held_out
    if settings.split is not None and split != "heldout":
        # A share is a slice of all training questions in hash order.
        ordered = sorted(selected, key=lambda question: digest(f"share {settings.seed}\n{question}"))
        index = SHARES.index(split)
        start, end = (round(len(ordered) * sum(settings.split[:count])) for count in (index, index + 1))
        selected = set(ordered[start:end])
    return [example for question, example in by_question if question in selected]


def feedback_split(settings: TaskSettings) -> Split:
    """Return the split whose answers are judged to train the reward model."""
    return "train" if settings.split is None else "reward"


def refuse_split_settings(settings: TaskSettings) -> None:
    """Raise a `UserError` for `task.split` and `task.heldout_data` if the splits are predefined."""
    if settings.split is not None or settings.heldout_data:
        raise UserError(
            f"task {settings.name!r} has predefined splits",
            "unset task.split and task.heldout_data: --task.split null --task.heldout_data ''",
        )


def question_text(example: Example | Feedback | Preference) -> str:
    """Return the text that identifies a question: `meta["question"]`, or else the prompt."""
    return str(example.meta.get("question") or conversation_text(example.prompt))


def question_key(example: Example | Feedback | Preference) -> str:
    """Return the question of an example in lower case and with single spaces, for comparison."""
    return _normalise(question_text(example))


def _normalise(question: str) -> str:
    return " ".join(question.casefold().split())


def rouge_l_scores(reference: str, response: str) -> dict[str, float]:
    """Return the ROUGE-L entries of `rouge_scores`."""
    scores = rouge_scores(reference, response)
    return {name: value for name, value in scores.items() if name.startswith("rouge_l")}


def rouge_scores(reference: str, response: str, stemmer: bool = True) -> dict[str, float]:
    """Return the F1 of ROUGE-1, 2 and L, in [0, 1]; 0 if either text is empty.

    `rouge1`, `rouge2` and `rouge_l` are as published: words of a to z and 0 to 9. If the reference
    has other words, `rouge1_unicode`, `rouge2_unicode` and `rouge_l_unicode` count the words of all
    scripts (`unicode_words`); on English words the two agree.
    """
    published = _rouge_scorer(stemmer).score(reference, response)
    scores = {name: published[rouge_type].fmeasure for name, rouge_type in ROUGE_TYPES.items()}
    if beyond_rouge(reference):
        warn_once("published ROUGE only counts words of a to z and 0 to 9; rouge_l_unicode counts all words")
        unicode = _rouge_scorer(stemmer, RougeWords).score(reference, response)
        scores |= {f"{name}_unicode": unicode[rouge_type].fmeasure for name, rouge_type in ROUGE_TYPES.items()}
    return scores


@cache
def _rouge_scorer(stemmer: bool, words: type[RougeWords] | None = None) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    tokenizer = words(stemmer) if words else None
    return RougeScorer(list(ROUGE_TYPES.values()), use_stemmer=stemmer, tokenizer=tokenizer)
