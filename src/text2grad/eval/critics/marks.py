"""People's marks of critiques by an annotator or a reward model: correct or not (paper, Tables 16
and 19)."""

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
"""Tokens of a span of a record."""


class Mark(Record):
    """One person's verdict on one critique, on the spans of it, or, with `start` and `end`, on one
    of them."""

    id: str
    correct: bool
    aspect: Aspect = "spans"
    annotator: str = ""
    start: int | None = None
    end: int | None = None

    @property
    def about(self) -> tuple[str, int | None, int | None]:
        """What two people must have marked alike to be compared."""
        return self.id, self.start, self.end

    @model_validator(mode="after")
    def _one_span(self) -> Self:
        if (self.start is None) != (self.end is None) or (self.start is not None and self.aspect != "spans"):
            raise ValueError("start and end together name a span, whose aspect is spans")
        return self


def read_marks(path: Path) -> list[Mark]:
    """Read a JSON Lines file of marks.

    Raises:
        UserError: it cannot be read, holds no marks, a line is not a mark, or one person marked a
            thing twice.
    """
    marks = list(read_jsonl(path, Mark))
    if not marks:
        raise UserError(f"{path} holds no marks", 'one a line: {"id": "...", "correct": true}')
    counts = Counter((mark.annotator, *mark.about, mark.aspect) for mark in marks)
    [((annotator, id, *_), count)] = counts.most_common(1)
    if count > 1:
        raise UserError(f"{path}: {annotator or 'someone'} marked {id!r} twice", "keep one of the lines")
    return marks


def agreement(marks: Sequence[Mark], known: Collection[str]) -> dict[str, Any]:
    """Share of critiques that people call correct, for each aspect they marked.

    Returns:
        For `critique`, `spans` (all spans of a critique at once) and `single_spans`, where people
        marked these: `accuracy` (mean over critiques, or over single spans, of the share of their
        marks that say correct), its bootstrap `interval`, their `count`, the number of `marks`,
        and, where several people marked the same, `between_people`: the share of pairs of them who
        agree.

    Raises:
        UserError: a mark is of a critique that is not among the `known`.
    """
    if unknown := sorted({mark.id for mark in marks} - set(known)):
        raise UserError(
            f"{len(unknown)} marks are of unknown critiques, {unknown[0]!r} first", "mark the said.jsonl"
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
    found = {"accuracy": accuracy, "interval": [low, high], "count": len(verdicts), "marks": len(marks)}
    pairs = [a == b for votes in verdicts.values() for a, b in combinations(votes, 2)]
    return found | ({"between_people": sum(pairs) / len(pairs)} if pairs else {})


def people(path: Path, records: Iterable[Feedback], length: Length) -> dict[str, Any]:
    """Read a file of marks, and return their `agreement` on records, by label and length for single
    spans.

    `good` and `poor` in `single_spans` count the correct spans of each label. The second record of
    an id is marked as `id#2`.

    Raises:
        UserError: see `read_marks` and `agreement`; a mark names a span that is not in its record.
    """
    marks = read_marks(path)
    wanted = {mark.id for mark in marks}
    known = {record.id: record for record in numbered(records) if record.id in wanted}
    found = agreement(marks, known)
    if "single_spans" in found:
        found["single_spans"] |= by_label(marks, known, length)
    return found


def numbered(records: Iterable[Feedback]) -> Iterator[Feedback]:
    """The records under ids that name each of them: the second of a prompt is `id#2`."""
    seen: Counter[str] = Counter()
    for record in records:
        seen[record.id] += 1
        suffix = f"#{seen[record.id]}" if seen[record.id] > 1 else ""
        yield record.model_copy(update={"id": record.id + suffix})


def by_label(marks: Sequence[Mark], records: Mapping[str, Feedback], length: Length) -> dict[str, Any]:
    """Of the spans of each label that marks name: how many `spans`, the share that is correct
    (`accuracy`, a mean over spans), and the same by quartile of length in tokens, shortest first
    (`by_length`; paper, Table 19)."""
    verdicts: dict[tuple[str, int], list[bool]] = {}
    for mark in marks:
        if mark.start is not None:
            verdicts.setdefault((mark.id, _place(mark, records[mark.id])), []).append(mark.correct)
    found: dict[int, list[tuple[int, float]]] = {}
    for (id, place), said in verdicts.items():
        span = records[id].spans[place]
        found.setdefault(span.label, []).append((length(records[id], span), sum(said) / len(said)))
    return {
        name: {
            "spans": len(found[label]),
            "accuracy": mean([share for _, share in found[label]]),
            "by_length": by_length(found[label], lambda quarter: float(quarter[:, 1].mean())),
        }
        for label, name in LABEL_NAMES.items()
        if label in found
    }


def _place(mark: Mark, record: Feedback) -> int:
    places = [(span.start, span.end) for span in record.spans]
    if (mark.start, mark.end) not in places:
        spans = ", ".join(f"{start} to {end}" for start, end in places[:5]) or "none"
        raise UserError(f"{mark.id!r} has no span from {mark.start} to {mark.end}", f"it has {spans}")
    return places.index((mark.start or 0, mark.end or 0))
