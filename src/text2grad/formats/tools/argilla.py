"""Argilla's records, of version 2 (nested, or flat as data sets have them) and 1: what each person answered.

Which text a span question is on, and on which scale a rating question is, stands in the settings of the data set:
`settings.json` (or `.argilla/settings.json`) beside the records, or a file that has both.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import UserError
from text2grad.feedback import Feedback, from_json, reading
from text2grad.formats.importer import SCORE_SCALE, Importer, Names, Opinion, last_turn, own_scales, skip, text_in
from text2grad.formats.marks import LABELS, Mark, fits
from text2grad.formats.scale import Scale, of_options
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row


class Answer(NamedTuple):
    """What somebody answered to one question."""

    question: str
    value: Any
    who: str
    status: str


def _is_nested(row: Row) -> bool:
    return isinstance(row.get("fields"), dict) and "responses" in row


def _is_flat(row: Row) -> bool:
    return any(f"{name}.users" in row for name in row if name.endswith(".responses")) or any(
        map(_is_column, row.values())
    )


def _is_column(value: Any) -> bool:
    """Whether a column of version 1 as a data set has what people answered to a question."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and first.keys() >= {"user_id", "value", "status"}


def _fields(row: Row) -> dict[str, Any]:
    """The texts that were judged. In a flat row these are the columns without a dot that are no answers."""
    if _is_nested(row):
        return dict(row["fields"])
    left_out = ("id", "status", "external_id", "metadata", "_server_id")
    return {
        name: value
        for name, value in row.items()
        if "." not in name and "-suggestion" not in name and name not in left_out and not _is_column(value)
    }


def _answers(row: Row) -> Iterator[Answer]:
    responses = row.get("responses")
    if isinstance(responses, dict):  # version 2: question -> answers
        yield from (_answer(question, each) for question, found in responses.items() for each in found or ())
    elif isinstance(responses, list):  # version 1: person -> question -> answer
        for person in responses:
            for question, each in (person.get("values") or {}).items():
                yield _answer(question, {**person, "value": each["value"]})
    for name, column in row.items():
        if name.endswith(".responses"):
            who, status = _listed(row.get(f"{name}.users")), _listed(row.get(f"{name}.status"))
            for number, value in enumerate(_listed(column)):
                of = {key: all[number] for key, all in (("user_id", who), ("status", status)) if number < len(all)}
                yield _answer(name.removesuffix(".responses"), {**of, "value": value})
        elif _is_column(column) and name != "responses":
            yield from (_answer(name, each) for each in _transposed(column))


