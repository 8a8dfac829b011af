"""A spreadsheet: `response, critique, good, poor`, and as wanted `id, prompt, score, corrected, annotator`.

A cell holds one quote per line. Quotes are located as a judge's are: literally, else with other quotes,
dashes or white space; the k-th repeat is the k-th occurrence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from text2grad.errors import UserError
from text2grad.feedback import Critique, Feedback
from text2grad.formats.marks import edits, human_record, score_of
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row
from text2grad.wire.locate import LocateSettings
from text2grad.wire.quotes import Quote, in_order, resolve, to_quotes

KEYS = frozenset({"response", "critique"})
COLUMNS = ("id", "prompt", "response", "critique", "good", "poor", "score", "corrected", "annotator")


def check_columns(path: Path, names: list[str]) -> None:
    """Refuse a header with a column that is not in `COLUMNS`, or without one that is needed.

    Raises:
        UserError: a column is unknown or missing; says which was perhaps meant.
    """
    for name in names:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{path}: unknown column {name!r}{hint}", f"known: {', '.join(COLUMNS)}")
    if missing := sorted(KEYS - set(names)):
        raise UserError(f"{path}: no column {missing[0]!r}", f"known: {', '.join(COLUMNS)}")


def records(row: Row, fallback_id: str) -> Iterator[Feedback]:
    """The record of a row. Without quotes, a corrected text tells by its difference what was wrong.

    Raises:
        ValueError: the response is empty, or the score is not a number from -1 to 1.
    """
    cells = {name: str(row.get(name) or "") for name in COLUMNS}
    if not cells["response"]:
        raise ValueError("the response is empty")
    response = cells["response"]
    good = resolve(_quotes(cells["good"]), response, 1, "skip", LocateSettings())
    poor = resolve(_quotes(cells["poor"]), response, -1, "skip", LocateSettings())
    spans = in_order([*good.spans, *poor.spans])
    omissions: tuple[str, ...] = ()
    if not (cells["good"] or cells["poor"]) and cells["corrected"]:
        spans, omissions = edits(response, cells["corrected"])
    critique = Critique(
        text=cells["critique"],
        spans=spans,
        score=_score(cells["score"]),
        quotes=good.counts + poor.counts,
        lost=(*good.lost, *poor.lost),
        omissions=omissions,
    )
    meta = {"dataset": "csv", "corrected": cells["corrected"], "annotator": cells["annotator"]}
    yield human_record(cells["id"] or fallback_id, cells["prompt"], response, critique, meta)


def _quotes(cell: str) -> list[Quote]:
    return [Quote(line.strip()) for line in cell.splitlines() if line.strip()]


def _score(cell: str) -> float | None:
    if not cell.strip():
        return None
    try:
        score = score_of(float(cell))
    except ValueError as error:
        raise ValueError(f"the score {cell[:20]!r} is not a number") from error
    if score is None:
        raise ValueError(f"the score {cell[:20]} is not between -1 and 1")
    return score


def row_of(record: Feedback) -> Row:
    """A record as a row. Reasons have no column, and a quote that occurs more than once is not told from others."""
    quotes = {
        label: "\n".join(
            quote.text for quote in to_quotes([s for s in record.spans if s.label == label], record.response)
        )
        for label in (1, -1)
    }
    score = "" if record.score is None else f"{record.score:g}"
    return {
        "id": record.id,
        "prompt": conversation_text(record.prompt),
        "response": record.response,
        "critique": record.critique,
        "good": quotes[1],
        "poor": quotes[-1],
        "score": score,
        "corrected": str(record.meta.get("corrected", "")),
        "annotator": str(record.meta.get("annotator", "")),
    }
