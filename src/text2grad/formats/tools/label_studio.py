"""Label Studio: labelled regions of a text, choices, ratings and comments, as JSON, JSON-MIN, CSV and TSV.

Its editor counts UTF-16 units and a line end as one, and shows a line end as backslash and n. Offsets belong to the
text that a region's `to_name` shows. The scale of a rating is in the labeling configuration alone, which an export
does not have: it is read from the task's `label_config`, or from an .xml file beside the export.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from text2grad.errors import UserError
from text2grad.feedback import Feedback, from_json
from text2grad.formats.importer import SCORE_SCALE, Importer, Names, Opinion, last_turn, own_scales, skip
from text2grad.formats.marks import BROWSER, LABELS, Mark, fits, in_code_points, utf16_offset
from text2grad.formats.scale import Scale, number_of, of_options, verdict
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row

Result = Mapping[str, Any]
_ASIDE = ("text", "relation", "pairwise", "ranker", "taxonomy")
_FLAT_COLUMNS = {"annotation_id", "annotator", "lead_time"}
_OWN_COLUMNS = ("annotation_id", "annotator", "created_at", "updated_at", "lead_time", "agreement", "id")


def _is_task(row: Row) -> bool:
    return isinstance(row.get("data"), dict) and bool(row.keys() & {"annotations", "completions", "predictions"})


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per annotation of a task; those that were cancelled, and predictions of a model, are skipped."""
    data = last_turn(row["data"])
    names.response(data)
    id = str(data.get("id") or row.get("id") or fallback_id)
    annotations = row.get("annotations") or row.get("completions") or []
    whole = [each for each in annotations if not (each.get("was_cancelled") or each.get("skipped"))]
    yield from (skip(id, "annotations that were cancelled") for _ in annotations[len(whole) :])
    yield from (skip(id, "predictions of a model") for _ in row.get("predictions") or ())
    if not annotations and not row.get("predictions"):
        yield skip(id, "tasks without an annotation")
    for number, annotation in enumerate(whole, start=1):
        results = [result for result in annotation.get("result", []) if isinstance(result, dict)]
        opinion = _opinion(id, data, results, annotation.get("completed_by"), names)
        opinion.part = str(annotation.get("id", number))
        yield opinion


def _opinion(id: str, data: Mapping[str, Any], results: Sequence[Result], who: Any, names: Names) -> Opinion:
    """The opinion of one annotation: what all its results say."""
    field = names.response(data)
    texts = {name: text for name, text in data.items() if isinstance(text, str)}
    known = (who.get("email") or who.get("id")) if isinstance(who, dict) else who
    opinion = Opinion(id, texts[field], names.prompt(data), "" if known is None else str(known))
    # A result without an id is about nothing but what it says itself.
    results = [{"id": f"result-{number}", **result} for number, result in enumerate(results)]
    groups = _regions(results)
    for region, *own in groups.values():
        if (about := _about(region, texts, field, names)) == field:
            _add_region(opinion, region, own, names)
        else:
            opinion.misplace(about)
    for result in results:
        if str(result.get("id")) not in groups:
            _add_answer(opinion, result, texts, field, names)
    if not opinion.comments and isinstance(data.get("critique"), str):
        opinion.comments += filter(None, [data["critique"]])
    return opinion


