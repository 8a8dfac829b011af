"""Exports of annotation tools and tracing platforms: an `Importer` for each, in `IMPORTERS`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from text2grad.data.conversations import Exchange, find_messages, read_exchange
from text2grad.data.files import Row, RowError, find_texts
from text2grad.data.keys import PROMPT_KEYS, TOOL_RESPONSE_KEYS
from text2grad.data.opinions import Importer, Names, Opinion, find_text, skipped_opinion, split_last_turn
from text2grad.data.scale import Scale, parse_number, scale_of_numbers, score_word
from text2grad.data.spans.marks import (
    BROWSER,
    CODE_POINTS,
    HUMAN,
    LABELS,
    Mark,
    fits_text,
    to_code_points,
)
from text2grad.errors import UserError
from text2grad.feedback import Source
from text2grad.json_text import from_json
from text2grad.jsonl import reading


class RunKeys(NamedTuple):
    """The keys of a run: its output and input, the list of answers about it, and what they hold.

    Of `ids`, `value` and `annotator`, the first that is filled counts.
    """

    output: str
    input: str
    answers: str
    question: str
    value: tuple[str, ...]
    annotator: tuple[str, ...] = ()
    ids: tuple[str, ...] = ("id",)


LANGSMITH = RunKeys("outputs", "inputs", "feedback", "key", ("score", "value"), ids=("id", "run_id"))
LANGFUSE = RunKeys(
    "output", "input", "scores", "name", ("stringValue", "value"), ("authorUserId", "author_user_id")
)


def _start_opinion(
    row: Row,
    exchange: Exchange,
    fallback_id: str,
    names: Names,
    ids: Sequence[str] = ("id",),
    annotators: Sequence[str] = (),
    reads: Sequence[str] = (),
) -> Opinion:
    """Return an opinion without its judgement; `reads` are keys of texts that it will have."""
    with_meta = _with_meta(row)
    id, annotator = find_text(with_meta, *ids) or fallback_id, find_text(with_meta, *annotators)
    opinion = Opinion(id, exchange.response or "", exchange.prompt, annotator)
    read_keys = {*reads, *ids, *annotators, *sum(names.mapped.values(), ())}
    opinion.unread, opinion.prompt_key = find_texts(exchange.extra, read_keys), exchange.prompt_key
    return opinion


def _with_meta(row: Row) -> Row:
    return {**row, **row["meta"]} if isinstance(row.get("meta"), dict) else row


def _read_by_keys(keys: Sequence[str], row: Row, names: Names) -> Exchange:
    """Read the response under the first of `keys`, and the prompt."""
    return names.exchange(_with_meta(row), names.response(row, keys))


# Runs with answers: LangSmith, Langfuse, Phoenix.


def _read_answers(keys: RunKeys, row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield one opinion for each person who answered or commented."""
    if not (row[keys.answers] or row.get("comments")):
        yield skipped_opinion("runs without feedback")
        return
    exchange = _read_run(keys.output, keys.input, row, names)
    opinion = _start_opinion(row, exchange, fallback_id, names, keys.ids)
    people: dict[str, Opinion] = {}
    for answer in row[keys.answers]:
        if "elsewhere" in answer:
            yield skipped_opinion("scores and comments on observations that are not in the file")
            continue
        person = _person(people, opinion, answer, keys)
        value = next((answer[key] for key in keys.value if answer.get(key) is not None), None)
        if answer.get("dataType") == "CORRECTION":
            person.corrected, value = str(value), None
        person.add_answer(find_text(answer, keys.question) or keys.answers, value, names)
        person.comments += filter(None, [find_text(answer, "comment")])
        if isinstance(answer.get("correction"), dict):
            person.corrected = _only_text(answer["correction"], names, "corrected")
    for comment in row.get("comments") or ():
        if isinstance(comment, dict) and find_text(comment, "content"):
            _add_comment(_person(people, opinion, comment, keys), comment, row)
    yield from people.values()


def _person(people: dict[str, Opinion], opinion: Opinion, answer: Row, keys: RunKeys) -> Opinion:
    """Return the opinion of the person, or of the tool's own judge, who gave an answer."""
    annotator = find_text(answer, *keys.annotator)
    is_model = answer.get("source") == "EVAL"
    source = Source(kind="llm", model=find_text(answer, keys.question)) if is_model else HUMAN
    part = source.model if is_model else annotator
    new = Opinion(opinion.id, opinion.response, opinion.prompt, annotator, source=source, part=part or None)
    new.unread, new.prompt_key = opinion.unread, opinion.prompt_key
    return people.setdefault(part, new)


