"""Exports of other tools, a few lines each: doccano, brat, Labelbox, LightTag, INCEpTION, LangSmith and Phoenix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from text2grad.errors import UserError
from text2grad.feedback import Message, reading
from text2grad.formats.conversations import response_of, with_conversation
from text2grad.formats.importer import Importer, Names, Opinion, skip, text_in
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
    """The opinion of a line of doccano: spans `[0, 5, "poor"]` or `entities`, categories, comments."""
    in_data = "text" not in row and "data" in row and "response" not in names.chosen
    field = "data" if in_data else names.response(row)
    known = {**row, **row["meta"]} if isinstance(row.get("meta"), dict) else row
    prompt = names.prompt({name: value for name, value in known.items() if name != field})
    who, file = text_in(known, "annotator", "username", "user"), fallback_id.rpartition("-")[0]
    if not who and "Comments" in row and file not in ("all", "unknown"):
        who = file  # doccano writes a file for each user, under the user's name
    opinion = Opinion(text_in(row, "id") or fallback_id, row[field], prompt, who)
    for key in _DOCCANO:
        found = [row[key]] if isinstance(row.get(key), str) else row.get(key) or []
        opinion.marks += [_entity(each) for each in found if isinstance(each, dict | list | tuple) and each]
        words = [each for each in found if isinstance(each, str)]
        for word in words if any(" " in word for word in words) else [words]:
            opinion.answer(key, word, names)
    for each in row.get("Comments") or row.get("comments") or ():
        text = each if isinstance(each, str) else str(each.get("text") or each.get("comment") or "")
        opinion.comments += filter(None, [text])
    opinion.aside = {"relations": row["relations"]} if row.get("relations") else {}
    yield opinion


def _entity(value: Any) -> Mark:
    if isinstance(value, dict):
        start, end = (value.get(f"{name}_offset", value.get(name)) for name in ("start", "end"))
        return Mark.of({"start": start, "end": end, "label": value.get("label")})
    start, end, label = value
    return Mark.of({"start": start, "end": end, "label": label})


_BRAT = re.compile(r"(T\d+)\t(\S+) (\d+ \d+(?:;\d+ \d+)*)\t(.*)")
_BRAT_NOTE = re.compile(r"#\d+\tAnnotatorNotes (\S+)\t(.*)")


def brat_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """The one row of a brat file of annotations, with the text beside it, and where it is.

    Raises:
        UserError: one of the two cannot be read.
    """
    text = path.with_suffix(".txt")
    if not text.is_file():
        raise UserError(f"{path} has marks and no text", f"put the text beside it, as {text.name}")
    with reading(path):
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    with reading(text):
        yield "document", {"id": path.stem, "text": text.read_bytes().decode("utf-8"), "brat": lines}


def brat(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion of one document: its text-bound marks (in parts, where they have parts) with their notes."""
    notes = {found[1]: found[2] for line in row["brat"] if (found := _BRAT_NOTE.match(line))}
    opinion = Opinion(str(row["id"]), row["text"])
    relations = []
    for line in row["brat"]:
        if found := _BRAT.match(line):
            places = [tuple(map(int, part.split())) for part in found[3].split(";")]
            quote = found[4] if len(places) == 1 and "\n" not in row["text"][slice(*places[0])] else ""
            reason = notes.get(found[1], "")
            opinion.marks += [Mark(start, end, found[2], quote, reason) for start, end in places]
        elif line.strip() and line[:1] not in "#T":
            relations.append(line)
    opinion.aside = {"relations": relations} if relations else {}
    yield opinion


