"""People's marks of what a critic said: correct or not (paper, Table 16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, get_args

from text2grad.errors import UserError
from text2grad.eval.metrics import mean_with_interval
from text2grad.feedback import Record, read_jsonl

Aspect = Literal["critique", "spans"]


class Mark(Record):
    """One person's verdict on one critique, or on the spans of it."""

    id: str
    correct: bool
    aspect: Aspect = "spans"
    annotator: str = ""


def read_marks(path: Path) -> list[Mark]:
    """Read a JSON Lines file of marks.

    Raises:
        UserError: it cannot be read, holds no marks, a line is not a mark, or one person marked a thing twice.
    """
    marks = list(read_jsonl(path, Mark))
    if not marks:
        raise UserError(f"{path} holds no marks", 'one a line: {"id": "...", "correct": true}')
    counts = Counter((mark.annotator, mark.id, mark.aspect) for mark in marks)
    [((annotator, id, _), count)] = counts.most_common(1)
    if count > 1:
        raise UserError(f"{path}: {annotator or 'someone'} marked {id!r} twice", "keep one of the lines")
    return marks


def agreement(marks: Sequence[Mark], known: Collection[str]) -> dict[str, Any]:
    """Share of critiques that people call correct, for each aspect they marked.

    Returns:
        For each aspect `accuracy` (mean over critiques of the share of their marks that say correct), its
        bootstrap `interval`, how many `critiques` and `marks`, and, where several people marked the same,
        `between_people`: the share of pairs of them who agree.

    Raises:
        UserError: a mark is of a critique that is not among the `known`.
    """
    if unknown := sorted({mark.id for mark in marks} - set(known)):
        raise UserError(
            f"{len(unknown)} marks are of unknown critiques, {unknown[0]!r} first", "mark the said.jsonl"
        )
    aspects = [aspect for aspect in get_args(Aspect) if any(mark.aspect == aspect for mark in marks)]
    return {aspect: _agreement([mark for mark in marks if mark.aspect == aspect]) for aspect in aspects}


def _agreement(marks: Sequence[Mark]) -> dict[str, Any]:
    verdicts: dict[str, list[bool]] = {}
    for mark in marks:
        verdicts.setdefault(mark.id, []).append(mark.correct)
    mean, low, high = mean_with_interval([sum(each) / len(each) for each in verdicts.values()])
    found = {"accuracy": mean, "interval": [low, high], "critiques": len(verdicts), "marks": len(marks)}
    pairs = [a == b for each in verdicts.values() for a, b in combinations(each, 2)]
    return found | ({"between_people": sum(pairs) / len(pairs)} if pairs else {})