_PHOENIX_KEYS = ("attributes.output.value", "attributes.input.value")


def _read_phoenix(row: Row, fallback_id: str, names: Names) -> list[Opinion]:
    """Read `NAME.label`, or else `NAME.score`, as answers and `NAME.explanation` as comments."""
    exchange = _read_run(*_PHOENIX_KEYS, row, names)
    opinion = _start_opinion(row, exchange, fallback_id, names, ("context.span_id", "span_id", "id"))
    for name, value in row.items():
        question, _, part = name.rpartition(".")
        if not question.startswith("annotation"):
            continue
        if part == "explanation" and value:
            opinion.comments.append(str(value))
        elif part == "label" or (part == "score" and row.get(f"{question}.label") in (None, "")):
            opinion.add_answer(question.partition(".")[2], value, names)
    return [opinion]


def _read_run(outputs: str, inputs: str, row: Row, names: Names) -> Exchange:
    """Read the response in a run's outputs and the prompt in its inputs.

    Both are messages, text, or objects with texts.

    Raises:
        ValueError: no text is the response.
    """
    answer, question = _decode_json(row[outputs]), _decode_json(row.get(inputs))
    response: Any = [] if "response" in names.mapped else find_messages(answer)
    response = response or _only_text(answer, names, "response")
    if not response:
        key = next(iter(answer or ()), "KEY") if isinstance(answer, dict) else "KEY"
        raise RowError(f"no text, or several, in {outputs!r}", f"name its key: --map response={key}")
    prompt: Any = [] if "prompt" in names.mapped else find_messages(question)
    inner = question if isinstance(question, dict) and not prompt else {}
    texts = {key: text for key, text in inner.items() if isinstance(text, str) and text}
    keys = [key for key in names.mapped.get("prompt", ("question", "input", "prompt")) if key in texts]
    if "prompt" not in names.mapped:
        keys = keys[:1] or list(texts) * (len(texts) == 1)
    prompt = prompt or "\n\n".join(texts[key] for key in keys) or (question if isinstance(question, str) else "")
    exchange = read_exchange({"prompt": prompt, "response": response}, names.write)
    return replace(exchange, extra=find_texts(texts, keys), prompt_key=next(iter(keys), ""))


