"""Feedback records in the shapes of others: tools for people, and trainers."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, Transcript, refuse_folder, to_json, writing
from text2grad.formats.preference import pairs_of, preference_row
from text2grad.formats.remarks import table
from text2grad.formats.tools import argilla, label_studio, prodigy
from text2grad.tasks.loaders import Row

Writer = Callable[[Iterable[Feedback]], Iterator[Row]]


def each(row_of: Callable[[Feedback], Row]) -> Writer:
    """A row per record that was judged."""
    return lambda records: (row_of(record) for record in records if record.error is None)


def preference_rows(records: Iterable[Feedback], most: int = 1) -> Iterator[Row]:
    """TRL's preference format: the corrected text over the response; of several scored responses to one prompt the
    better ones over the worse ones (`pairs_of`).
    """
    return map(preference_row, pairs_of(records, most).pairs)


WRITERS: Mapping[str, Writer] = {
    "label_studio": each(label_studio.row_of),
    "argilla": each(argilla.row_of),
    "prodigy": lambda records: map(prodigy.row_of, records),
    "csv": each(table.row_of),
    "preference": preference_rows,
}
MORE_ANSWERS = "more answers to a prompt: text2grad annotate --annotate.samples_per_prompt 4"
OF_ONE_TURN = ("label_studio", "argilla", "prodigy")
"""Tools for people that have one text to mark."""
LISTS = ("label_studio", "argilla")
"""What these tools read is one list."""


def export(records: Iterable[Feedback], kind: str, out: Path, pairs: int = 1) -> int:
    """Write records in the shape `kind`, at once; how many rows. `pairs`: preference pairs of a prompt, at most.

    Raises:
        UsageError: the format is unknown. UserError: the file cannot be written, or there is no pair to write.
    """
    if kind not in WRITERS:
        raise UsageError(f"unknown shape {kind!r}", f"one of {', '.join(WRITERS)}")
    records = map(_without_suggestions, records)
    if kind in OF_ONE_TURN:
        records = map(partial(_of_one_turn, kind=kind), records)
    rows = list(preference_rows(records, pairs) if kind == "preference" else WRITERS[kind](records))
    if kind == "preference" and not rows:
        raise UserError("no two answers to one prompt have different scores, and none was corrected", MORE_ANSWERS)
    write_rows(rows, kind, out)
    return len(rows)


def _of_one_turn(record: Feedback, kind: str) -> Feedback:
    """The record, if its response is plain text.

    Raises:
        UserError: it has turns, which what is read back would lack.
    """
    if isinstance(record.response, Transcript):
        message = f"the response of {record.id!r} has turns, and {kind} holds plain text alone"
        raise UserError(message, "keep the JSON Lines file, or leave such records out")
    return record


def _without_suggestions(record: Feedback) -> Feedback:
    """The record without its spans of neither sign: the other tools have no label for them."""
    return record.model_copy(update={"spans": tuple(span for span in record.spans if span.label)})


def write_rows(rows: Sequence[Row], kind: str, out: Path) -> None:
    """Write rows of the shape `kind`, at once.

    Raises:
        UserError: the file cannot be written.
    """
    refuse_folder(out)
    partial = out.with_name(out.name + ".partial")
    encoding = "utf-8-sig" if kind == "csv" else "utf-8"  # without it Excel reads another code page, and saves that
    try:
        with writing(out), partial.open("w", encoding=encoding, errors="replace", newline="") as file:
            _write(rows, kind, file)
            os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def left_out(records: Iterable[Feedback], kind: str) -> dict[str, Mapping[str, int]]:
    """What was not written, by the reason: records that gave no preference pair, else spans without a sign."""
    if kind == "preference":
        return {"left_out": pairs_of(records).left_out}
    count = sum(not span.label for each in records for span in each.spans)
    return {"left_out": {"improvable_spans": count}} if count else {}


def _write(rows: Sequence[Row], kind: str, file: TextIO) -> None:
    if kind == "csv":
        writer = csv.DictWriter(file, table.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    elif kind in LISTS:
        file.write("[\n" + ",\n".join(map(to_json, rows)) + "\n]\n")
    else:
        file.writelines(to_json(row) + "\n" for row in rows)