def labelbox(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per label of a data row; an entity's `end` is its last character."""
    data = row["data_row"]
    id = text_in(data, "global_key", "external_id", "id") or fallback_id
    labels = [label for project in row["projects"].values() for label in project.get("labels") or ()]
    if not labels:
        yield skip(id, "data rows without a label")
    for number, label in enumerate(labels, start=1):
        who = text_in(label.get("label_details") or {}, "created_by")
        opinion = Opinion(id, data["row_data"], annotator=who, part=str(number))
        found = label.get("annotations") or {}
        opinion.marks = [_labelbox_mark(each) for each in found.get("objects") or () if "location" in each]
        for each in found.get("classifications") or ():
            opinion.answer(str(each.get("name")), _labelbox_answer(each), names)
        yield opinion


def _labelbox_mark(value: Mapping[str, Any]) -> Mark:
    reasons = map(_labelbox_answer, value.get("classifications") or ())
    known = {"label": value.get("name"), "reason": " ".join(str(each) for each in reasons if each)}
    mark = Mark.of({**value["location"], **known}, text="token")
    return mark.at(mark.start, mark.end + 1)


def _labelbox_answer(value: Mapping[str, Any]) -> Any:
    for kind, key in (("text_answer", "content"), ("radio_answer", "name")):
        if isinstance(answer := value.get(kind), dict):
            return answer.get(key)
    return [each.get("name") for each in value.get("checklist_answers") or ()]


def lighttag(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per annotator of an example."""
    id = text_in(row, "example_id", "id") or fallback_id
    prompt = names.prompt(row["metadata"] if isinstance(row.get("metadata"), dict) else {})
    people: dict[str, Opinion] = {}
    found = [*(row["annotations"] or ()), *(row.get("classifications") or ())]
    meant = [each for each in found if each.get("correct") is not False]
    yield from (skip(id, "marks that a reviewer found wrong") for _ in found[len(meant) :])
    for each in meant:
        for person in each.get("annotated_by") or each.get("classified_by") or [{}]:
            who = text_in(person, "annotator")
            opinion = people.setdefault(who, Opinion(id, row["content"], prompt, who, part=who))
            if each.get("start") is None:
                opinion.answer("classification", text_in(each, "classname", "tag"), names)
            else:
                opinion.marks.append(Mark.of(each, label="tag", text="value"))
    if not found:
        yield skip(id, "examples without an annotation")
    yield from people.values()


def inception(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion in a UIMA CAS as JSON, as INCEpTION exports it: annotations of one's own types are marks."""
    features = row["%FEATURE_STRUCTURES"]
    found = features if isinstance(features, list) else list(features.values())
    text = next((each["sofaString"] for each in found if isinstance(each.get("sofaString"), str)), "")
    if not text:
        raise ValueError("the document has no text (sofaString)")
    own = ("custom.", "webanno.")
    marks = [each for each in found if "begin" in each and str(each.get("%TYPE", "")).startswith(own)]
    yield Opinion(fallback_id, text, marks=[Mark.of({**each, **_cas_words(each)}, start="begin") for each in marks])


def _cas_words(value: Mapping[str, Any]) -> dict[str, Any]:
    """The label and the reason in the features of an annotation."""
    words = {key: word for key, word in value.items() if isinstance(word, str) and not key.startswith(("%", "@"))}
    label = text_in(words, "label", "value", "identifier", "category") or str(value["%TYPE"]).rpartition(".")[2]
    return {"label": label, "text": "", "reason": text_in(words, "comment", "reason", "note")}


def langsmith(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per source of feedback on a run: `feedback` has `key`, `score`, `value` and `comment`."""
    id, outputs, inputs = text_in(row, "id", "run_id") or fallback_id, row["outputs"], row.get("inputs") or {}
    if not row["feedback"]:
        yield skip(id, "runs without feedback")
        return
    response: str = _only(outputs, names, "response")
    prompt: str | tuple[Message, ...] = _only(inputs, names, "prompt")
    if "response" not in names.chosen and (talk := with_conversation(row, names.write)) is not row:
        response, prompt = response_of(talk), tuple(map(Message.model_validate, talk.get("prompt", ())))
    if not response:
        raise RowError(
            "the outputs have no text, or several", f"say which: --map response={next(iter(outputs), 'KEY')}"
        )
    opinion = Opinion(id, response, prompt)
    for each in row["feedback"]:
        value = each["score"] if each.get("score") is not None else each.get("value")
        opinion.answer(str(each.get("key") or "feedback"), value, names)
        opinion.comments += filter(None, [text_in(each, "comment")])
        if isinstance(each.get("correction"), dict):
            opinion.corrected = _only(each["correction"], names, "corrected")
    yield opinion


def _only(row: Mapping[str, Any], names: Names, ours: str) -> str:
    """The text that is named so, else the only one that there is."""
    texts = {name: text for name, text in row.items() if isinstance(text, str) and text}
    if ours == "prompt":
        key = names.key(texts, ours, ("question", "input", "prompt"))
    else:
        key = names.response(texts) if names.key(texts, "response", ("output", "answer")) else ""
    return texts[key] if key else next(iter(texts.values())) if len(texts) == 1 else ""


_PHOENIX = ("attributes.input.value", "attributes.output.value")


def phoenix(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion on a span of Phoenix: columns `annotation.<name>.label`, `.score` and `.explanation`."""
    prompt, response = (text_in(row, key) for key in _PHOENIX)
    if not response:
        raise ValueError(f"no text in {_PHOENIX[1]!r}")
    opinion = Opinion(text_in(row, "context.span_id", "span_id", "id") or fallback_id, response, prompt)
    for name, value in row.items():
        kind, _, what = name.rpartition(".")
        has_label = row.get(f"{kind}.label") not in (None, "")
        if not kind.startswith("annotation"):
            continue
        if what == "explanation" and value:
            opinion.comments.append(str(value))
        elif what == "label" or (what == "score" and not has_label):
            opinion.answer(kind.removeprefix("annotation.").removeprefix("annotations."), value, names)
    yield opinion


def _is_trace(row: Row) -> bool:
    return isinstance(row.get("outputs"), dict) and isinstance(row.get("feedback"), list)


CAS_STEPS = BROWSER._replace(crlf_is_one=False)
EXPORTS = (
    Importer(
        "labelbox", labelbox, frozenset({"data_row"}), known=lambda row: isinstance(row.get("projects"), dict)
    ),
    Importer(
        "lighttag", lighttag, frozenset({"content"}), known=lambda row: isinstance(row.get("annotations"), list)
    ),
    Importer("inception", inception, frozenset({"%FEATURE_STRUCTURES"}), counting=CAS_STEPS),
    Importer("langsmith", langsmith, known=_is_trace),
    Importer("phoenix", phoenix, frozenset(_PHOENIX)),
    Importer("brat", brat, frozenset({"brat"}), counting=CODE_POINTS),
)
DOCCANO = Importer("doccano", doccano, known=_is_doccano)