def _only_text(value: Any, names: Names, field: str) -> str:
    """Return a text; of an object, the text at a key of our field, else its only text, else ""."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else ""
    texts = {key: text for key, text in value.items() if isinstance(text, str) and text}
    key = names.key(texts, field, ("output", "answer"))
    return texts[key] if key else next(iter(texts.values())) if len(texts) == 1 else ""


# Prodigy: labelled spans, a label, a choice, or the text alone, and the annotator's decision.

PAIRS_CURE = "train on pairs with TRL's DPOTrainer, for example; feedback says what is good or poor in one answer"
_PRODIGY_TEXTS = ("text", "response", "output", "completion", "html")
_PRODIGY_WRITTEN = ("critique", "user_input", "comment", "corrected", "score")


def _is_prodigy(row: Row) -> bool:
    return row.get("answer") in ("accept", "reject", "ignore") and bool(
        row.keys() & {"text", "response", "html", "options"}
    )


def _read_prodigy(row: Row, fallback_id: str, names: Names) -> list[Opinion]:
    """Read the annotator's words, and accepted marks and choices.

    A rejected label is the opposite of an accepted one. Rejected spans, or a rejected choice, are a
    failure, since the annotator does not say what is right instead.
    """
    if row["answer"] == "ignore":
        return [skipped_opinion("answers 'ignore'")]
    if "options" in row and not names.key(row, "response", _PRODIGY_TEXTS):
        raise RowError("these are pairs of answers: options to choose from, and no response", PAIRS_CURE)
    exchange, people = _read_by_keys(_PRODIGY_TEXTS, row, names), ("_annotator_id", "_session_id")
    reads = ("label", *_PRODIGY_WRITTEN)
    opinion = _start_opinion(row, exchange, fallback_id, names, annotators=people, reads=reads)
    row = _with_meta(row)
    mapped = [key for keys in names.mapped.values() for key in keys]
    for key in dict.fromkeys([*_PRODIGY_WRITTEN, *mapped]):
        if row.get(key) != opinion.response:
            opinion.add_answer(key, row.get(key), names)
    others = [key for key in row if key.startswith(("field_", "relations")) and key not in opinion.ratings]
    opinion.aside |= {key: row[key] for key in others}
    is_accepted = row["answer"] == "accept"
    if label := row.get("label"):
        sign = names.labels().get(str(label).strip().casefold())
        opposite = f"not {label}" if sign is None else LABELS[-sign]
        opinion.add_answer("label", label, names) if is_accepted else opinion.ratings.update(label=opposite)
        return [opinion]
    if "options" in row:
        texts = {str(option.get("id")): option.get("text") or option.get("id") for option in row["options"]}
        choices = [texts.get(str(choice), choice) for choice in row.get("accept") or ()]
        opinion.add_answer("choice", choices if is_accepted else None, names)
    if row.get("spans") is not None:
        opinion.marks = list(map(Mark.parse, row["spans"])) if is_accepted else []
    elif "options" not in row and not opinion.comments and not opinion.ratings:
        opinion.ratings["answer"] = row["answer"]
        return [opinion]
    opinion.failure = "" if is_accepted else "the annotator rejected it"
    return [opinion]


def _prodigy_names(path: Path, rows: Sequence[Row]) -> Names:
    """Read the scale of a choice from its options, if they are numbers."""
    options: list[Row] = next((row["options"] for row in rows if row.get("options")), [])
    scale = scale_of_numbers(option.get("text") or option.get("id") for option in options)
    return Names(scales={"choice": scale} if scale else {})


# Langfuse: traces and observations of its API, its JSON download, and its tables as JSON or CSV (a
# column for each score). A score or comment is on the trace or on one of its observations. A
# comment may be on ranges of the output: lists of JSON paths and of UTF-16 offsets in the texts
# there. Only its words tell whether it is praise or criticism.

_LANGFUSE_COLUMNS = """
id timestamp name userId sessionId release version environment tags bookmarked public input output metadata latency
usage inputCost outputCost totalCost level errorCount warningCount defaultCount debugCount observationCount
inputTokens outputTokens totalTokens promptTokens completionTokens comments traceId traceName traceTags
traceTimestamp type startTime endTime completionStartTime parentObservationId statusMessage model modelId
modelParameters promptId promptName promptVersion unit timeToFirstToken usageDetails costDetails
providedUsageDetails providedCostDetails toolDefinitions toolCalls toolCallNames inputPrice outputPrice totalPrice
createdAt updatedAt projectId externalId htmlPath observations scores
"""
_LANGFUSE_TABLE = frozenset(_LANGFUSE_COLUMNS.split())
_STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]")


def _langfuse_rows(row: Row) -> Iterator[Row]:
    """Yield the trace and its judged observations, each with its own `scores` and `comments`."""
    trace = {**row, **row["trace"]} if isinstance(row.get("trace"), dict) else row
    trace = {key: _decode_json(value) for key, value in trace.items()}
    if not isinstance(trace.get("scores"), list):
        columns = ((key, _values(value)) for key, value in trace.items() if key not in _LANGFUSE_TABLE)
        trace["scores"] = [{"name": key, "value": value} for key, values in columns for value in values]
    observations = {
        item["id"]: item for item in _objects(trace.get("observations")) if "id" in item and "output" in item
    }
    judged_rows: dict[str, Row] = {}  # by observation, "" for the trace
    for key in ("scores", "comments"):
        for entry in _objects(trace.get(key)):
            is_comment = entry.get("objectType") == "OBSERVATION"
            target = entry.get("objectId") if is_comment else entry.get("observationId")
            id = str(target) if target in observations else ""
            new = {**observations.get(id, trace), "scores": [], "comments": []}
            judged_row = judged_rows.setdefault(id, new)
            if target and not id and target != trace.get("id"):
                judged_row["scores"].append({"elsewhere": target})
            else:
                judged_row[key].append(entry)
    yield from judged_rows.values() or [{**trace, "scores": []}]


def _values(value: Any) -> list[Any]:
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if entry not in (None, "") and not isinstance(entry, dict | list)]


def _objects(value: Any) -> list[Row]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _add_comment(opinion: Opinion, comment: Row, row: Row) -> None:
    """Add a comment, and its ranges as marks; the label is its words if they are a verdict."""
    words = find_text(comment, "content")
    ranges = [_values(comment.get(key)) for key in ("path", "rangeStart", "rangeEnd")]
    label = words.strip() if score_word(words) else "comment"
    quotes = []
    for path, start, end in zip(*ranges, strict=True):
        text = _at_path(row.get(find_text(comment, "dataField") or "output"), path)
        if comment.get("dataField", "output") != "output" or text != opinion.response:
            opinion.count_misplaced(f"{comment.get('dataField')} {path}")
            continue
        mark = Mark.parse({"start": start, "end": end, "label": label, "reason": words})
        (placed,) = to_code_points([mark], text, BROWSER)
        quotes.append(text[placed.start : placed.end] if placed.start >= 0 else "")
        opinion.marks.append(mark)
    opinion.comments.append(f"{', '.join(map(repr, filter(None, quotes)))}: {words}" if any(quotes) else words)


def _at_path(value: Any, path: str) -> Any:
    """Return the value at a JSON path (`$`, `$.answer`, `$[0].text`), or None."""
    for name, number, quoted in _STEP.findall(path):
        try:
            value = value[int(number)] if number else value[name or quoted]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _read_langfuse(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    for judged_row in _langfuse_rows(row):
        yield from _read_answers(LANGFUSE, judged_row, fallback_id, names)


def _is_langfuse(row: Row) -> bool:
    trace = row.get("trace")
    if isinstance(trace, dict) and isinstance(row.get("observations"), list):
        row = trace
    lists = any(isinstance(row.get(name), list) for name in ("scores", "comments"))
    return {"input", "output"} <= row.keys() and (lists or len(row.keys() & _LANGFUSE_TABLE) > 5)


# doccano: spans, categories and comments; it writes one file for each user, named after the user.

_DOCCANO = ("label", "labels", "entities", "cats", "annotations")
_DOCCANO_COMMENTS = ("Comments", "comments")


def _is_doccano(row: Row) -> bool:
    has_text = isinstance(row.get("text"), str) or isinstance(row.get("data"), str)
    has_labels = any(isinstance(row.get(key), list | str) for key in _DOCCANO)
    return has_text and has_labels and not row.keys() & {"response", "critique", "poor"}


def _read_doccano(row: Row, fallback_id: str, names: Names) -> list[Opinion]:
    """Read spans (objects or `[start, end, label]`) as marks, texts as labels of the response."""
    exchange = _read_by_keys((*TOOL_RESPONSE_KEYS, "data"), row, names)
    people, reads = ("annotator", "username", "user"), (*_DOCCANO, *_DOCCANO_COMMENTS)
    opinion = _start_opinion(row, exchange, fallback_id, names, annotators=people, reads=reads)
    user = fallback_id.rpartition("-")[0]
    if not opinion.annotator and "Comments" in row and user not in ("all", "unknown"):
        opinion.annotator = user
    for key in _DOCCANO:
        value = row.get(key)
        entries = [value] if isinstance(value, str) else value or []
        opinion.marks += [_parse_entity(entry) for entry in entries if isinstance(entry, dict | list) and entry]
        words = [entry for entry in entries if isinstance(entry, str)]
        for word in words if any(" " in word for word in words) else [words]:
            opinion.add_answer(key, word, names)
    for comment in (comment for key in _DOCCANO_COMMENTS for comment in row.get(key) or ()):
        text = comment if isinstance(comment, str) else find_text(comment, "text", "comment")
        opinion.comments += filter(None, [text])
    opinion.aside |= {"relations": row["relations"]} if row.get("relations") else {}
    return [opinion]


def _parse_entity(value: Any) -> Mark:
    if isinstance(value, dict):
        start, end = (value.get(f"{name}_offset", value.get(name)) for name in ("start", "end"))
        label = value.get("label")
    else:
        start, end, label = value
    return Mark.parse({"start": start, "end": end, "label": label})


# Argilla 2, nested or flat (as in its data sets on the hub): the answers of each person. The text
# of a span question and the scale of a rating question are in the settings of the data set:
# `settings.json` (or `.argilla/settings.json`) next to the records, or a file that has both.


def _is_argilla(row: Row) -> bool:
    nested = isinstance(row.get("fields"), dict) and "responses" in row
    flat = any(f"{name}.users" in row for name in row if name.endswith(".responses"))
    return nested or flat


def _nest_answers(row: Row) -> Row:
    """Return a row with `fields` and `responses`.

    In a flat row, every column without a dot that is not an answer is a field.

    Raises:
        ValueError: the row was exported by Argilla 1 or is from a table.
    """
    if isinstance(row.get("responses"), list):
        raise RowError("the responses have the format of Argilla 1", "export the records with Argilla 2")
    if isinstance(row.get("fields"), dict):
        return row
    others = ("id", "status", "external_id", "metadata", "_server_id")
    fields = {
        name: value for name, value in row.items() if not ("." in name or "-suggestion" in name or name in others)
    }
    responses: dict[str, list[dict[str, Any]]] = {}
    for name, values in row.items():
        question, _, part = name.rpartition(".")
        if part != "responses":
            continue
        if isinstance(values, str):
            raise RowError(f"{name} is a list in a cell of a table", "export the records as JSON")
        people, statuses = (row.get(f"{name}.{column}") or [] for column in ("users", "status"))
        columns = zip_longest(values or [], people, statuses)
        responses[question] = [dict(zip(("value", "user_id", "status"), entry, strict=True)) for entry in columns]
    has_suggestions = any(name.endswith(".suggestion") for name in row)
    return {**row, "fields": fields, "responses": responses, "suggestions": has_suggestions}


def _read_argilla(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield an opinion for each person who submitted answers; skip other answers."""
    row = _nest_answers(row)
    fields = split_last_turn(row["fields"])
    response, id = names.response(fields), find_text(row, "external_id", "id") or fallback_id
    texts = {name: text for name, text in fields.items() if isinstance(text, str)}
    exchange = names.exchange(fields, response)
    unread = find_texts(exchange.extra)
    people: dict[str, Opinion] = {}
    skipped: list[str] = []
    answers = [(question, answer) for question, items in (row["responses"] or {}).items() for answer in items or ()]
    for question, answer in answers:
        annotator, status = str(answer.get("user_id") or ""), answer.get("status") or "submitted"
        if status != "submitted":
            skipped.append(status)
            continue
        new = Opinion(id, texts[response], exchange.prompt, annotator, part=annotator, unread=unread)
        opinion = people.setdefault(annotator, new)
        opinion.prompt_key = exchange.prompt_key
        value, target = answer.get("value"), names.target_text(question, texts, response)
        if not (isinstance(value, list) and any(isinstance(entry, dict) for entry in value)):
            opinion.add_answer(question, value, names)
        elif not all("start" in entry for entry in value):
            opinion.aside[question] = value
        elif target == response:
            opinion.marks += map(Mark.parse, value)
        else:
            for _ in value:
                opinion.count_misplaced(target)
    yield from people.values()
    yield from (skipped_opinion(f"answers with the status {status!r}") for status in skipped)
    if not answers:
        reason = "with suggestions alone" if row.get("suggestions") else "that nobody answered"
        yield skipped_opinion(f"records {reason}")


