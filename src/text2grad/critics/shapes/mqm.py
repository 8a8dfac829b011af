"""MQM's tables: one line per error, the marked words between <v> and </v> in the target, or in the source where
something was left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from text2grad.critics.shapes.marks import Mark, human_record, placed
from text2grad.feedback import Critique, Feedback
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row, text_of

KEYS = frozenset({"system", "source", "target", "category", "severity"})
COLUMNS = ("system", "doc", "doc_id", "seg_id", "rater", "source", "target", "category", "severity")
POINTS = {"critical": 25.0, "major": 5.0, "minor": 1.0, "neutral": 0.0}
"""Of an error, as MQM counts; 25 and more are the worst there is."""
_TAG = re.compile(r"</?v>")


def records(rows: Sequence[Row], stem: str) -> Iterator[Feedback]:
    """One record per person, system and segment, its errors together. The verdict is 1 - points / 12.5.

    Raises:
        ValueError: a text is missing, or the marks of a line are not a pair.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_segment(row), []).append(row)
    for number, ((system, *_, rater), errors) in enumerate(groups.items(), start=1):
        yield _record(errors, f"{stem}-{number}", system, rater)


def _segment(row: Row) -> tuple[str, ...]:
    place = tuple(str(row.get(name, "")) for name in ("doc", "doc_id", "docSegId", "seg_id", "globalSegId"))
    texts = (_plain(row.get("source")), _plain(row.get("target")))
    return str(row.get("system", "")), *place, *texts, str(row.get("rater", ""))


def _record(errors: Iterable[Row], id: str, system: str, rater: str) -> Feedback:
    marks: list[Mark] = []
    omissions: list[str] = []
    sentences: list[str] = []
    points = 0.0
    response = prompt = ""
    for row in errors:
        response, found = _marked(text_of(row, "target"))
        prompt, left_out = _marked(str(row.get("source") or ""))
        severity, category = str(row["severity"]).strip(), str(row["category"]).strip()
        if severity.casefold() in ("no-error", "no error"):
            continue
        kind = f"{category} ({severity.casefold()})"
        points += POINTS.get(severity.casefold(), 0.0)
        quotes = [response[start:end] for start, end in found] or [prompt[start:end] for start, end in left_out]
        marks += [Mark(start, end, "poor", reason=kind) for start, end in found]
        omissions += [f"{kind}: {prompt[start:end]}" for start, end in left_out if not found]
        sentences.append(f"{kind}: {', '.join(map(repr, quotes)) or 'the whole text'}.")
    spans, counts = placed(marks, response)
    critique = Critique(
        text=" ".join(sentences) or "No error was found.",
        spans=spans,
        score=round(max(-1.0, 1 - points / 12.5), 4),
        quotes=counts,
        omissions=tuple(omissions),
    )
    meta = {"dataset": "mqm", "system": system}
    return human_record(id, prompt, response, critique, meta, rater)


def _marked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its marks, and where they were."""
    plain, found, opened = "", [], None
    for part in re.split(r"(</?v>)", text):
        if part == "<v>" and opened is None:
            opened = len(plain)
        elif part == "</v>" and opened is not None:
            found.append((opened, len(plain)))
            opened = None
        elif part in ("<v>", "</v>"):
            raise ValueError(f"the marks of {text[:40]!r} are not pairs")
        else:
            plain += part
    if opened is not None:
        raise ValueError(f"the marks of {text[:40]!r} are not pairs")
    return plain, [place for place in found if place[0] < place[1]]


def _plain(text: object) -> str:
    return _TAG.sub("", str(text or ""))


def rows_of(record: Feedback) -> Iterator[Row]:
    """A line per poor span, or one that says there is none; praise has no place in MQM."""
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
