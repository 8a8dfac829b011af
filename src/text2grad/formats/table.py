"""A spreadsheet: `response` and what is said of it (`formats.remarks`), a cell for each.

A cell holds one quote per line. Quotes are located as a judge's are: literally, else with other quotes,
dashes or white space; the k-th repeat is the k-th occurrence.
"""

from __future__ import annotations

from functools import partial

from text2grad.feedback import Feedback
from text2grad.formats import remarks
from text2grad.formats.remarks import COLUMNS as COLUMNS
from text2grad.formats.remarks import KEYS as KEYS
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row
from text2grad.wire.quotes import to_quotes

records = partial(remarks.records, dataset="csv")
SUFFIXES = (".csv", ".tsv")


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