def _argilla_names(path: Path, rows: Sequence[Row]) -> Names:
    """Read the settings; without them, find the only text that fits all spans of a question."""
    for source in (path.parent / ".argilla" / "settings.json", path.with_name("settings.json"), path):
        if source.is_file() and source.suffix.lower() == ".json":
            with reading(source):
                content = from_json(source.read_text(encoding="utf-8-sig"))
            # A file of settings, or one of records with its settings.
            settings = content.get("settings", content) if isinstance(content, dict) else {}
            questions = settings.get("questions") if isinstance(settings, dict) else None
            if isinstance(questions, list) and questions:
                return _argilla_settings(questions, str(source))
    possible: dict[str, set[str]] = {}
    for row in map(_nest_answers, rows):
        texts = {name: text for name, text in row["fields"].items() if isinstance(text, str)}
        responses = (row["responses"] or {}).items()
        answers = [(question, answer) for question, items in responses for answer in items or ()]
        for question, value in ((question, answer.get("value")) for question, answer in answers):
            for span in value if isinstance(value, list) else []:
                if isinstance(span, dict) and "start" in span:
                    mark = Mark.parse(span)
                    fitting = {name for name, text in texts.items() if fits_text(mark, text)}
                    possible[question] = possible.get(question, fitting) & fitting
    texts = {question: next(iter(fitting)) for question, fitting in possible.items() if len(fitting) == 1}
    return Names(texts=texts)


