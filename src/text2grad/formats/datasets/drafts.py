"""SLF5K, ILF-for-code and UltraFeedback: critiques without marks that published data sets come with.

`text2grad annotate --anchor` finds the words it is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from text2grad.feedback import Critique, Example, Feedback, Message, Source
from text2grad.formats.marks import human_record
from text2grad.formats.published import responses_of
from text2grad.tasks import code, summarization
from text2grad.tasks.loaders import Row, optional_text


class Completions(NamedTuple):
    """UltraFeedback: GPT-4's critique of every completion, and its score of 1 to 10 as -1 to 1."""

    KEYS: frozenset[str]

    def records(self, row: Row, fallback_id: str) -> Iterator[Feedback]:
        """A record for each completion that has a critique.

        Raises:
            ValueError: the row lacks a text.
        """
        for each, completion in zip(responses_of(row) or (), row["completions"], strict=True):
            if words := optional_text(completion, "critique"):
                turns = (
                    (Message(role="user", content=each.prompt),) if isinstance(each.prompt, str) else each.prompt
                )
                example = Example(
                    id=each.id,
                    prompt=turns,
                    reference=each.reference,
                    meta={**each.meta, "dataset": "ultrafeedback"},
                )
                critique = Critique(text=words, score=_of_ten(completion.get("overall_score")))
                yield Feedback.of(example, each.response, critique, Source(kind="llm", model="gpt-4"))


def _of_ten(score: object) -> float | None:
    known = isinstance(score, int | float) and 1 <= score <= 10
    return round((float(score) - 5.5) / 4.5, 2) if known and isinstance(score, int | float) else None


class Drafts(NamedTuple):
    """A data set with a draft and a person's feedback in each row, known by these keys."""

    name: str
    KEYS: frozenset[str]

    def records(self, row: Row, fallback_id: str) -> Iterator[Feedback]:
        """The record of a row; none where nobody wrote about the draft.

        Raises:
            ValueError: the row lacks a text.
        """
        for each in responses_of(row) or ():
            if each.feedback.strip():
                meta = {**each.meta, "dataset": self.name, "corrected": each.reference}
                critique = Critique(text=each.feedback)
                yield human_record(each.id or fallback_id, each.prompt, each.response, critique, meta)


def _keys(shape: str) -> frozenset[str]:
    return next(each.keys for each in (*summarization.SHAPES, *code.SHAPES) if each.name == shape)


SLF5K = Drafts("slf5k", _keys("SLF5K") | {"generated_summary_for_feedback", "feedback"})
ILF = Drafts("ilf", _keys("ILF"))
ULTRAFEEDBACK = Completions(frozenset({"instruction", "completions"}))