def _regions(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Region -> its own result, then what else was said of it (which repeats its id)."""
    found: dict[str, list[Result]] = {}
    notes = [result for result in results if result.get("type") == "textarea"]
    for result in results:
        if "start" in _value(result) and result.get("type") != "textarea":
            found.setdefault(str(result.get("id")), []).append(result)
    for note in notes:
        found.get(str(note.get("id")), []).append(note)
    return {id: sorted(group, key=lambda each: not _labels(each)) for id, group in found.items()}


def _labels(result: Result) -> list[str]:
    value = _value(result)
    return [label for kind in ("labels", "hypertextlabels") for label in _words(value.get(kind))]


def _value(result: Result) -> Mapping[str, Any]:
    value = result.get("value")
    return value if isinstance(value, dict) else {}


def _about(region: Result, texts: Mapping[str, str], field: str, names: Names) -> str:
    """The text a region is on: as the configuration says, by the name of what it marks, or where its quote is."""
    tag, quote = str(region.get("to_name") or ""), _value(region).get("text")
    if not tag or tag in names.texts or tag in texts:
        return names.texts.get(tag, tag or field)
    if source := str(region.get("source") or "").removeprefix("$"):
        return source
    if len(texts) > 1 and isinstance(quote, str) and quote:
        mark = _mark(region, "", quote)
        held = [name for name, text in texts.items() if fits(mark, text)] or [
            name for name, text in texts.items() if in_code_points([mark], text, BROWSER)[0].start >= 0
        ]
        return held[0] if len(held) == 1 else ""
    return names.about(tag, texts, field)


def _mark(region: Result, label: str, quote: str, reason: str = "") -> Mark:
    value = _value(region)
    return Mark.of(value.get("globalOffsets") or value)._replace(label=label, text=quote, reason=reason)


def _add_region(opinion: Opinion, region: Result, own: Sequence[Result], names: Names) -> None:
    """Add a mark for each label of a region, with what was written about it in text areas and notes."""
    written = [word for each in own if each.get("type") == "textarea" for word in _words(_value(each).get("text"))]
    note = region["meta"].get("text") if isinstance(region.get("meta"), dict) else None
    choices = [word for each in (region, *own) for word in _words(_value(each).get("choices"))]
    known, labels = names.labels(), _labels(region)
    if not any(label.strip().casefold() in known for label in labels):
        labels = [word for word in choices if verdict(word)] or labels or [""]
    reason = " ".join([*_words(note), *written, *(word for word in choices if word not in labels)])
    quote = _value(region).get("text")
    opinion.marks += [_mark(region, label, quote if isinstance(quote, str) else "", reason) for label in labels]
    for each in own:
        rated = {kind: _value(each)[kind] for kind in ("rating", "number") if kind in _value(each)}
        opinion.aside |= {f"{each.get('from_name')} of a region": value for value in rated.values()}


def _words(value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [str(word) for word in found if str(word).strip()]


def _add_answer(opinion: Opinion, result: Result, texts: Mapping[str, str], field: str, names: Names) -> None:
    """Add one result about the whole text; one about another text is kept aside."""
    kind, value, tag = str(result.get("type") or ""), _value(result), str(result.get("to_name") or "")
    name = str(result.get("from_name") or kind)
    if kind in _ASIDE or not value:
        opinion.aside[name] = value.get("choices", [value or dict(result)])[0]
        return
    if (about := names.texts.get(tag, tag)) in texts and about != field:
        opinion.aside[f"{name} of {about}"] = value
        return
    for answer in ("rating", "number", "choices"):
        opinion.answer(name, value.get(answer), names)
    words = _words(value.get("text")) if kind in ("textarea", "") else []
    if words and names.is_corrected(name):
        opinion.corrected = "\n".join(words)
    else:
        opinion.comments += words


# JSON-MIN, CSV and TSV: a row per annotation, the data and the answers side by side.


def flat_opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion of a flat row."""
    data = {name: _decoded(value) for name, value in row.items() if name not in _OWN_COLUMNS}
    field = names.response({name: value for name, value in data.items() if name not in names.scales})
    others = {field, names.key(data, "prompt", ("prompt", "question", "instruction"))}
    results = [
        result for name, value in data.items() if name not in others for result in _results(name, value, names)
    ]
    texts = {name: value for name, value in data.items() if isinstance(value, str) and name in others}
    id = str(row.get("id") or fallback_id)
    yield _opinion(id, texts, results, _decoded(row.get("annotator")), names)


def _decoded(value: Any) -> Any:
    """A cell that holds JSON as what it holds."""
    if isinstance(value, str) and value[:1] in "[{" and value[-1:] in "]}":
        try:
            return from_json(value)
        except json.JSONDecodeError:
            return value
    return value


def _results(name: str, value: Any, names: Names) -> Iterator[dict[str, Any]]:
    """The answers to one question as JSON has them."""
    for number, each in enumerate(value if isinstance(value, list) else [value]):
        common = {"from_name": name, "to_name": name * (name in names.texts), "id": f"{name}-{number}"}
        if isinstance(each, dict):
            yield {**common, "type": "textarea" if set(each) == {"text"} else "", "value": each}
        elif isinstance(each, str) and (names.is_comment(name) or names.is_corrected(name)):
            yield {**common, "type": "textarea", "value": {"text": [each]}}
        elif isinstance(each, str) and number_of(each) is None and each:
            chosen = name in (*names.texts, *names.chosen.get("score", ())) or verdict(each) is not None
            yield {**common, "type": "choices" if chosen else "text", "value": {"choices": [each]}}
        elif each not in (None, ""):
            yield {**common, "type": "number", "value": {"number": each}}


# The labeling configuration.


def read_names(path: Path, rows: Sequence[Row]) -> Names:
    """What the labeling configuration says: the text that a tag shows, and the scale of a question."""
    for source, text in _configurations(path, rows):
        try:
            return _configured(ElementTree.fromstring(text), source)
        except ElementTree.ParseError as error:
            raise UserError(
                f"{source}: not a labeling configuration: {error}", "correct it, or move it away"
            ) from error
    return Names(scales=own_scales(rows))


def _configurations(path: Path, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    own = (row.get("label_config") or (row.get("project") or {}) for row in rows[:1])
    for each in own:
        text = each.get("label_config") if isinstance(each, dict) else each
        if isinstance(text, str):
            yield str(path), text
    for name in (f"{path.stem}.xml", "label_config.xml", "labeling_config.xml", "config.xml"):
        if (beside := path.with_name(name)).is_file():
            yield str(beside), beside.read_text(encoding="utf-8-sig")


def _configured(view: ElementTree.Element, source: str) -> Names:
    declared = f"as {Path(source).name} says"
    shown: dict[str, str] = {}
    scales: dict[str, Scale] = {}
    options: dict[str, list[str]] = {}
    for tag in view.iter():
        name, value = tag.get("name", ""), tag.get("value", "")
        if value.startswith("$"):
            shown[name] = value[1:]
        if tag.tag == "Rating":
            scales[name] = Scale(1, int(tag.get("maxRating", "5")), declared)
        elif tag.tag in ("Number", "Slider") and tag.get("min") and tag.get("max"):
            scales[name] = Scale(float(tag.get("min", "")), float(tag.get("max", "")), declared)
        elif tag.tag == "Choices":
            options[name] = [each.get("alias") or each.get("value") or "" for each in tag.iter("Choice")]
            if scale := of_options(options[name]):
                scales[name] = replace(scale, declared=declared)
    shown |= {
        tag.get("name", ""): shown[tag.get("toName", "")] for tag in view.iter() if tag.get("toName") in shown
    }
    return Names(texts=shown, scales=scales, options=options, source=source)


TASKS, FLAT = (
    Importer("label_studio", read, known=known, names=read_names, counting=BROWSER)
    for read, known in ((opinions, _is_task), (flat_opinions, lambda row: row.keys() >= _FLAT_COLUMNS))
)


def row_of(record: Feedback) -> Row:
    """A record as a task that Label Studio imports, with its annotation; `opinions` reads it back."""
    result: list[dict[str, Any]] = []
    for number, span in enumerate(record.spans):
        common = {"id": f"span-{number}", "from_name": "label", "to_name": "response"}
        start, end = (utf16_offset(record.response, place) for place in (span.start, span.end))
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
    annotation = {"result": result, **({"completed_by": who} if who else {})}
    return {"data": data, "annotations": [annotation], "meta": SCORE_SCALE}