def _argilla_settings(questions: Sequence[Mapping[str, Any]], source: str) -> Names:
    fields: dict[str, str] = {}
    scales: dict[str, Scale] = {}
    choices: dict[str, list[str]] = {}
    free_text: set[str] = set()
    for question in questions:
        settings = {**question, **(question.get("settings") or {})}
        if "name" not in settings:
            raise UserError(f"{source}: a question has no name", "take the settings.json that Argilla wrote")
        name = str(settings["name"])
        if isinstance(settings.get("field"), str):
            fields[name] = settings["field"]
        options = settings.get("options") or settings.get("values") or settings.get("labels") or []
        values = [option.get("value") if isinstance(option, dict) else option for option in options]
        if scale := scale_of_numbers(values, f"as {Path(source).name} says"):
            scales[name] = scale
        elif settings.get("type") == "label_selection":
            choices[name] = list(map(str, values))
        if settings.get("type") == "text":
            free_text.add(name)
    return Names(texts=fields, scales=scales, options=choices, free_text=frozenset(free_text))


# Label Studio: labelled regions of a text, choices, ratings and comments, as JSON, JSON-MIN, CSV
# and TSV. Its editor counts UTF-16 units and a line end as one, and shows a line end as backslash
# and n. Offsets belong to the text that a region's `to_name` shows. An export lacks the scale of a
# rating: it is read from the task's `label_config`, or from an .xml file next to the export.

