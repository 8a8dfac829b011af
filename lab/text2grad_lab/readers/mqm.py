"""MQM's tables: one line per error, the marked words between <v> and </v> in the target, or in the source where
something was left out.

    text2grad import ratings.tsv --kind text2grad_lab.readers.mqm:MQM --out feedback.jsonl
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from text2grad.data.files import Row, text_of
from text2grad.data.marks import Mark, without_empty
from text2grad.data.opinions import NO_ERROR, Importer, Names, Opinion

POINTS = {"critical": 25.0, "major": 5.0, "minor": 1.0, "neutral": 0.0}
"""Of an error, as MQM counts; 25 and more are the worst there is."""
_PLACE = ("system", "doc", "doc_id", "docSegId", "seg_id", "globalSegId")
_TAG = re.compile(r"</?v>")


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """What one line says of a segment, with its place and severity in `aside`."""
    response, found = _marked(text_of(row, "target"))
    prompt, left_out = _marked(str(row.get("source") or ""))
    segment = (*(str(row.get(name, "")) for name in _PLACE), prompt, response, rater := str(row.get("rater", "")))
    severity, category = str(row["severity"]).strip().casefold(), str(row["category"]).strip()
    opinion = Opinion(fallback_id, response, prompt, rater, meta=without_empty(system=segment[0]))
    opinion.aside = {"segment": segment, "severity": severity}
    if severity not in ("no-error", "no error"):
        kind = f"{category} ({severity})"
        quotes = [response[start:end] for start, end in found] or [prompt[start:end] for start, end in left_out]
        opinion.marks = [Mark(start, end, "poor", reason=kind) for start, end in found]
        opinion.omissions = [] if found else [f"{kind}: {quote}" for quote in quotes]
        opinion.comments = [f"{kind}: {', '.join(map(repr, quotes)) or 'the whole text'}."]
    yield opinion


def join(lines: Sequence[Opinion], path: Path) -> list[Opinion]:
    """One opinion per person, system and segment, its errors together. The verdict is 1 - points / 12.5."""
    groups: dict[object, list[Opinion]] = {}
    for line in lines:
        groups.setdefault(line.aside["segment"], []).append(line)
    for number, (first, *others) in enumerate(groups.values(), start=1):
        points = sum(POINTS.get(str(line.aside["severity"]), 0.0) for line in (first, *others))
        first.id, first.score, first.aside = f"{path.stem}-{number}", round(max(-1.0, 1 - points / 12.5), 4), {}
        for line in others:
            first.marks += line.marks
            first.comments += line.comments
            first.omissions = [*first.omissions, *line.omissions]
        first.comments = [" ".join(first.comments) or NO_ERROR]
    return [first for first, *_ in groups.values()]


def _marked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its marks, and where they were."""
    tags = _TAG.findall(text)
    if tags != ["<v>", "</v>"] * (len(tags) // 2):
        raise ValueError(f"the marks of {text[:40]!r} are not pairs")
    ends = list(accumulate(len(part) for part in _TAG.split(text)))
    places = zip(ends[0:-1:2], ends[1:-1:2], strict=True)
    return _TAG.sub("", text), [place for place in places if place[0] < place[1]]


MQM = Importer(
    "mqm",
    opinions,
    frozenset({"system", "source", "target", "category", "severity"}),
    join=join,
    noun="MQM line",
)
