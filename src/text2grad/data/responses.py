"""Responses to judge, read from a file.

A file is JSON Lines, JSON (a list of objects, or objects by id) or a table. A row has `prompt`
(text or turns) and `response`, and may have `id`, `reference`, `feedback` (a person's comment on
the response) and `meta`. It may also be one of our own feedback records, whose judgement is
ignored, or a row of a published data set (`data.published`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from text2grad.data.conversations import Exchange, TurnWriter, default_turn_text, read_exchange, read_record
from text2grad.data.files import RowError, holds_text, name_text, place_in, read_located_rows
from text2grad.data.published import Response, responses_of
from text2grad.data.spreadsheets.tables import is_table
from text2grad.errors import InvalidFields, UserError, first_error, suggestion, warn_once
from text2grad.feedback import (
    DRAFT,
    HUMAN_FEEDBACK,
    JUDGEMENT_KEYS,
    Example,
    Feedback,
    escapes_folder,
    human_feedback_on,
)
from text2grad.jsonl import reading

MAX_CHARACTERS = 100_000
"""The longest response that is judged."""
OPTIONAL_KEYS = ("id", "reference", "feedback", "meta")


@dataclass(frozen=True)
class Item:
    """A response to judge, as an answer to `example`.

    Attributes:
        example: the prompt.
        response: the response.
        shares_id: the id is the prompt's and may repeat.
        original: the record whose comment is to be placed, or which stays unchanged.
    """

    example: Example
    response: str
    shares_id: bool = False
    original: Feedback | None = None

    @property
    def comment(self) -> str:
        """The comment of a person on the response, whose words are to be placed."""
        return human_feedback_on(self.example, self.response).strip()

    def with_spans(self, new_record: Feedback) -> Feedback:
        """Return `new_record`, or the original record with its spans."""
        if self.original is None:
            return new_record
        if new_record.error is not None:
            return self.original
        details = {name: new_record.meta[name] for name in JUDGEMENT_KEYS & new_record.meta.keys()}
        source = self.original.source.model_copy(update={"prompt_version": new_record.source.prompt_version})
        meta = {**details, **self.original.meta}
        update = {"spans": new_record.spans, "source": source, "usage": new_record.usage, "meta": meta}
        return self.original.model_copy(update=update)


def read_items(
    path: Path, anchor: bool = False, write: TurnWriter = default_turn_text, sheet: str = ""
) -> Iterator[Item]:
    """Yield the items of a file, in order.

    A row's `feedback` is always placed; with `anchor`, so are the comments of people's records
    without spans. Other feedback records stay unchanged.

    Raises:
        UserError: the file cannot be read, or a row is not a response (which one, and why).
    """
    if path.suffix.lower() in (".jsonl", ".ndjson"):  # UTF-8 by definition: judging costs money, so no guess
        with reading(path):
            path.read_text(encoding="utf-8")
    for location, row in read_located_rows(path, sheet):
        number, place = location.split()[1], place_in(path, location)
        if is_table(path):
            row = {name: cell for name, cell in row.items() if cell}
        try:
            yield from _items(row, f"{path.stem}-{number}", anchor, write)
        except (ValidationError, InvalidFields) as error:
            raise UserError(f"{place}: {first_error(error)}", f"fix or remove {location}") from error
        except ValueError as error:
            cure = getattr(error, "cure", f"columns: {', '.join(Response.model_fields)}")
            raise UserError(f"{place}: {error}", cure) from error


def check_items(items: Iterable[Item]) -> None:
    """Check all items before anything is paid for.

    Raises:
        UserError: an id repeats or leads out of its folder, or a response is too long.
    """
    ids: set[str] = set()
    for item in items:
        id, size = item.example.id, len(item.response)
        name = repr(id if len(id) <= 60 else f"{id[:60]}…")
        if escapes_folder(id):
            raise UserError(f"the id {name} leads out of its folder", "remove '..' from it")
        if not id.isprintable() or len(id) > 500:
            raise UserError(f"the id {name} is not valid", "use at most 500 printable characters")
        if id in ids and not item.shares_id:
            raise UserError(f"the id {name} occurs twice", "give each response its own id")
        ids.add(id)
        if size > MAX_CHARACTERS:
            message = f"the response of {name} has {size:,} characters, more than {MAX_CHARACTERS:,}"
            raise UserError(message, "shorten it")


def _items(row: dict[str, Any], fallback_id: str, anchor: bool, write: TurnWriter) -> Iterator[Item]:
    if "source" in row and "response" in row:
        yield item_of_record(read_record(row, write), anchor)
        return
    if (published := responses_of(row)) is not None:
        yield from (_row_item(response, fallback_id) for response in published)
        return
    exchange = read_exchange(row, write)
    _check_columns(exchange)
    fields = {name: exchange.extra[name] for name in OPTIONAL_KEYS if name in exchange.extra}
    if exchange.is_turn:  # other tools use these names for other things
        kinds = {"id": str | int, "reference": str, "feedback": str, "meta": dict}
        fields = {name: value for name, value in fields.items() if isinstance(value, kinds[name])}
    if "id" in fields:
        fields["id"] = name_text(fields["id"]) or fields["id"]
    fields |= {"prompt": exchange.prompt, "response": exchange.response}
    yield _row_item(Response.model_validate(fields), fallback_id)


def _check_columns(exchange: Exchange) -> None:
    """Check that a row has a prompt and a response, and no unknown column.

    Unknown keys of a chat only cause a warning, if they hold text.

    Raises:
        ValueError: something is missing, or a column is unknown.
    """
    for name, value in exchange.extra.items():
        if name in (*OPTIONAL_KEYS, "prompt", "response"):
            continue
        if not exchange.is_turn:
            cure = suggestion(str(name), Response.model_fields, f"columns: {', '.join(Response.model_fields)}")
            raise RowError(f"unknown column {str(name)[:40]!r}", cure)
        if holds_text(value):
            warn_once(f"{name!r} holds text that no critic sees: move what matters into the messages")
    if exchange.response is None:
        raise ValueError("no column 'response'")
    if not any(turn.content.strip() for turn in exchange.prompt):
        raise ValueError("no column 'prompt', or an empty one")


def _row_item(row: Response, fallback_id: str) -> Item:
    meta = _with_feedback(row.meta, row.feedback) if row.feedback.strip() else row.meta
    example = Example(id=row.id or fallback_id, prompt=row.prompt, reference=row.reference, meta=meta)
    return Item(example, row.response)


def item_of_record(record: Feedback, anchor: bool) -> Item:
    """Return the item of a record; with `anchor`, a comment without spans is to be marked."""
    example = record.example()
    if not anchor:
        return Item(example, record.response, shares_id=True)
    meta = {name: value for name, value in record.meta.items() if name != HUMAN_FEEDBACK}
    if record.source.kind == "human" and record.critique.strip() and not record.spans:
        meta = _with_feedback(meta, record.critique)
    return Item(example.model_copy(update={"meta": meta}), record.response, shares_id=True, original=record)


def _with_feedback(meta: dict[str, Any], comment: str) -> dict[str, Any]:
    """Return `meta` with a person's comment on the response of the row itself."""
    return {**{name: value for name, value in meta.items() if name != DRAFT}, HUMAN_FEEDBACK: comment}
