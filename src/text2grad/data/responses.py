"""What is judged: responses read from a file, one at a time, so that a file of any size fits.

A file is JSON Lines, JSON (a list of objects, or objects by id) or a table. A row has `prompt`
(text or turns) and `response`, and may have `id`, `reference`, `feedback` (what a person wrote
about the response) and `meta`; or it is a feedback record of ours, whose judgement is left aside;
or it has the shape of a published data set (`data.published`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from text2grad.data.conversations import Exchange, TurnWriter, default_turn_text, read_exchange, read_record
from text2grad.data.files import holds_text, name_text, read_located_rows
from text2grad.data.published import Response, responses_of
from text2grad.data.spreadsheets.tables import is_table
from text2grad.errors import InvalidFields, UserError, first_error, warn_once
from text2grad.feedback import (
    DRAFT,
    HUMAN_FEEDBACK,
    JUDGEMENT_KEYS,
    Example,
    Feedback,
    escapes_folder,
    human_feedback_on,
)
from text2grad.jsonl import json_lines, reading

MOST_CHARACTERS = 100_000
"""Of a response that is judged."""
KNOWN = ("id", "reference", "feedback", "meta")
"""Other keys that a row may have."""


@dataclass(frozen=True)
class Item:
    """One response to judge, as an answer to `example`. `ours`: its id is the prompt's, and may
    repeat.

    `said` is the record whose words are to be placed, or which stays as it is.
    """

    example: Example
    response: str
    shares_id: bool = False
    original: Feedback | None = None

    @property
    def comment(self) -> str:
        """Return the words of a person about the response, which are to be placed in it."""
        return human_feedback_on(self.example, self.response).strip()

    def with_spans(self, judged: Feedback) -> Feedback:
        """Return the record of a person's words with their places; in one that was given, nothing
        else changes."""
        if self.original is None:
            return judged
        if judged.error is not None:
            return self.original
        details = {name: judged.meta[name] for name in JUDGEMENT_KEYS & judged.meta.keys()}
        source = self.original.source.model_copy(update={"prompt_version": judged.source.prompt_version})
        update = {"spans": judged.spans, "source": source, "usage": judged.usage}
        return self.original.model_copy(update={**update, "meta": {**details, **self.original.meta}})


Items = Callable[[], Iterable[Item]]
"""Items, from the start at each call: they are read more than once and never all held."""


def read_items(
    path: Path, anchor: bool = False, write: TurnWriter = default_turn_text, sheet: str = ""
) -> Iterator[Item]:
    """The items of a file, in order.

    With `anchor`, what a person wrote in a record of ours without spans is feedback on its
    response, as is a row's `feedback` in any case; every other record of ours stays as it is.
    `write` is how the policy writes a turn that calls tools or reasons; `sheet` is of a workbook.

    Raises:
        UserError: the file cannot be read, or a row is not a response (which one, and why).
    """
    for where, row in _rows(path, sheet):
        kind, number, *_ = where.split()
        place = f"{path}:{number}" if kind == "line" else f"{path}: {where}"
        if not isinstance(row, dict):
            raise UserError(f"{place}: not an object", "one JSON object per line")
        try:
            yield from _items(row, f"{path.stem}-{number}", anchor, write)
        except (ValidationError, InvalidFields) as error:
            raise UserError(f"{place}: {first_error(error)}", f"fix or remove {where}") from error
        except ValueError as error:
            cure = getattr(error, "cure", f"columns: {', '.join(Response.model_fields)}")
            raise UserError(f"{place}: {error}", cure) from error


def check_items(items: Iterable[Item], longest: int = MOST_CHARACTERS) -> int:
    """Look at every item before anything is paid for; their number.

    Raises:
        UserError: an id occurs twice, names a way out of its folder, or a response has more than
            `longest` characters.
    """
    seen: set[bytes] = set()
    count = 0
    for count, item in enumerate(items, start=1):  # noqa: B007
        id, size = item.example.id, len(item.response)
        shown = repr(id if len(id) <= 60 else f"{id[:60]}…")
        if escapes_folder(id):
            raise UserError(f"the id {shown} leads out of its folder", "take '..' out of it")
        if not id.isprintable() or len(id) > 500:
            raise UserError(f"the id {shown} is not a name", "at most 500 printable characters")
        key = blake2b(id.encode(), digest_size=16).digest()
        if key in seen and not item.shares_id:
            raise UserError(f"the id {shown} occurs twice", "give each response its own id")
        seen.add(key)
        if size > longest:
            message = f"the response of {shown} has {size:,} characters, more than {longest:,}"
            raise UserError(message, "shorten it")
    return count


def _rows(path: Path, sheet: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the rows with their places: of JSON Lines one line at a time, of other files all at
    once."""
    if is_table(path):
        yield from (
            (place, {name: cell for name, cell in row.items() if cell})
            for place, row in read_located_rows(path, sheet)
        )
        return
    with reading(path), path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line.strip() for line in file if line.strip()), "")
    if path.suffix.lower() in (".jsonl", ".ndjson") and first.startswith("{") and first.endswith("}"):
        with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
            yield from ((f"line {number}", row) for number, row in json_lines(file, path))
    else:
        yield from read_located_rows(path)


