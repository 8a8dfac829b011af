"""One-line summaries of functions: from name, signature and long docstring to the docstring's first
line.

The data is whatever Python finds installed: no download, real text, written by many people.
`task.data` names a folder of packages to read instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from text2grad.data.published import single_turn_example
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.settings import TinyShape
from text2grad.tasks.base import Split, TaskSettings, digest, refuse_shares, rouge_scores, split_of
from text2grad.tasks.library import DocumentedFunction, documented_functions, installed_functions, words

REST = 600
"""Characters of the docstring after its first line that a prompt shows, unless
`task.context_characters` is set."""
ASKED = "Write the first line of this Python function's docstring: one sentence that says what it does."
TRAIN_SHARE = 0.2
SHINGLE, MOST_SHARED = 4, 0.5


class FunctionSummariesTask:
    """Functions of packages the policy has never seen are held out; near-duplicates of anything
    trained on are not.

    Of the functions of the other packages a share (`TRAIN_SHARE`) are the prompts of `train`, the
    rest is `sft`: the policy is optimised on prompts that it has not imitated.

    Raises:
        UserError: no documented functions are found, or all of them fall on one side of the split.
    """

    name = "function_summaries"
    critic_prompt = "summarization"
    tiny_model = TinyShape(layers=3, phrases=False)  # prose: a quote begins at any word

    def __init__(self, settings: TaskSettings) -> None:
        refuse_shares(settings)
        found = list(documented_functions([Path(settings.data)])) if settings.data else installed_functions()
        self.splits = split_functions(found, settings)
        if not self.splits["sft"] or not self.splits["heldout"]:
            raise UserError(
                f"too few packages with documented functions in {settings.data or 'what is installed'}",
                "set task.data to a folder of several Python packages, or change task.seed",
            )
        self._limit = settings.limit
        self._room = settings.context_characters

    def examples(self, split: Split) -> list[Example]:
        """The functions of a split in an order that mixes packages; `task.limit` is of the `sft`
        split."""
        chosen = self.splits[split][: self._limit if split == "sft" else None]
        return [self.prompt(function, self._room) for function in chosen]

    def prompt(self, function: DocumentedFunction, room: int | None) -> Example:
        """Return the function as written, with the request, and its summary as the reference.

        Args:
            function: a documented function.
            room: characters of the docstring to show after its first line; None: `REST`.
        """
        rest = shorten(function.rest, REST if room is None else room)
        content = f"{ASKED}\n\ndef {function.name}{function.signature}:\n{rest}"
        return single_turn_example(function.place, content, function.summary, {"package": function.package})

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """ROUGE-1, ROUGE-2, ROUGE-L (F1, with stemming) and BLEU against the first line people
        wrote."""
        found = rouge_scores(example.reference, response)
        return {**found, "bleu": sentence_bleu(example.reference, response)}


def split_functions(
    found: Sequence[DocumentedFunction], settings: TaskSettings
) -> dict[Split, list[DocumentedFunction]]:
    """`heldout` by top-level package, `sft` and `train` by function; no summary is in two of the
    splits.

    A held-out function is left out if half of its four-word sequences occur in the training data:
    copies of one library in another, and texts that are written alike.
    """
    ordered = sorted(without_repeats(found), key=lambda each: digest(f"{settings.seed}\n{each.place}"))
    outside = [each for each in ordered if split_of(each.package, settings) == "heldout"]
    inside = [each for each in ordered if split_of(each.package, settings) == "train"]
    shingles = {shingle for each in inside for shingle in _shingles(each)}
    heldout = [each for each in outside if _shared(_shingles(each), shingles) < MOST_SHARED]
    count = round(TRAIN_SHARE * len(inside))
    return {"train": inside[:count], "sft": inside[count:], "heldout": heldout}


def without_repeats(found: Sequence[DocumentedFunction]) -> list[DocumentedFunction]:
    """The first function with each summary."""
    kept: dict[tuple[str, ...], DocumentedFunction] = {}
    for each in found:
        kept.setdefault(tuple(words(each.summary)), each)
    return list(kept.values())


def _shingles(found: DocumentedFunction) -> set[tuple[str, ...]]:
    text = words(f"{found.summary} {found.rest}")
    return {tuple(text[start : start + SHINGLE]) for start in range(len(text) - SHINGLE + 1)}


def _shared(own: set[tuple[str, ...]], others: set[tuple[str, ...]]) -> float:
    return len(own & others) / len(own)


def shorten(text: str, room: int) -> str:
    """The text up to the last whole word within this many characters."""
    return text if len(text) <= room else text[: room + 1].rpartition(" ")[0]


def sentence_bleu(reference: str, response: str) -> float:
    """BLEU-4 of one sentence, counts above one word plus one (Lin and Och 2004), on the words ROUGE
    counts."""
    from nltk.translate.bleu_score import SmoothingFunction
    from nltk.translate.bleu_score import sentence_bleu as of_words

    asked, said = words(reference), words(response)
    if not set(asked) & set(said):
        return 0.0
    return float(of_words([asked], said, smoothing_function=SmoothingFunction().method2))
