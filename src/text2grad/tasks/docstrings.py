"""One-line summaries of functions: from name, signature and long docstring to the docstring's first line.

The data is whatever Python finds installed: no download, real text, written by many people. `task.data` names a
folder of packages to read instead. `docstrings` shows a function shortened, in small letters, for a model made on
the spot; `function_summaries` shows it as written and says what is asked, for a model that can read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from text2grad.data.published import one_turn
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.settings import TinyShape
from text2grad.tasks.base import Split, TaskSettings, digest, refuse_shares, rouge_scores, split_of
from text2grad.tasks.library import DocumentedFunction, documented_functions, installed_functions, words

REST, SIGNATURE = 90, 40
"""Characters that `docstrings` shows of what follows the first line (unless `task.context_characters` says
otherwise) and of the signature: a model that is made on the spot has a short context."""
WRITTEN_REST = 600
"""What `function_summaries` shows of it."""
ASKED = "Write the first line of this Python function's docstring: one sentence that says what it does."
TRAIN_SHARE = 0.2
SHINGLE, MOST_SHARED = 4, 0.5


class DocstringsTask:
    """Functions of packages the policy has never seen are held out; near-duplicates of anything trained on are not.

    Of the functions of the other packages a share (`TRAIN_SHARE`) are the prompts of `train`, the rest is `sft`:
    the policy is optimised on prompts that it has not imitated.

    Raises:
        UserError: no documented functions are found, or all of them fall on one side of the split.
    """

    critic_prompt = "summarization"
    tiny_model = TinyShape(layers=3, phrases=False)  # prose: a quote begins at any word

    def __init__(self, settings: TaskSettings) -> None:
        refuse_shares(settings)
        self.name = settings.name
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
        """The functions of a split in an order that mixes packages; `task.limit` is of the `sft` split."""
        chosen = self.splits[split][: self._limit if split == "sft" else None]
        show = _as_written if self.name == "function_summaries" else _in_small_letters
        return [show(found, self._room) for found in chosen]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """ROUGE-1, ROUGE-2, ROUGE-L (F1, with stemming) and BLEU against the first line people wrote."""
        found = rouge_scores(example.reference, response)
        return {**found, "bleu": sentence_bleu(example.reference, response)}


def split_functions(
    found: Sequence[DocumentedFunction], settings: TaskSettings
) -> dict[Split, list[DocumentedFunction]]:
    """`heldout` by top-level package, `sft` and `train` by function; no summary is in two of the splits.

    A held-out function is left out if half of its four-word sequences occur in the training data: copies of one
    library in another, and texts that are written alike.
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


def _as_written(found: DocumentedFunction, room: int | None) -> Example:
    rest = shorten(found.rest, WRITTEN_REST if room is None else room)
    content = f"{ASKED}\n\ndef {found.name}{found.signature}:\n{rest}"
    return one_turn(found.place, content, found.summary, {"package": found.package})


def _in_small_letters(found: DocumentedFunction, room: int | None) -> Example:
    """Names in words too: a small model copies what has the same tokens on both sides."""
    signature = shorten(found.signature.replace("_", " "), SIGNATURE)
    content = f"{in_words(found.name)} {signature}\n{shorten(found.rest, REST if room is None else room)}"
    return one_turn(found.place, content.lower(), found.summary.lower(), {"package": found.package})


def in_words(name: str) -> str:
    """A name as words: `HTTPServer.get_userName` -> `http server . get user name`."""
    parts = [re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", part) for part in name.split(".")]
    return " . ".join(" ".join(word.lower() for word in part) for part in parts if part)


def shorten(text: str, room: int) -> str:
    """The text up to the last whole word within this many characters."""
    return text if len(text) <= room else text[: room + 1].rpartition(" ")[0]


def sentence_bleu(reference: str, response: str) -> float:
    """BLEU-4 of one sentence, counts above one word plus one (Lin and Och 2004), on the words ROUGE counts."""
    from nltk.translate.bleu_score import SmoothingFunction
    from nltk.translate.bleu_score import sentence_bleu as of_words

    asked, said = words(reference), words(response)
    if not set(asked) & set(said):
        return 0.0
    return float(of_words([asked], said, smoothing_function=SmoothingFunction().method2))
