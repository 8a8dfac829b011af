"""MQM's tables: one line per error, the marked words between <v> and </v> in the target, or in the source where
something was left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

from text2grad.feedback import Critique, Feedback
from text2grad.formats.marks import Mark, marked_record
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row, convert_rows, text_of

KEYS = frozenset({"system", "source", "target", "category", "severity"})
COLUMNS = ("system", "doc", "doc_id", "seg_id", "rater", "source", "target", "category", "severity")
POINTS = {"critical": 25.0, "major": 5.0, "minor": 1.0, "neutral": 0.0}
"""Of an error, as MQM counts; 25 and more are the worst there is."""
_TAG = re.compile(r"</?v>")


class _Line(NamedTuple):
    """What one line says: of which person, system and segment, and what is wrong there."""

    segment: tuple[str, ...]
    response: str
    prompt: str
    marks: Sequence[Mark] = ()
    omissions: Sequence[str] = ()
    sentence: str = ""
    points: float = 0.0


def records(rows: Iterable[Row], path: Path) -> Iterator[Feedback]:
    """One record per person, system and segment, its errors together. The verdict is 1 - points / 12.5.

    Raises:
        UserError: a text is missing, or the marks of a line are not a pair; says in which.
    """
    groups: dict[tuple[str, ...], list[_Line]] = {}
    for line in convert_rows(rows, path, KEYS, lambda row, _: [_line(row)], "MQM line"):
        groups.setdefault(line.segment, []).append(line)
    for number, lines in enumerate(groups.values(), start=1):
        (system, *_, rater), prompt = lines[-1].segment, lines[-1].prompt
        critique = Critique(
            text=" ".join(line.sentence for line in lines if line.sentence) or "No error was found.",
            score=round(max(-1.0, 1 - sum(line.points for line in lines) / 12.5), 4),
            omissions=tuple(chain.from_iterable(line.omissions for line in lines)),
        )
        marks = chain.from_iterable(line.marks for line in lines)
        meta = {"dataset": "mqm", "system": system, "annotator": rater}
        yield marked_record(f"{path.stem}-{number}", prompt, lines[-1].response, critique, marks, meta)


def _line(row: Row) -> _Line:
    response, found = _marked(text_of(row, "target"))
    prompt, left_out = _marked(str(row.get("source") or ""))
    place = (str(row.get(name, "")) for name in ("doc", "doc_id", "docSegId", "seg_id", "globalSegId"))
    segment = (str(row.get("system", "")), *place, prompt, response, str(row.get("rater", "")))
    severity, category = str(row["severity"]).strip().casefold(), str(row["category"]).strip()
    if severity in ("no-error", "no error"):
        return _Line(segment, response, prompt)
    kind = f"{category} ({severity})"
    quotes = [response[start:end] for start, end in found] or [prompt[start:end] for start, end in left_out]
    return _Line(
        segment,
        response,
        prompt,
        [Mark(start, end, "poor", reason=kind) for start, end in found],
        [] if found else [f"{kind}: {quote}" for quote in quotes],
        f"{kind}: {', '.join(map(repr, quotes)) or 'the whole text'}.",
        POINTS.get(severity, 0.0),
    )


def _marked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its marks, and where they were."""
    tags = _TAG.findall(text)
    if tags != ["<v>", "</v>"] * (len(tags) // 2):
        raise ValueError(f"the marks of {text[:40]!r} are not pairs")
    ends = list(accumulate(len(part) for part in _TAG.split(text)))
    places = zip(ends[0:-1:2], ends[1:-1:2], strict=True)
    return _TAG.sub("", text), [place for place in places if place[0] < place[1]]


def rows_of(record: Feedback) -> Iterator[Row]:
    """A line per poor span, or one that says there is none; praise has no place in MQM, nor a failed critique."""
    if record.error is not None:
        return
    common = {
        "system": str(record.meta.get("system") or record.source.model or "unknown"),
        "doc": "",
        "doc_id": record.id,
        "seg_id": "1",
        "rater": str(record.meta.get("annotator", "")),
        "source": _cell(conversation_text(record.prompt)),
    }
    poor = [span for span in record.spans if span.label < 0]
    for span in poor:
        target = f"{record.response[: span.start]}<v>{span.text}</v>{record.response[span.end :]}"
        yield {**common, "target": _cell(target), "category": _cell(span.reason) or "Other", "severity": "Major"}
    if not poor:
        yield {**common, "target": _cell(record.response), "category": "No-error", "severity": "No-error"}


def _cell(text: str) -> str:
    return " ".join(text.split())
