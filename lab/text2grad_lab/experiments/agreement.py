"""Measure what two reward models agree on: characters that both mark as good, or both as poor.

    python -m text2grad_lab.experiments.agreement RUN RUN

Both run folders have the same held-out records and were measured with `text2grad evaluate
reward_model`. The last line of stdout is a JSON object: `first`, `second` and `both`, each with
precision, recall and F1 of the characters marked good and poor.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from text2grad.align import Aligned
from text2grad.errors import UserError, exit_on_user_error
from text2grad.eval.critics.marks import number_repeated_ids
from text2grad.eval.critics.spans import LABEL_NAMES, SpanCase, character_labels, span_report
from text2grad.feedback import Critique, Feedback, Span
from text2grad.jsonl import read_jsonl
from text2grad.stages.run_folder import HELDOUT_FEEDBACK

RATES = [f"{name}_{rate}" for name in LABEL_NAMES.values() for rate in ("precision", "recall", "f1")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN")
    print(json.dumps(compare(*parser.parse_args().runs)))


def compare(first: Path, second: Path) -> dict[str, dict[str, float]]:
    """Return the rates of two reward models and of their agreement.

    Raises:
        UserError: the two did not judge the same answers.
    """
    gold = {record.id: record for record in number_repeated_ids(read_jsonl(first / HELDOUT_FEEDBACK, Feedback))}
    said = [{record.id: record for record in read_jsonl(said_file(run), Feedback)} for run in (first, second)]
    ids = said[0].keys() & said[1].keys() & gold.keys()
    if any(judged[id].response != gold[id].response for judged in said for id in ids) or not ids:
        raise UserError(f"{first} and {second} did not judge the same answers", "train both on copies of one run")
    both = {id: agreement(said[0][id], said[1][id]) for id in ids}
    critiques = {"first": said[0], "second": said[1], "both": both}
    return {name: rates({id: gold[id] for id in ids}, judged) for name, judged in critiques.items()}


def said_file(run: Path) -> Path:
    return run / "evaluation" / "reward_model.said.jsonl"


def agreement(first: Feedback, second: Feedback) -> Feedback:
    """Return the first record with the spans that both records label alike."""
    labels = [character_labels(record.spans, record.response) for record in (first, second)]
    common = np.where(labels[0] == labels[1], labels[0], 0)
    return first.model_copy(update={"spans": tuple(spans_of(common.tolist(), first.response))})


def spans_of(labels: list[int], text: str) -> Iterator[Span]:
    """Yield a span for each run of characters with one label."""
    for label, run in groupby(range(len(labels)), labels.__getitem__):
        places = list(run)
        if label:
            start, end = places[0], places[-1] + 1
            yield Span.model_validate({"start": start, "end": end, "label": label, "text": text[start:end]})


def rates(gold: dict[str, Feedback], judged: dict[str, Feedback]) -> dict[str, float]:
    judgements = {id: record.judgement() for id, record in gold.items()}
    cases = [
        SpanCase(critique, judged[id].judgement(), characters(gold[id]))
        for id, critique in judgements.items()
        if isinstance(critique, Critique)
    ]
    report = span_report(cases)
    return {name: round(report[name], 4) for name in RATES}


def characters(record: Feedback) -> Aligned:
    """Return the response with a token for each character."""
    places = np.arange(len(record.response))
    return Aligned.of(record.response, places, places + 1)


if __name__ == "__main__":
    with exit_on_user_error():
        main()
