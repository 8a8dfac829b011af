"""Exports of other tools, a few lines each: doccano, brat, Labelbox, LightTag, INCEpTION, LangSmith and Phoenix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from text2grad.errors import UserError
from text2grad.feedback import reading
from text2grad.formats.importer import Names, Opinion, Tool, answered, skipped, text_in
from text2grad.formats.marks import BROWSER, CODE_POINTS, Mark
from text2grad.tasks.loaders import Row, RowError

_DOCCANO = ("label", "labels", "entities", "cats", "annotations")


def _is_doccano(row: Row) -> bool:
    shown = isinstance(row.get("text"), str) or isinstance(row.get("data"), str)
    return (
        shown
        and not row.keys() & {"response", "critique", "poor"}
        and any(isinstance(row.get(key), list | str) for key in _DOCCANO)
    )


def doccano(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion of a line of doccano: spans `[0, 5, "poor"]` or `entities`, categories, comments.

    Raises:
        ValueError: it has no text.
    """
    field = (
        "data" if "text" not in row and "data" in row and "response" not in names.chosen else names.response(row)
    )
    told = {**row, **row["meta"]} if isinstance(row.get("meta"), dict) else row
    texts = {name: value for name, value in told.items() if name != field}
    opinion = Opinion(text_in(row, "id") or fallback_id, row[field], names.prompt(texts))
    who = text_in(told, "annotator", "username", "user") or ("Comments" in row and _user_of(fallback_id)) or ""
    opinion = replace(opinion, annotator=who)
    for key in _DOCCANO:
        found = [row[key]] if isinstance(row.get(key), str) else row.get(key) or []
        opinion = replace(opinion, marks=(*opinion.marks, *(_entity(each) for each in found if _is_entity(each))))
        words = [each for each in found if isinstance(each, str)]
        for word in words if any(" " in word for word in words) else [words]:
            opinion = answered(key, word, names, opinion)
    for comment in row.get("Comments") or row.get("comments") or ():
        text = comment if isinstance(comment, str) else str(comment.get("text") or comment.get("comment") or "")
        opinion = replace(opinion, comments=(*opinion.comments, *filter(None, [text])))
    relations = {"relations": row["relations"]} if row.get("relations") else {}
    yield replace(opinion, aside=relations)


def _user_of(fallback_id: str) -> str:
    """The annotator of a file: doccano writes one for each user, under the user's name."""
    stem = fallback_id.rpartition("-")[0]
    return "" if stem in ("all", "unknown") else stem


def _is_entity(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) and bool(value)


def _entity(value: Any) -> Mark:
    if isinstance(value, dict):
        start, end = (value.get(f"{name}_offset", value.get(name)) for name in ("start", "end"))
        return Mark.of({"start": start, "end": end, "label": value.get("label")})
    start, end, label = value
    return Mark.of({"start": start, "end": end, "label": label})


_BRAT = re.compile(r"(T\d+)\t(\S+) (\d+ \d+(?:;\d+ \d+)*)\t(.*)")
_BRAT_NOTE = re.compile(r"#\d+\tAnnotatorNotes (\S+)\t(.*)")


def brat_row(path: Path) -> Row:
    """A brat file of annotations, with the text beside it.

    Raises:
        UserError: one of the two cannot be read.
    """
    text = path.with_suffix(".txt")
    if not text.is_file():
        raise UserError(f"{path} has marks and no text", f"put the text beside it, as {text.name}")
    with reading(path):
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    with reading(text):
        return {"id": path.stem, "text": text.read_bytes().decode("utf-8"), "brat": lines}


