"""Label Studio's JSON export: labelled regions of a text, comments on regions, comments and ratings on the whole.

Its offsets count UTF-16 units, because browsers do; they are converted both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from text2grad.feedback import Critique, Feedback
from text2grad.formats.marks import LABELS, PROMPT_KEYS, RESPONSE_KEYS, Mark, first_text, marked_record, score_of
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row

KEYS = frozenset({"data", "annotations"})


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
        who = annotation.get("completed_by", "")
        who = str(who.get("email") or who.get("id") or "") if isinstance(who, dict) else str(who)
        whole, comments = _comments(results)
        text = "\n".join(whole) or first_text(data, ("critique",))
        critique = Critique(text=text, score=_score(results))
        name = id if len(kept) == 1 else f"{id}-{annotation.get('id', number)}"
        meta, marks = {"dataset": "label_studio", "annotator": who}, _marks(results, comments, response)
        yield marked_record(name, first_text(data, PROMPT_KEYS), response, critique, marks, meta)


def _marks(results: Iterable[Mapping[str, Any]], comments: Mapping[str, str], response: str) -> Iterator[Mark]:
    for result in results:
        value = result.get("value", {})
        names = value.get("labels") or value.get("hypertextlabels") or []
        if not names or "start" not in value:
            continue
        where = value.get("globalOffsets") or value
        text = str(value.get("text") or "")
        start, end, *_ = Mark.of(where)
        first, last = _code_point(response, start), _code_point(response, end)
        # Where only the numbers as they stand quote the text, a program wrote code points.
        if not text or response[first:last] == text or response[start:end] != text:
            start, end = first, last
        for name in names:
            yield Mark(start, end, str(name), text, comments.get(str(result.get("id")), ""))


def _code_point(text: str, unit: int) -> int:
    """The code point at an offset in UTF-16 units; -1 outside the text."""
    units = text.encode("utf-16-le", "surrogatepass")
    inside = 0 <= 2 * unit <= len(units)
    return len(units[: 2 * unit].decode("utf-16-le", "ignore")) if inside else -1


def _utf16_offset(text: str, place: int) -> int:
    """How many UTF-16 units stand before a code point."""
    return len(text[:place].encode("utf-16-le", "surrogatepass")) // 2


def _comments(results: Iterable[Mapping[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """What was written about the whole text, and about each region: in a text area that shares its id, or in the
    region's own note.
    """
    regions: dict[str, list[str]] = {str(r.get("id")): [] for r in results if "start" in r.get("value", {})}
    whole: list[str] = []
    for result in results:
        note = result["meta"].get("text") if isinstance(result.get("meta"), dict) else None
        area = result["value"].get("text") if result.get("type") == "textarea" else None
        place = regions.get(str(result.get("id")))
        if place is None:
            whole += _words(area)
        else:
            place += [*_words(note), *_words(area)]
    return whole, {id: " ".join(words) for id, words in regions.items()}


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
            return score_of(value["number"])
    return None


def row_of(record: Feedback) -> Row:
    """A record as a task that Label Studio imports, with its annotation; `records` reads it back."""
    result: list[dict[str, Any]] = []
    for number, span in enumerate(record.spans):
        common = {"id": f"span-{number}", "from_name": "label", "to_name": "response"}
        start, end = (_utf16_offset(record.response, place) for place in (span.start, span.end))
        place = {"start": start, "end": end, "text": span.text}
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
