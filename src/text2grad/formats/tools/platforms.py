"""Exports of other tools, a few lines each: doccano, LangSmith and Phoenix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from text2grad.feedback import Message
from text2grad.formats.conversations import response_of, with_conversation
from text2grad.formats.importer import Importer, Names, Opinion, skip, text_in
from text2grad.formats.marks import Mark
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


EXPORTS = (
    Importer("langsmith", langsmith, known=_is_trace),
    Importer("phoenix", phoenix, frozenset(_PHOENIX)),
)
DOCCANO = Importer("doccano", doccano, known=_is_doccano)
