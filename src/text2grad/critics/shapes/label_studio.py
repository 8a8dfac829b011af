"""Label Studio's JSON export: labelled regions of a text, comments on regions, comments and ratings on the whole.

Its offsets count UTF-16 units, because browsers do; they are converted both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from text2grad.critics.shapes.marks import (
    PROMPT_KEYS,
    RESPONSE_KEYS,
    Mark,
    code_points,
    first_text,
    human_record,
    placed,
    utf16_offsets,
)
from text2grad.feedback import Critique, Feedback
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row

KEYS = frozenset({"data", "annotations"})
LABELS = {1: "good", -1: "poor"}


def records(row: Row, fallback_id: str) -> Iterator[Feedback]:
    """One record per annotation of a task.

    Raises:
        ValueError: the task has no text.
    """
    data = row["data"]
    response = first_text(data, RESPONSE_KEYS, needed=True)
    id = str(data.get("id") or row.get("id") or fallback_id)
    kept = [annotation for annotation in row["annotations"] if not annotation.get("was_cancelled")]
    for number, annotation in enumerate(kept, start=1):
        results = [result for result in annotation.get("result", []) if isinstance(result, dict)]
        spans, counts = placed(_marks(results, response), response)
        who = annotation.get("completed_by", "")
        who = str(who.get("email") or who.get("id") or "") if isinstance(who, dict) else str(who)
        critique = Critique(
            text="\n".join(_comments(results)) or first_text(data, ("critique",)),
            spans=spans,
            score=_score(results),
            quotes=counts,
        )
        meta = {"dataset": "label_studio"}
        name = id if len(kept) == 1 else f"{id}-{annotation.get('id', number)}"
        yield human_record(name, first_text(data, PROMPT_KEYS), response, critique, meta, who)


def _marks(results: Iterable[Mapping[str, Any]], response: str) -> Iterator[Mark]:
    comments = _region_comments(results)
    to_code_point = code_points(response)
    for result in results:
        value = result.get("value", {})
        names = value.get("labels") or value.get("hypertextlabels") or []
        if not names or "start" not in value:
            continue
        where = value.get("globalOffsets") or value
        text = str(value.get("text") or "")
        start, end = _interval(where["start"], where["end"], text, response, to_code_point)
        reason = comments.get(str(result.get("id")), "")
        for name in names:
            yield Mark(start, end, str(name), text, reason)


def _interval(start: Any, end: Any, text: str, response: str, to_code_point: list[int]) -> tuple[int, int]:
    """UTF-16 to code points; where only the numbers as they stand quote the text, a program wrote code points."""
    if not isinstance(start, int) or not isinstance(end, int):
        raise ValueError(f"offsets {start!r} and {end!r} are no numbers")
    if not 0 <= start < end < len(to_code_point):
        return -1, -1
    converted = to_code_point[start], to_code_point[end]
    if text and response[converted[0] : converted[1]] != text and response[start:end] == text:
        return start, end
    return converted


def _region_comments(results: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What was written about a region: a text area that shares its id, or the region's own note."""
    regions = {str(r.get("id")) for r in results if "start" in r.get("value", {})}
    comments: dict[str, list[str]] = {}
    for result in results:
        id = str(result.get("id"))
        note = result.get("meta", {}).get("text", []) if isinstance(result.get("meta"), dict) else []
        words = _words(note) + (_words(result["value"].get("text")) if result.get("type") == "textarea" else [])
        if id in regions and words:
            comments.setdefault(id, []).extend(words)
    return {id: " ".join(words) for id, words in comments.items()}


def _comments(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """What was written about the whole text."""
    regions = {str(r.get("id")) for r in results if "start" in r.get("value", {})}
    areas = [r for r in results if r.get("type") == "textarea" and str(r.get("id")) not in regions]
    return [word for area in areas for word in _words(area["value"].get("text"))]


def _words(value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [str(word) for word in found if str(word).strip()]


def _score(results: Iterable[Mapping[str, Any]]) -> float | None:
    """A rating of 1 to 5 stars as -1 to 1; a number in [-1, 1] as it is."""
    for result in results:
        value = result.get("value", {})
        if result.get("type") == "rating" and isinstance(value.get("rating"), int | float):
            return max(-1.0, min(1.0, (float(value["rating"]) - 3) / 2))
        if result.get("type") == "number" and isinstance(value.get("number"), int | float):
            return float(value["number"]) if -1 <= value["number"] <= 1 else None
    return None


def row_of(record: Feedback) -> Row:
    """A record as a task that Label Studio imports, with its annotation; `records` reads it back."""
    offsets = utf16_offsets(record.response)
    result: list[dict[str, Any]] = []
    for number, span in enumerate(record.spans):
        common = {"id": f"span-{number}", "from_name": "label", "to_name": "response"}
        place = {"start": offsets[span.start], "end": offsets[span.end], "text": span.text}
        result.append({**common, "type": "labels", "value": {**place, "labels": [LABELS[span.label]]}})
        if span.reason:
            value = {**place, "text": [span.reason]}
            result.append({**common, "from_name": "reason", "type": "textarea", "value": value})
    whole = {"to_name": "response", "from_name": "critique"}
    if record.critique:
        result.append({**whole, "id": "critique", "type": "textarea", "value": {"text": [record.critique]}})
    if record.score is not None:
        number_value = {"value": {"number": record.score}, "type": "number", "id": "score", "from_name": "score"}
        result.append({**whole, **number_value})
    data = {"id": record.id, "prompt": conversation_text(record.prompt), "response": record.response}
    who = str(record.meta.get("annotator", ""))
    return {"data": data, "annotations": [{"result": result, **({"completed_by": who} if who else {})}]}
