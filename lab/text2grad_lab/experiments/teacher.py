"""Measure an annotator's spans against another's, and merge several of its annotations by vote.

    python -m text2grad_lab.experiments.teacher one.jsonl two.jsonl three.jsonl \\
        --truth program.jsonl --out merged.jsonl

All files have the same answers. A character gets the label that more than half of the files give
it, and an answer the mean verdict; a failed record gives no label. The last line of stdout is one
JSON object: `records`, `failed`, and `good_f1` and `poor_f1` of the merged labels by character.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np

from text2grad.errors import exit_on_user_error
from text2grad.eval.critics.spans import Labels, character_labels
from text2grad.feedback import Feedback, Label, Span
from text2grad.jsonl import read_jsonl, write_jsonl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("votes", type=Path, nargs="+")
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    truth, *votes = (read_records(path) for path in (args.truth, *args.votes))
    merged = {key: merge([file[key] for file in votes]) for key in votes[0]}
    write_jsonl(args.out, merged.values())
    failed = sum(record.error is not None for file in votes for record in file.values())
    rates = f1_by_label(list(merged.values()), [truth[key] for key in merged])
    print(json.dumps({"records": len(merged), "failed": failed} | rates))


def read_records(path: Path) -> dict[tuple[str, str], Feedback]:
    """Return the records of a file by example and answer."""
    return {(record.id, record.response): record for record in read_jsonl(path, Feedback)}


def merge(records: Sequence[Feedback]) -> Feedback:
    """Return one record of the annotations of an answer, by majority of each character."""
    votes = sum(labels_of(record).astype(int) for record in records)
    labels = np.sign(votes) * (2 * np.abs(votes) > len(records))
    readable = [record for record in records if record.error is None]
    if not readable:
        return records[0]
    scores = [record.score for record in readable if record.score is not None]
    score = fmean(scores) if scores else None
    return readable[0].model_copy(update={"spans": tuple(spans_of(labels, records[0].response)), "score": score})


def labels_of(record: Feedback) -> Labels:
    return character_labels(record.spans, record.response)


def spans_of(labels: Labels, response: str) -> Iterator[Span]:
    """Yield the runs of characters with one label."""
    for label, run in groupby(range(len(response)), key=lambda place: int(labels[place])):
        places = list(run)
        start, end = places[0], places[-1] + 1
        if label and response[start:end].strip():
            yield Span(start=start, end=end, label=cast(Label, label), text=response[start:end])


def f1_by_label(predicted: Sequence[Feedback], gold: Sequence[Feedback]) -> dict[str, float]:
    """Return F1 of both labels over the characters of all answers."""
    pairs = [(labels_of(one), labels_of(other)) for one, other in zip(predicted, gold, strict=True)]
    rates = {}
    for name, label in (("good_f1", 1), ("poor_f1", -1)):
        both = sum(int(((one == label) & (other == label)).sum()) for one, other in pairs)
        marked = sum(int((one == label).sum() + (other == label).sum()) for one, other in pairs)
        rates[name] = round(2 * both / marked, 4) if marked else 1.0
    return rates


if __name__ == "__main__":
    with exit_on_user_error():
        main()
