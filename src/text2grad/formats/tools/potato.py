"""Potato: its JSON Lines export and a person's `user_state.json`, with errors by type and severity (`error_span`).

Neither has the texts: they are in the project's data files, which its configuration names. The weight of a severity
is its share of the worst one's, so a minor error counts for less than a critical one. The browser counts offsets in
UTF-16 units and moves them where a selection begins with white space, so what was marked decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from text2grad.feedback import Feedback, from_json
from text2grad.formats.importer import NO_ERROR, SCORE_SCALE, Importer, Names, Opinion, own_scales, skip
from text2grad.formats.marks import BROWSER, LABELS, Mark, utf16_offset
from text2grad.formats.scale import Scale, of_options
from text2grad.strict_yaml import YAMLMistakeError, parse_yaml
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row, RowError, placed_rows

SEVERITIES: Mapping[str, float] = {"Minor": 1.0, "Major": 5.0, "Critical": 10.0}
"""Points of an error, where a project does not say others."""
MAX_SCORE = 100
LEVELS = 4
"""Folders above an export, in which a project's configuration is looked for."""
_ON = ("true", True, "on")
_STATE = ("user_id", "instance_id_to_label_to_value", "instance_id_to_span_to_value")


@dataclass(frozen=True)
class Project:
    """What a configuration says: the items by their id, the key of their text, and the questions by their name."""

    items: Mapping[str, Row]
    text: str
    questions: Mapping[str, Row]


