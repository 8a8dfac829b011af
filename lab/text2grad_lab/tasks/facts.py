"""A program critic that compares a report with the facts of a row: stated, invented, missing."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.critics.spec import CriticSpec, Need
from text2grad.feedback import Critique, Example, Failure, Judgement, Source, Span
from text2grad_lab.tasks.reports import report_of
from text2grad_lab.tasks.statements import Report

MAX_FAULTS = 6  # named in a critique


class FactsCritic:
    """Judges a report by the facts in `example.meta["facts"]`.

    Good spans are the words and numbers of the first statement of a fact. Poor spans are numbers
    and names that are not in the row, numbers of another fact or without a cue, wrong units,
    repeated numbers, and everything after the third sentence. Omissions are names of missing facts.
    The score is 2 s - 1, where s is the share of stated facts among all facts and faults. Reasons
    never contain a value of the row.
    """

    def __init__(self) -> None:
        self.source = Source(kind="program", model="facts", prompt_version="2")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Compare every response with the facts of its row; without facts it is a `Failure`."""
        return [self._one(*pair) for pair in zip(examples, responses, strict=True)]

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
    """Return the text of the critique."""
    poor = [f"'{span.text[:40]}' ({span.reason})" for span in spans if span.label < 0]
    parts = {"Stated": report.stated, "Wrong": poor[:MAX_FAULTS], "Missing": report.missing}
    sentences = [f"{title}: {', '.join(names)}." for title, names in parts.items() if names]
    return " ".join(sentences if report.brief else [*sentences, "It is not two or three whole sentences."])


FACTS = CriticSpec(
    "facts",
    make=lambda settings, ready: FactsCritic(),
    needs=Need("facts of a row", lambda example: bool(example.meta.get("facts"))),
    measures_with=lambda ready: FactsCritic(),
    about="compares a report with the facts of a row",
)