def _listed(value: Any) -> list[Any]:
    """A list, also as the text that a table has of it."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = literal_eval(value)
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"not a list of answers: {value[:40]!r}") from error
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


def _transposed(column: Any) -> list[dict[str, Any]]:
    """A list of answers, also where it is written as an answer of lists."""
    if isinstance(column, list):
        return column
    return [dict(zip(column, values, strict=True)) for values in zip(*column.values(), strict=True)]


def _answer(question: str, of: Mapping[str, Any]) -> Answer:
    who = of.get("user_id")
    return Answer(question, of.get("value"), "" if who is None else str(who), str(of.get("status") or "submitted"))


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """One opinion per person who submitted something; drafts, discarded and suggested answers are skipped."""
    fields = last_turn(_fields(row))
    field, id = names.response(fields), text_in(row, "external_id", "id") or fallback_id
    texts = {name: text for name, text in fields.items() if isinstance(text, str)}
    prompt = names.prompt({name: text for name, text in fields.items() if name != field})
    people: dict[str, Opinion] = {}
    answers = list(_answers(row))
    for each in answers:
        if each.status == "submitted":
            opinion = people.setdefault(each.who, Opinion(id, texts[field], prompt, each.who, part=each.who))
            _add(opinion, each, texts, field, names)
    yield from people.values()
    yield from (skip(id, f"answers with the status {e.status!r}") for e in answers if e.status != "submitted")
    if not answers:
        suggested = row.get("suggestions") or any(name.endswith(".suggestion") for name in row)
        yield skip(id, "records with suggestions alone" if suggested else "records that nobody answered")


def _add(opinion: Opinion, answer: Answer, texts: Mapping[str, str], field: str, names: Names) -> None:
    question, value = answer.question, answer.value
    if not (isinstance(value, list) and any(isinstance(each, dict) for each in value)):
        opinion.answer(question, value, names)
    elif not all("start" in each for each in value):
        opinion.aside[question] = value
    elif (about := names.about(question, texts, field)) == field:
        opinion.marks += map(Mark.of, value)
    else:
        for _ in value:
            opinion.misplace(about)


def read_names(path: Path, rows: Sequence[Row]) -> Names:
    """What the settings say; without them, the one text in which all spans of a question can be."""
    for source in (path.parent / ".argilla" / "settings.json", path.with_name("settings.json"), path):
        if source.is_file() and source.suffix.lower() == ".json":
            with reading(source):
                content = from_json(source.read_text(encoding="utf-8-sig"))
            # A file of settings, or one of records that has its settings.
            settings = content.get("settings", content) if isinstance(content, dict) else {}
            questions = settings.get("questions") if isinstance(settings, dict) else None
            if isinstance(questions, list) and questions:
                return _configured(questions, str(source))
    return Names(texts=dict(_only_text(rows)), scales=own_scales(rows))


def _configured(questions: Sequence[Mapping[str, Any]], source: str) -> Names:
    fields: dict[str, str] = {}
    scales: dict[str, Scale] = {}
    choices: dict[str, list[str]] = {}
    written: set[str] = set()
    for question in questions:
        of = {**question, **(question.get("settings") or {})}
        if "name" not in of:
            raise UserError(f"{source}: a question has no name", "take the settings.json that Argilla wrote")
        name = str(of["name"])
        if isinstance(of.get("field"), str):
            fields[name] = of["field"]
        options = of.get("options") or of.get("values") or of.get("labels") or []
        values = [each.get("value") if isinstance(each, dict) else each for each in options]
        if scale := of_options(values):
            scales[name] = replace(scale, declared=f"as {Path(source).name} says")
        elif of.get("type") == "label_selection":
            choices[name] = list(map(str, values))
        if of.get("type") == "text":
            written.add(name)
    return Names(texts=fields, scales=scales, options=choices, written=frozenset(written), source=source)


def _only_text(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Each span question with the only text in which all its spans can be."""
    possible: dict[str, set[str]] = {}
    for row in rows:
        texts = {name: text for name, text in _fields(row).items() if isinstance(text, str)}
        for answer in _answers(row):
            values = answer.value if isinstance(answer.value, list) else []
            spans = [each for each in values if isinstance(each, dict) and "start" in each]
            for mark in map(Mark.of, spans):
                held = {name for name, text in texts.items() if fits(mark, text)}
                possible[answer.question] = possible.get(answer.question, held) & held
    yield from ((question, next(iter(held))) for question, held in possible.items() if len(held) == 1)


IMPORTER = Importer("argilla", opinions, known=lambda row: _is_nested(row) or _is_flat(row), names=read_names)


def row_of(record: Feedback) -> Row:
    """A record as Argilla 2 has it; `opinions` reads it back."""
    who = str(record.meta.get("annotator", ""))
    spans = [
        {"start": s.start, "end": s.end, "label": LABELS[s.label], **({"reason": s.reason} if s.reason else {})}
        for s in record.spans
    ]
    values = {"spans": spans, "critique": record.critique, "score": record.score}
    responses = {
        name: [{"value": value, "status": "submitted", "user_id": who}]
        for name, value in values.items()
        if value is not None
    }
    fields = {"prompt": conversation_text(record.prompt), "response": record.response}
    return {"id": record.id, "fields": fields, "responses": responses, "metadata": SCORE_SCALE}