def exported(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion of a line: what one person said of one item."""
    yield _opinion(str(row["instance_id"]), str(row.get("user_id") or ""), row["labels"], row["spans"], row, names)


def state(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinions of one person, as the server keeps them."""
    labels, spans = (row.get(name) or {} for name in _STATE[1:])
    for id in dict.fromkeys([*labels, *spans]):
        said: dict[str, dict[str, Any]] = {}
        for key, value in labels.get(id, ()):
            said.setdefault(str(key["schema"]), {})[str(key["name"])] = value
        marked: dict[str, list[Row]] = {}
        for span, _ in spans.get(id, ()):
            marked.setdefault(str(span["schema"]), []).append(span)
        yield _opinion(str(id), str(row["user_id"]), said, marked, {}, names)


def _opinion(
    id: str,
    who: str,
    labels: Mapping[str, Mapping[str, Any]],
    spans: Mapping[str, Sequence[Row]],
    row: Row,
    names: Names,
) -> Opinion:
    project = names.beside.get("project") or Project({}, "text", {})
    item = project.items.get(id, row)
    own = replace(names, chosen={"response": (project.text,), **names.chosen})
    if not own.key(item, "response", ()):
        cure = "put the project's configuration (config.yaml) and its data files beside it, as they were"
        raise RowError(f"the text of item {id!r} is not here", cure)
    field = own.response(item)
    prompt = names.prompt({name: value for name, value in item.items() if name != field})
    opinion = Opinion(id, item[field], prompt, who)
    for question, answers in labels.items():
        if (found := _errors(answers)) is None:
            _answer(opinion, question, answers, names)
        else:
            _add_errors(opinion, found, project.questions.get(question, {}))
    for marks in spans.values():
        # Their `text` is what an export cut out, counted in code points: of emoji it is other words.
        opinion.marks += [Mark.of(mark, label="name", text="quote") for mark in marks]
    return opinion if opinion.says_something else skip(id, "items without an annotation")


def _errors(answers: Mapping[str, Any]) -> Row | None:
    """What an `error_span` question holds: JSON in a text."""
    for value in answers.values():
        if isinstance(value, str) and value[:1] == "{":
            try:
                found = from_json(value)
            except json.JSONDecodeError:
                continue
            if isinstance(found, dict) and isinstance(found.get("errors"), list):
                return found
    return None


def _add_errors(opinion: Opinion, found: Row, question: Row) -> None:
    """Errors as poor marks, what they are as the critique, and Potato's score, which is the verdict."""
    declared = {str(each["name"]): abs(float(each["weight"])) for each in question.get("severities") or ()}
    points = declared or SEVERITIES
    worst = max(points.values()) or 1.0
    for error in found["errors"]:
        severity = str(error.get("severity") or "")
        kind = "/".join(filter(None, (str(error.get(key) or "") for key in ("type", "subtype"))))
        reason = str(error.get("reason") or f"{kind} ({severity})")
        weight = points.get(severity, worst) / worst
        mark = Mark.of({**error, "label": "error" if weight else severity, "reason": reason})
        opinion.marks.append(mark._replace(weight=weight or 1.0))  # an error without points is no criticism
    if "score" in found:
        opinion.score = Scale(0, float(question.get("max_score", MAX_SCORE))).score(found["score"])
        said = [f"{mark.reason}: {mark.text!r}." for mark in opinion.marks]
        opinion.comments.append(" ".join(said) or NO_ERROR)


def _answer(opinion: Opinion, question: str, answers: Mapping[str, Any], names: Names) -> None:
    """The answer to another question: what was chosen, a number, or words."""
    chosen = [name for name, value in answers.items() if value in _ON or str(value) == name]
    for name, value in answers.items():
        if name not in chosen:
            opinion.answer(question if len(answers) == 1 else f"{question}.{name}", value, names)
    if chosen:
        opinion.answer(question, chosen if len(chosen) > 1 else chosen[0], names)


# The project: its configuration and the items of its data files.


def read_names(path: Path, rows: Sequence[Row]) -> Names:
    """The project that an export is of, and the scales of its questions."""
    asked = {name for row in rows[:1] for name in row.get("labels") or ()}
    for folder in path.absolute().parents[:LEVELS]:
        for file in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
            config = _config(file)
            schemes = config.get("annotation_schemes")
            if (
                isinstance(schemes, list)
                and config.get("data_files")
                and asked <= {_name(each) for each in schemes}
            ):
                return _configured(file, config, [each for each in schemes if isinstance(each, dict)])
    return Names(scales=own_scales(rows))


def _config(file: Path) -> Row:
    try:
        found = parse_yaml(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, YAMLMistakeError):
        return {}
    return found if isinstance(found, dict) else {}


def _name(scheme: Any) -> str:
    return str(scheme.get("name")) if isinstance(scheme, dict) else ""


def _configured(file: Path, config: Row, schemes: Sequence[Row]) -> Names:
    keys = config.get("item_properties") or {}
    scales = {_name(each): scale for each in schemes if (scale := _scale(each, f"as {file.name} says"))}
    items = {str(row.get(keys.get("id_key", "id"))): row for row in _items(file.parent, config)}
    project = Project(items, str(keys.get("text_key", "text")), {_name(each): each for each in schemes})
    return Names(scales=scales, source=str(file), beside={"project": project})


def _scale(scheme: Row, declared: str) -> Scale | None:
    kind = scheme.get("annotation_type")
    if kind == "likert":
        return Scale(1, float(scheme["size"]), declared)
    if kind in ("slider", "number") and {"min_value", "max_value"} <= scheme.keys():
        return Scale(float(scheme["min_value"]), float(scheme["max_value"]), declared)
    labels = [each.get("name") if isinstance(each, dict) else each for each in scheme.get("labels") or ()]
    return of_options(labels) if kind == "radio" else None


def _items(folder: Path, config: Row) -> Iterator[Row]:
    """The rows of the data files that lie in the project's own folder."""
    task = folder / str(config.get("task_dir") or ".")
    for name in config["data_files"]:
        for file in (task / str(name), folder / str(name)):
            if file.is_file() and file.resolve().is_relative_to(folder.resolve()):
                yield from (row for _, row in placed_rows(file))
                break


EXPORTED = Importer(
    "potato", exported, frozenset({"instance_id", "labels", "spans"}), names=read_names, counting=BROWSER
)
STATE = Importer("potato", state, frozenset(_STATE), names=read_names, counting=BROWSER)


def row_of(record: Feedback) -> Row:
    """A record as an item of a Potato project, with its annotation as Potato exports it; `exported` reads it back.

    Poor spans are errors of the question `errors`; good ones are marks of `marks`: Potato's errors are all poor.
    """
    errors, praise = [], []
    for number, span in enumerate(record.spans):
        start, end = (utf16_offset(record.response, place) for place in (span.start, span.end))
        place = {"start": start, "end": end, "reason": span.reason}
        if span.label < 0:
            kind = {"text": span.text, "type": "Error", "subtype": "", "severity": _severity(span.weight)}
            errors.append({**place, **kind})
        else:
            name = LABELS[span.label]
            praise.append(
                {
                    **place,
                    "quote": span.text,
                    "schema": "marks",
                    "name": name,
                    "title": name,
                    "id": f"span-{number}",
                }
            )
    answers = {
        "errors": json.dumps({"errors": errors}, ensure_ascii=False) if errors else "",
        "critique": record.critique,
        "score": "" if record.score is None else str(record.score),
    }
    return {
        "id": record.id,
        "text": record.response,
        "prompt": conversation_text(record.prompt),
        "instance_id": record.id,
        "user_id": str(record.meta.get("annotator", "")),
        "labels": {name: {name: value} for name, value in answers.items() if value},
        "spans": {"marks": praise} if praise else {},
        "links": {},
        "meta": SCORE_SCALE,
    }


def _severity(weight: float) -> str:
    """The severity whose share of the worst is nearest."""
    worst = max(SEVERITIES.values())
    return min(SEVERITIES, key=lambda name: abs(SEVERITIES[name] / worst - weight))
