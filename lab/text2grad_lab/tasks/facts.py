"""A program that compares a short report with the facts of a row: stated, invented, missing."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.critics.spec import CriticSpec, Need
from text2grad.feedback import Critique, Example, Failure, Judgement, Source, Span
from text2grad_lab.tasks.reports import report_of
from text2grad_lab.tasks.statements import Report

NAMED = 6  # faults that a critique names


class FactsCritic:
    """Judges a report by the facts in `example.meta["facts"]`.

    Good: the words and numbers that state a fact, the first time. Poor: numbers and names that are
    not in the row, numbers of another fact or without a word that says what they are, wrong units,
    numbers said again, and everything after the third sentence. Omissions: the names of the facts
    that are not stated. The score is 2 s - 1, s the facts that are stated out of all facts and
    faults. A reason never says a value of the row.
    """

    def __init__(self) -> None:
        self.source = Source(kind="program", model="facts", prompt_version="2")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Compare every response with the facts of its row; an example without any gives a
        `Failure`."""
        return [self._one(*each) for each in zip(examples, responses, strict=True)]

    def _one(self, example: Example, response: str) -> Judgement:
        if not example.meta.get("facts"):
            return Failure(kind="unsupported", message=f"{example.id}: no facts to compare with")
        report = report_of(example, response)
        missing = tuple(report.missing)
        if not response.strip():
            return Critique(text="The answer is empty.", score=-1.0, omissions=missing)
        spans = tuple(
            Span(start=start, end=end, label=label, text=response[start:end], reason=reason)
            for (start, end), label, reason, *_ in report.remarks
        )
        return Critique(text=_text(report, spans), spans=spans, score=2 * report.share - 1, omissions=missing)


def _text(report: Report, spans: Sequence[Span]) -> str:
    """The critique in words."""
    poor = [f"'{span.text[:40]}' ({span.reason})" for span in spans if span.label < 0]
    parts = {"Stated": report.stated, "Wrong": poor[:NAMED], "Missing": report.missing}
    sentences = [f"{title}: {', '.join(names)}." for title, names in parts.items() if names]
    return " ".join(sentences if report.brief else [*sentences, "It is not two or three whole sentences."])


FACTS = CriticSpec(
    "facts",
    make=lambda settings, ready: FactsCritic(),
    needs=Need("facts of a row", lambda example: bool(example.meta.get("facts"))),
    measures_with=lambda ready: FactsCritic(),
    about="compares a report with the facts of a row",
)
