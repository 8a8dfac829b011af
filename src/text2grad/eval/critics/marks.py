"""Human marks of critiques as correct or not (paper, Tables 16 and 19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import model_validator

from text2grad.errors import UserError
from text2grad.eval.critics.spans import LABEL_NAMES
from text2grad.eval.metrics import by_length, mean, mean_with_interval
from text2grad.feedback import Feedback, Record, Span
from text2grad.jsonl import read_jsonl

Aspect = Literal["critique", "spans"]
Length = Callable[[Feedback, Span], int]
"""Returns the tokens of a span of a record."""


class Mark(Record):
    """One person's verdict on a critique, on its spans, or on the span [`start`, `end`)."""

    id: str
    correct: bool
    aspect: Aspect = "spans"
    annotator: str = ""
    start: int | None = None
    end: int | None = None

    @property
    def about(self) -> tuple[str, int | None, int | None]:
        """The id and span that a mark refers to."""
        return self.id, self.start, self.end

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        if (self.start is None) != (self.end is None) or (self.start is not None and self.aspect != "spans"):
            raise ValueError("start and end together name a span, whose aspect is spans")
        return self


def read_marks(path: Path) -> list[Mark]:
    """Read a JSON Lines file of marks.

    Raises:
        UserError: the file cannot be read, has no marks or an invalid line, or one person marked
            something twice.
    """
    marks = list(read_jsonl(path, Mark))
    if not marks:
        raise UserError(f"{path} has no marks", 'write one per line: {"id": "...", "correct": true}')
    counts = Counter((mark.annotator, *mark.about, mark.aspect) for mark in marks)
    [((annotator, id, *_), count)] = counts.most_common(1)
    if count > 1:
        raise UserError(f"{path}: {annotator or 'someone'} marked {id!r} twice", "keep one of the lines")
    return marks


def agreement(marks: Sequence[Mark], ids: Collection[str]) -> dict[str, Any]:
    """Return the share of critiques (with these `ids`) that people call correct, by marked aspect.

    Returns:
        For `critique`, `spans` (all spans of a critique together) and `single_spans`, if marked:
        `accuracy` (mean over critiques or single spans of the share of marks that are correct), its
        bootstrap `interval`, the `count` of critiques or spans, the number of `marks`, and, if
        several people marked the same, `between_people`: the share of pairs of people who agree.

    Raises:
        UserError: a mark refers to another critique.
    """
    if unknown := sorted({mark.id for mark in marks} - set(ids)):
        raise UserError(
            f"{len(unknown)} marks refer to unknown critiques, first {unknown[0]!r}",
            "mark those in said.jsonl",
        )
    groups: dict[str, list[Mark]] = {}
    for mark in marks:
        groups.setdefault("single_spans" if mark.start is not None else mark.aspect, []).append(mark)
    return {name: _agreement(groups[name]) for name in (*get_args(Aspect), "single_spans") if name in groups}


def _agreement(marks: Sequence[Mark]) -> dict[str, Any]:
    verdicts: dict[tuple[Any, ...], list[bool]] = {}
    for mark in marks:
        verdicts.setdefault(mark.about, []).append(mark.correct)
    accuracy, low, high = mean_with_interval([sum(votes) / len(votes) for votes in verdicts.values()])
    report = {"accuracy": accuracy, "interval": [low, high], "count": len(verdicts), "marks": len(marks)}
    pairs = [a == b for votes in verdicts.values() for a, b in combinations(votes, 2)]
    return report | ({"between_people": sum(pairs) / len(pairs)} if pairs else {})


def marks_report(path: Path, records: Iterable[Feedback], length: Length) -> dict[str, Any]:
    """Read a file of marks and return their `agreement` on records.

    `single_spans` is split by label (`good`, `poor`) and length. The second record of an id is
    marked as `id#2`.

    Raises:
        UserError: see `read_marks` and `agreement`; or a mark names a span that its record lacks.
    """
    marks = read_marks(path)
    marked_ids = {mark.id for mark in marks}
    marked_records = {record.id: record for record in number_repeated_ids(records) if record.id in marked_ids}
    report = agreement(marks, marked_records)
    if "single_spans" in report:
        report["single_spans"] |= by_label(marks, marked_records, length)
    return report


def number_repeated_ids(records: Iterable[Feedback]) -> Iterator[Feedback]:
    """Yield the records with unique ids: the second record of an id becomes `id#2`."""
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.id] += 1
        suffix = f"#{counts[record.id]}" if counts[record.id] > 1 else ""
        yield record.model_copy(update={"id": record.id + suffix})


def by_label(marks: Sequence[Mark], records: Mapping[str, Feedback], length: Length) -> dict[str, Any]:
    """Report the marked spans by label.

    Returns:
        For each label: the number of `spans`, the `accuracy` (mean over spans of the share of marks
        that are correct), and the accuracy by quartile of length in tokens, shortest first
        (`by_length`; paper, Table 19).
    """
    votes: dict[tuple[str, int], list[bool]] = {}
    for mark in marks:
        if mark.start is not None:
            votes.setdefault((mark.id, _span_index(mark, records[mark.id])), []).append(mark.correct)
    shares: dict[int, list[tuple[int, float]]] = {}
    for (id, index), span_votes in votes.items():
        span = records[id].spans[index]
        shares.setdefault(span.label, []).append((length(records[id], span), sum(span_votes) / len(span_votes)))
    return {
        name: {
            "spans": len(shares[label]),
            "accuracy": mean([share for _, share in shares[label]]),
            "by_length": by_length(shares[label], lambda quarter: float(quarter[:, 1].mean())),
        }
        for label, name in LABEL_NAMES.items()
        if label in shares
    }


def _span_index(mark: Mark, record: Feedback) -> int:
    places = [(span.start, span.end) for span in record.spans]
    if (mark.start, mark.end) not in places:
        spans = ", ".join(f"{start} to {end}" for start, end in places[:5]) or "none"
        raise UserError(f"{mark.id!r} has no span from {mark.start} to {mark.end}", f"it has {spans}")
    return places.index((mark.start or 0, mark.end or 0))
