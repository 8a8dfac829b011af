"""Summarise functions: from name, signature and docstring to the docstring's first line.

The data are the installed Python packages: no download, real text, many authors. `task.data` names
another folder of packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from text2grad.data.published import single_turn_example
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.settings import TinyShape
from text2grad.tasks.base import Split, TaskSettings, assign_split, digest, refuse_split_settings, rouge_scores
from text2grad.tasks.library import DocumentedFunction, documented_functions, installed_functions, words

CONTEXT_CHARACTERS = 600
"""Default of `task.context_characters`: docstring characters shown after the first line."""
INSTRUCTION = "Write the first line of this Python function's docstring: one sentence that says what it does."
TRAIN_SHARE = 0.2
SHINGLE_WORDS, MAX_SHARED = 4, 0.5


class FunctionSummariesTask:
    """Summarise functions; whole packages are held out, without near-duplicates of training data.

    Of the functions of the other packages, `TRAIN_SHARE` are for `train` and the others for `sft`,
    so the policy is optimised on prompts that it has not imitated.

    Raises:
        UserError: no documented functions, or all of them in one split.
    """

    name = "function_summaries"
    critic_prompt = "summarization"
    tiny_model = TinyShape(layers=3, phrases=False)  # prose: a quote begins at any word

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        functions = list(documented_functions([Path(settings.data)])) if settings.data else installed_functions()
        self.splits = split_functions(functions, settings)
        if not self.splits["sft"] or not self.splits["heldout"]:
            raise UserError(
                f"too few packages with documented functions in {settings.data or 'the installed packages'}",
                "set task.data to a folder of several Python packages, or change task.seed",
            )
        self._limit = settings.limit
        self._context = settings.context_characters

    def examples(self, split: Split) -> list[Example]:
        """Return the functions of a split, with packages mixed; `task.limit` applies to `sft`."""
        functions = self.splits[split][: self._limit if split == "sft" else None]
        return [self.prompt(function, self._context) for function in functions]

    def prompt(self, function: DocumentedFunction, context: int | None) -> Example:
        """Make the example of a function, with its summary as the reference.

        `context` is the number of docstring characters to show after the first line; None:
        `CONTEXT_CHARACTERS`.
        """
        body = shorten(function.body, CONTEXT_CHARACTERS if context is None else context)
        content = f"{INSTRUCTION}\n\ndef {function.name}{function.signature}:\n{body}"
        return single_turn_example(function.place, content, function.summary, {"package": function.package})

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return ROUGE-1, 2 and L (F1, with stemming) and BLEU against the original first line."""
        return {
            **rouge_scores(example.reference, response),
            "bleu": sentence_bleu(example.reference, response),
        }


def split_functions(
    functions: Sequence[DocumentedFunction], settings: TaskSettings
) -> dict[Split, list[DocumentedFunction]]:
    """Split functions: `heldout` by top-level package, `sft` and `train` by function.

    No summary is in two splits. A held-out function is dropped if half of its four-word sequences
    occur in the training data: vendored copies of a library, or boilerplate.
    """
    distinct: dict[tuple[str, ...], DocumentedFunction] = {}
    for function in functions:
        distinct.setdefault(tuple(words(function.summary)), function)
    ordered = sorted(distinct.values(), key=lambda function: digest(f"{settings.seed}\n{function.place}"))
    training = [function for function in ordered if assign_split(function.package, settings) == "train"]
    training_shingles = {shingle for function in training for shingle in _shingles(function)}
    heldout = []
    for function in ordered:
        if assign_split(function.package, settings) == "heldout":
            shingles = _shingles(function)
            if len(shingles & training_shingles) / len(shingles) < MAX_SHARED:
                heldout.append(function)
    count = round(TRAIN_SHARE * len(training))
    return {"train": training[:count], "sft": training[count:], "heldout": heldout}


def _shingles(function: DocumentedFunction) -> set[tuple[str, ...]]:
    text = words(f"{function.summary} {function.body}")
    return {tuple(text[start : start + SHINGLE_WORDS]) for start in range(len(text) - SHINGLE_WORDS + 1)}


def shorten(text: str, limit: int) -> str:
    """Return the text up to the last whole word within `limit` characters."""
    return text if len(text) <= limit else text[: limit + 1].rpartition(" ")[0]


def sentence_bleu(reference: str, response: str) -> float:
    """Return BLEU-4 of one sentence on ROUGE's words.

    Counts of n-grams above one word are smoothed by adding one (Lin and Och 2004).
    """
    from nltk.translate import bleu_score

    expected, actual = words(reference), words(response)
    if not set(expected) & set(actual):
        return 0.0
    smoothing = bleu_score.SmoothingFunction().method2
    return float(bleu_score.sentence_bleu([expected], actual, smoothing_function=smoothing))