Result = Mapping[str, Any]
_ASIDE = ("text", "relation", "pairwise", "ranker", "taxonomy")
_FLAT_COLUMNS = {"annotation_id", "annotator", "lead_time"}
_STUDIO_COLUMNS = ("annotation_id", "annotator", "created_at", "updated_at", "lead_time", "agreement", "id")


def _is_studio(row: Row) -> bool:
    return _is_studio_task(row) or row.keys() >= _FLAT_COLUMNS


def _is_studio_task(row: Row) -> bool:
    return isinstance(row.get("data"), dict) and bool(row.keys() & {"annotations", "predictions"})


def _read_studio(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    return (_read_task if _is_studio_task(row) else _read_flat)(row, fallback_id, names)


def _read_task(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield an opinion for each annotation of a task; skip cancelled ones and predictions."""
    data = split_last_turn(row["data"])
    names.response(data)
    id = str(data.get("id") or row.get("id") or fallback_id)
    annotations = row.get("annotations") or []
    used = [entry for entry in annotations if not entry.get("was_cancelled")]
    yield from (skipped_opinion("annotations that were cancelled") for _ in annotations[len(used) :])
    yield from (skipped_opinion("predictions of a model") for _ in row.get("predictions") or ())
    if not annotations and not row.get("predictions"):
        yield skipped_opinion("tasks without an annotation")
    for number, annotation in enumerate(used, start=1):
        results = [result for result in annotation.get("result", []) if isinstance(result, dict)]
        opinion = _annotation(id, data, results, annotation.get("completed_by"), names)
        opinion.part = str(annotation.get("id", number))
        yield opinion


def _annotation(id: str, data: Row, results: Sequence[Result], user: Any, names: Names) -> Opinion:
    """Return the opinion of one annotation, from all its results."""
    response = names.response(data)
    texts = {name: text for name, text in data.items() if isinstance(text, str)}
    annotator = (user.get("email") or user.get("id")) if isinstance(user, dict) else user
    exchange = names.exchange(data, response)
    opinion = Opinion(id, texts[response], exchange.prompt, "" if annotator is None else str(annotator))
    opinion.unread, opinion.prompt_key = find_texts(exchange.extra, ["critique"]), exchange.prompt_key
    # A result without an id is a separate group.
    results = [{"id": f"result-{number}", **result} for number, result in enumerate(results)]
    groups = _regions(results)
    for region, *others in groups.values():
        if (target := _region_text(region, texts, response, names)) == response:
            _add_region(opinion, region, others, names)
        else:
            opinion.count_misplaced(target)
    for result in results:
        if str(result.get("id")) not in groups:
            _add_result(opinion, result, texts, response, names)
    if not opinion.comments and isinstance(data.get("critique"), str):
        opinion.comments += filter(None, [data["critique"]])
    return opinion


def _regions(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group results by the id of their region; those with labels come first."""
    marks = (result for result in results if "start" in _value(result) and result.get("type") != "textarea")
    groups: dict[str, list[Result]] = {}
    for id in dict.fromkeys(str(result["id"]) for result in marks):
        group = (result for result in results if str(result["id"]) == id)
        groups[id] = sorted(group, key=lambda result: not _labels(result))
    return groups


def _labels(result: Result) -> list[str]:
    return _words(_value(result).get("labels"))


def _value(result: Result) -> Mapping[str, Any]:
    value = result.get("value")
    return value if isinstance(value, dict) else {}


def _region_text(region: Result, texts: Mapping[str, str], response: str, names: Names) -> str:
    """Return the key of the text of a region: by the configuration, by its tag, or by its quote."""
    tag, quote = str(region.get("to_name") or ""), _value(region).get("text")
    if not tag or tag in names.texts or tag in texts:
        return names.texts.get(tag, tag or response)
    if source := str(region.get("source") or "").removeprefix("$"):
        return source
    if len(texts) > 1 and isinstance(quote, str) and quote:
        mark = _region_mark(region, "", quote)
        fitting = [name for name, text in texts.items() if fits_text(mark, text)] or [
            name for name, text in texts.items() if to_code_points([mark], text, BROWSER)[0].start >= 0
        ]
        return fitting[0] if len(fitting) == 1 else ""
    return names.target_text(tag, texts, response)


def _region_mark(region: Result, label: str, quote: str, reason: str = "") -> Mark:
    return Mark.parse(_value(region))._replace(label=label, text=quote, reason=reason)


def _add_region(opinion: Opinion, region: Result, others: Sequence[Result], names: Names) -> None:
    """Add a mark for each label of a region, with the words of its text areas and notes."""
    areas = [_value(result).get("text") for result in others if result.get("type") == "textarea"]
    notes = region["meta"].get("text") if isinstance(region.get("meta"), dict) else None
    choices = [word for result in (region, *others) for word in _words(_value(result).get("choices"))]
    signs, labels = names.labels(), _labels(region)
    if not any(label.strip().casefold() in signs for label in labels):
        labels = [word for word in choices if score_word(word)] or labels or [""]
    unused = [word for word in choices if word not in labels]
    reason = " ".join([*_words(notes), *(word for area in areas for word in _words(area)), *unused])
    quote = _value(region).get("text")
    text = quote if isinstance(quote, str) else ""
    opinion.marks += [_region_mark(region, label, text, reason) for label in labels]
    for result in others:
        ratings = {kind: _value(result)[kind] for kind in ("rating", "number") if kind in _value(result)}
        opinion.aside |= {f"{result.get('from_name')} of a region": value for value in ratings.values()}


def _words(value: Any) -> list[str]:
    entries = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [str(word) for word in entries if str(word).strip()]


def _add_result(opinion: Opinion, result: Result, texts: Mapping[str, str], response: str, names: Names) -> None:
    """Add a result about the whole response; one about another text is kept aside."""
    kind, value, tag = str(result.get("type") or ""), _value(result), str(result.get("to_name") or "")
    name = str(result.get("from_name") or kind)
    if kind in _ASIDE or not value:
        opinion.aside[name] = value.get("choices", [value or dict(result)])[0]
        return
    if (target := names.texts.get(tag, tag)) in texts and target != response:
        opinion.aside[f"{name} of {target}"] = value
        return
    for answer in ("rating", "number", "choices"):
        opinion.add_answer(name, value.get(answer), names)
    words = _words(value.get("text")) if kind in ("textarea", "") else []
    if words and names.is_corrected(name):
        opinion.corrected = "\n".join(words)
    else:
        opinion.comments += words


def _read_flat(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield the opinion of a row of JSON-MIN, CSV or TSV: an annotation with its data."""
    data = {name: _decode_json(value) for name, value in row.items() if name not in _STUDIO_COLUMNS}
    response = names.response({name: value for name, value in data.items() if name not in names.scales})
    text_keys = {response, names.key(data, "prompt", PROMPT_KEYS)}
    texts = {name: value for name, value in data.items() if isinstance(value, str) and name in text_keys}
    answers = [(name, value) for name, value in data.items() if name not in text_keys]
    results = [result for name, value in answers for result in _flat_results(name, value, names)]
    id = str(row.get("id") or fallback_id)
    yield _annotation(id, texts, results, _decode_json(row.get("annotator")), names)


def _decode_json(value: Any) -> Any:
    """Parse a cell that holds JSON; return other values unchanged."""
    if isinstance(value, str) and value[:1] in "[{" and value[-1:] in "]}":
        try:
            return from_json(value)
        except json.JSONDecodeError:
            return value
    return value


def _flat_results(name: str, value: Any, names: Names) -> Iterator[dict[str, Any]]:
    """Yield the answers to one question in the form of a JSON export."""
    for number, entry in enumerate(value if isinstance(value, list) else [value]):
        common = {"from_name": name, "to_name": name * (name in names.texts), "id": f"{name}-{number}"}
        if isinstance(entry, dict):
            yield {**common, "type": "textarea" if set(entry) == {"text"} else "", "value": entry}
        elif isinstance(entry, str) and (names.is_comment(name) or names.is_corrected(name)):
            yield {**common, "type": "textarea", "value": {"text": [entry]}}
        elif isinstance(entry, str) and parse_number(entry) is None and entry:
            is_choice = name in (*names.texts, *names.mapped.get("score", ())) or score_word(entry) is not None
            yield {**common, "type": "choices" if is_choice else "text", "value": {"choices": [entry]}}
        elif entry not in (None, ""):
            yield {**common, "type": "number", "value": {"number": entry}}


def _studio_names(path: Path, rows: Sequence[Row]) -> Names:
    """Read the labelling configuration: the text of a tag, and the scales of questions."""
    for source, text in _configurations(path, rows):
        try:
            return _studio_configuration(ElementTree.fromstring(text), source)
        except ElementTree.ParseError as error:
            message = f"{source}: not a labelling configuration: {error}"
            raise UserError(message, "correct it, or move it away") from error
    return Names()


def _configurations(path: Path, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for entry in (row.get("label_config") or (row.get("project") or {}) for row in rows[:1]):
        text = entry.get("label_config") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            yield str(path), text
    for name in (f"{path.stem}.xml", "label_config.xml", "labeling_config.xml", "config.xml"):
        if (file := path.with_name(name)).is_file():
            yield str(file), file.read_text(encoding="utf-8-sig")


def _studio_configuration(view: ElementTree.Element, source: str) -> Names:
    declared = f"as {Path(source).name} says"
    texts: dict[str, str] = {}
    scales: dict[str, Scale] = {}
    options: dict[str, list[str]] = {}
    for tag in view.iter():
        name, value = tag.get("name", ""), tag.get("value", "")
        if value.startswith("$"):
            texts[name] = value[1:]
        if tag.tag == "Rating":
            scales[name] = Scale(1, int(tag.get("maxRating", "5")), declared)
        elif tag.tag in ("Number", "Slider") and tag.get("min") and tag.get("max"):
            scales[name] = Scale(float(tag.get("min", "")), float(tag.get("max", "")), declared)
        elif tag.tag == "Choices":
            options[name] = [choice.get("alias") or choice.get("value") or "" for choice in tag.iter("Choice")]
            if scale := scale_of_numbers(options[name], declared):
                scales[name] = scale
    targets = {tag.get("name", ""): tag.get("toName", "") for tag in view.iter()}
    texts |= {name: texts[target] for name, target in targets.items() if target in texts}
    return Names(texts=texts, scales=scales, options=options)


IMPORTERS = (
    Importer("label_studio", _read_studio, accepts=_is_studio, names=_studio_names, counting=BROWSER),
    Importer("argilla", _read_argilla, accepts=_is_argilla, names=_argilla_names),
    Importer(
        "langsmith",
        partial(_read_answers, LANGSMITH),
        accepts=lambda row: isinstance(row.get("outputs"), dict) and isinstance(row.get("feedback"), list),
    ),
    Importer("langfuse", _read_langfuse, accepts=_is_langfuse, counting=BROWSER),
    Importer("phoenix", _read_phoenix, frozenset(_PHOENIX_KEYS)),
    Importer("prodigy", _read_prodigy, accepts=_is_prodigy, names=_prodigy_names, counting=CODE_POINTS),
    Importer("doccano", _read_doccano, accepts=_is_doccano),
)
"""In the order in which a row is tried."""