def _items(row: dict[str, Any], fallback_id: str, anchor: bool, write: TurnWriter) -> Iterator[Item]:
    if "source" in row and "response" in row:
        yield _of_feedback(read_record(row, write), anchor)
        return
    if (published := responses_of(row)) is not None:
        yield from (_of_row(response, fallback_id) for response in published)
        return
    asked = read_exchange(row, write)
    _check_columns(asked)
    others = {name: asked.extra[name] for name in KNOWN if name in asked.extra}
    if asked.is_turn:  # others use these names for other things
        kinds = {"id": str | int, "reference": str, "feedback": str, "meta": dict}
        others = {name: value for name, value in others.items() if isinstance(value, kinds[name])}
    if "id" in others:
        others["id"] = name_text(others["id"]) or others["id"]
    response = Response.model_validate({**others, "prompt": asked.prompt, "response": asked.response})
    yield _of_row(response, fallback_id)


def _check_columns(asked: Exchange) -> None:
    """Check that a row has all that is judged. Another key of a chat is named if it holds text.

    Raises:
        ValueError: there is no prompt or response, or another column.
    """
    for name, value in asked.extra.items():
        if name in (*KNOWN, "prompt", "response"):
            continue
        if not asked.is_turn:
            near = difflib.get_close_matches(str(name), Response.model_fields, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown column {str(name)[:40]!r}{hint}")
        if holds_text(value):
            warn_once(f"{name!r} holds text that no critic sees: what counts of it belongs into the messages")
    if asked.response is None:
        raise ValueError("no column 'response'")
    if not any(turn.content.strip() for turn in asked.prompt):
        raise ValueError("no column 'prompt', or an empty one")


def _of_row(row: Response, fallback_id: str) -> Item:
    meta = _with_feedback(row.meta, row.feedback) if row.feedback.strip() else row.meta
    return Item(
        Example(id=row.id or fallback_id, prompt=row.prompt, reference=row.reference, meta=meta), row.response
    )


def _of_feedback(record: Feedback, anchor: bool) -> Item:
    if not anchor:
        return Item(record.example(), record.response, shares_id=True)
    meta = {name: value for name, value in record.meta.items() if name != HUMAN_FEEDBACK}
    if record.source.kind == "human" and record.critique.strip() and not record.spans:
        meta = _with_feedback(meta, record.critique)
    return Item(
        record.example().model_copy(update={"meta": meta}), record.response, shares_id=True, original=record
    )


def _with_feedback(meta: dict[str, Any], words: str) -> dict[str, Any]:
    """`meta` with what a person wrote about the response of its own row."""
    return {**{name: value for name, value in meta.items() if name != DRAFT}, HUMAN_FEEDBACK: words}