def brat(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion of one document: its text-bound marks (in parts, where they have parts) with their notes."""
    notes = {found[1]: found[2] for line in row["brat"] if (found := _BRAT_NOTE.match(line))}
    opinion = Opinion(str(row["id"]), row["text"])
    for line in row["brat"]:
        if found := _BRAT.match(line):
            places = [tuple(map(int, part.split())) for part in found[3].split(";")]
            reason = notes.get(found[1], "")
            quote = found[4] if len(places) == 1 and "\n" not in row["text"][slice(*places[0])] else ""
            marks = tuple(Mark(start, end, found[2], quote, reason) for start, end in places)
            opinion = replace(opinion, marks=(*opinion.marks, *marks))
        elif line.strip() and line[:1] not in "#T":
            opinion = replace(opinion, aside={**opinion.aside, "relations": [*_list(opinion, "relations"), line]})
    yield opinion


def _list(opinion: Opinion, name: str) -> list[Any]:
    found = opinion.aside.get(name)
    return found if isinstance(found, list) else []


def labelbox(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per label of a data row; an entity's `end` is its last character.

    Raises:
        ValueError: it has no text.
    """
    data = row["data_row"]
    id = text_in(data, "global_key", "external_id", "id") or fallback_id
    labels = [label for project in row["projects"].values() for label in project.get("labels") or ()]
    if not labels:
        yield skipped(id, "data rows without a label")
    for number, label in enumerate(labels, start=1):
        who = text_in(label.get("label_details") or {}, "created_by")
        opinion = Opinion(id if len(labels) == 1 else f"{id}-{number}", data["row_data"], annotator=who)
        found = label.get("annotations") or {}
        marks = [_labelbox_mark(each) for each in found.get("objects") or () if "location" in each]
        opinion = replace(opinion, marks=tuple(marks))
        for each in found.get("classifications") or ():
            opinion = answered(str(each.get("name")), _labelbox_answer(each), names, opinion)
        yield opinion


def _labelbox_mark(value: Mapping[str, Any]) -> Mark:
    place = value["location"]
    reasons = [_labelbox_answer(each) for each in value.get("classifications") or ()]
    reason = " ".join(str(each) for each in reasons if each)
    mark = {"start": place["start"], "end": place["end"], "label": value.get("name"), "text": place.get("token")}
    found = Mark.of({**mark, "reason": reason})
    return found._replace(end=found.end + 1)


def _labelbox_answer(value: Mapping[str, Any]) -> Any:
    if isinstance(text := value.get("text_answer"), dict):
        return text.get("content")
    if isinstance(one := value.get("radio_answer"), dict):
        return one.get("name")
    return [each.get("name") for each in value.get("checklist_answers") or ()]


def lighttag(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per annotator of an example.

    Raises:
        ValueError: it has no text.
    """
    id = text_in(row, "example_id", "id") or fallback_id
    told = row["metadata"] if isinstance(row.get("metadata"), dict) else {}
    people: dict[str, Opinion] = {}
    found = [*(row["annotations"] or ()), *(row.get("classifications") or ())]
    meant = [each for each in found if each.get("correct") is not False]
    yield from (skipped(id, "marks that a reviewer found wrong") for _ in found[len(meant) :])
    for each in meant:
        by = each.get("annotated_by") or each.get("classified_by") or [{}]
        for who in (text_in(person, "annotator") for person in by):
            opinion = people.get(who, Opinion(id, row["content"], names.prompt(told), annotator=who))
            people[who] = _lighttagged(opinion, each, names)
    if not found:
        yield skipped(id, "examples without an annotation")
    several = len(people) > 1
    yield from (replace(each, id=f"{id}-{who}" if several else id) for who, each in people.items())


def _lighttagged(opinion: Opinion, value: Mapping[str, Any], names: Names) -> Opinion:
    if value.get("start") is None:
        return answered("classification", text_in(value, "classname", "tag"), names, opinion)
    mark = Mark.of({**value, "label": value.get("tag"), "text": value.get("value")})
    return replace(opinion, marks=(*opinion.marks, mark))


def inception(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion in a UIMA CAS as JSON, as INCEpTION exports it: annotations of one's own types are marks.

    Raises:
        ValueError: it has no text.
    """
    features = row["%FEATURE_STRUCTURES"]
    found = features if isinstance(features, list) else list(features.values())
    text = next((each["sofaString"] for each in found if isinstance(each.get("sofaString"), str)), "")
    if not text:
        raise ValueError("the document has no text (sofaString)")
    own = [
        each for each in found if "begin" in each and str(each.get("%TYPE", "")).startswith(("custom.", "webanno."))
    ]
    marks = [Mark.of({"start": each["begin"], "end": each["end"], **_cas_words(each)}) for each in own]
    yield Opinion(fallback_id, text, marks=tuple(marks))


def _cas_words(value: Mapping[str, Any]) -> dict[str, Any]:
    """The label and the reason in the features of an annotation."""
    said = {key: word for key, word in value.items() if isinstance(word, str) and not key.startswith(("%", "@"))}
    label = text_in(said, "label", "value", "identifier", "category") or str(value["%TYPE"]).rpartition(".")[2]
    return {"label": label, "reason": text_in(said, "comment", "reason", "note")}


def _is_trace(row: Row) -> bool:
    return isinstance(row.get("outputs"), dict) and isinstance(row.get("feedback"), list)


def langsmith(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per source of feedback on a run: `feedback` has `key`, `score`, `value` and `comment`.

    Raises:
        ValueError: it has no text.
    """
    id, outputs, inputs = text_in(row, "id", "run_id") or fallback_id, row["outputs"], row.get("inputs") or {}
    if not row["feedback"]:
        yield skipped(id, "runs without feedback")
        return
    response, prompt = _only(outputs, names, "response"), _only(inputs, names, "prompt")
    if not response:
        raise RowError(
            "the outputs have no text, or several", f"say which: --map response={next(iter(outputs), 'KEY')}"
        )
    opinion = Opinion(id, response, prompt)
    for each in row["feedback"]:
        key = str(each.get("key") or "feedback")
        score = each["score"] if each.get("score") is not None else each.get("value")
        opinion = answered(key, score, names, opinion)
        opinion = replace(opinion, comments=(*opinion.comments, *filter(None, [text_in(each, "comment")])))
        if isinstance(each.get("correction"), dict):
            opinion = replace(opinion, corrected=_only(each["correction"], names, "corrected"))
    yield opinion


def _only(row: Mapping[str, Any], names: Names, ours: str) -> str:
    """The text that is named so, else the only one that there is."""
    texts = {name: text for name, text in row.items() if isinstance(text, str) and text}
    known = names.response(texts) if ours != "prompt" and names.key(texts, "response", ("output", "answer")) else ""
    key = names.key(texts, ours, ("question", "input", "prompt")) if ours == "prompt" else known
    return texts[key] if key else next(iter(texts.values())) if len(texts) == 1 else ""


_PHOENIX = ("attributes.input.value", "attributes.output.value")


def phoenix(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion on a span of Phoenix: columns `annotation.<name>.label`, `.score` and `.explanation`.

    Raises:
        ValueError: it has no text.
    """
    id = text_in(row, "context.span_id", "span_id", "id") or fallback_id
    prompt, response = (text_in(row, key) for key in _PHOENIX)
    if not response:
        raise ValueError(f"no text in {_PHOENIX[1]!r}")
    opinion = Opinion(id, response, prompt)
    for name, value in row.items():
        kind, _, what = name.rpartition(".")
        question = kind.removeprefix("annotation.").removeprefix("annotations.")
        labelled = row.get(f"{kind}.label") not in (None, "")
        if not kind.startswith("annotation") or what not in ("label", "score", "explanation"):
            continue
        if what == "explanation" and value:
            opinion = replace(opinion, comments=(*opinion.comments, str(value)))
        elif what == "label" or not labelled:
            opinion = answered(question, value, names, opinion)
    yield opinion


DOCCANO = Tool("doccano", _is_doccano, doccano)
BRAT = Tool("brat", lambda row: "brat" in row, brat, counting=CODE_POINTS)
LABELBOX = Tool("labelbox", lambda row: "data_row" in row and isinstance(row.get("projects"), dict), labelbox)
LIGHTTAG = Tool("lighttag", lambda row: "content" in row and isinstance(row.get("annotations"), list), lighttag)
INCEPTION = Tool(
    "inception", lambda row: "%FEATURE_STRUCTURES" in row, inception, counting=BROWSER._replace(crlf_is_one=False)
)
LANGSMITH = Tool("langsmith", _is_trace, langsmith)
PHOENIX = Tool("phoenix", lambda row: all(key in row for key in _PHOENIX), phoenix)
