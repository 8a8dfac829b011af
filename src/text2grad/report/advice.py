"""What the figures of a file of feedback mean for training on it: one sentence each, and what to write next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.feedback import Feedback, read_jsonl
from text2grad.report.signs import MOST_UNMATCHED

Figures = Mapping[str, Any]
Rule = tuple[Callable[[Figures], Any], str]
"""What is wrong if it is not zero (or None), and what to do; `{name}` is a figure, `{0}` the value."""
FEW_REMARKS = 200
"""Records up to which learning from the marks themselves is the first road, and a reward model the second."""
LEAST_MOVED, RISEN = 0.05, 0.2
"""The share by which a loss must fall, and by which it has risen beyond its noise."""
LOPSIDED, FEW = 0.2, 50
"""A share of praise (or of criticism) below which there is too little of it, and records that are too few."""


def judgement(figures: Figures) -> list[str]:
    """What a policy would learn from this feedback."""
    share, labelled = figures["good_share"], figures["labelled_share"]
    if share is None:
        paid = (
            "only the verdict of a whole answer is learned from" if figures["scored"] else "nothing can be learned"
        )
        return [f"No token is labelled: {paid}."]
    praise = f"{_percent(share)} of labelled tokens are praise"
    if share < LOPSIDED:
        meaning = "the policy will learn to say less."
    elif share > 1 - LOPSIDED:
        meaning = "the policy will learn to repeat itself, and little about its mistakes."
    else:
        meaning = "it can learn both what to keep and what to leave."
    return [f"{praise}: {meaning}", f"{_percent(labelled)} of all tokens are labelled."]


def what_next(figures: Figures) -> list[str]:
    """What to write, or to mend, before training on this feedback; the next command if there is nothing."""
    found = [text.format(value, **figures) for test, text in RULES if (value := test(figures))]
    if found:
        return found
    first = f"text2grad train --offline learns from it, and from some {FEW_REMARKS} records on "
    few = figures["records"] < FEW_REMARKS
    return [f"Nothing is missing: {first if few else ''}text2grad train-reward learns to write such feedback."]


RULES: tuple[Rule, ...] = (
    (
        lambda f: f["good_share"] is not None and f["good_share"] < LOPSIDED,
        "Mark what is right too: 'good' quotes, or [+...+] in the response.",
    ),
    (
        lambda f: f["good_share"] is not None and f["good_share"] > 1 - LOPSIDED,
        "Mark what is wrong too: 'poor' quotes, or [-...-]{{why}} in the response.",
    ),
    (lambda f: f["unmatched"], "Quote the response word for word (quotes that are not in it: {0})."),
    (
        lambda f: (f["unmatched_rate"] or 0) > MOST_UNMATCHED and f"{f['unmatched_rate']:.1%}",
        "{0} of the quotes are not in their response, above 5 %: they reward nothing (docs/metrics.md).",
    ),
    (lambda f: f["ambiguous"], "Quote a few words more (quotes that are in their response more than once: {0})."),
    (
        lambda f: f["records_without_spans"] if 2 * f["records_without_spans"] > f["records"] else 0,
        "Mark words: {0} of {records} records have none (text2grad annotate --anchor finds those that a critique"
        " is about).",
    ),
    (
        lambda f: f["records"] - f["scored"] if 2 * f["scored"] < f["records"] else 0,
        "Give a score from -1 to 1: {0} of {records} records have none, and what is left out of an answer can only"
        " be paid by it.",
    ),
    (
        lambda f: f["failed"] and sum(f["failed"].values()),
        "Have failures judged again (records: {0}): text2grad annotate --again.",
    ),
    (lambda f: f["repeated_records"], "Leave out what is said twice (records: {0})."),
    (
        lambda f: f["agreement_alpha"] is not None and f["agreement_alpha"] < 0.4 and f["several_annotators"],
        "Write down what counts as good and poor: people agree little (alpha {agreement_alpha}, responses: {0}).",
    ),
    (
        lambda f: f["records"] if f["records"] < FEW else 0,
        "Write more: {0} records check the path, and teach a model little.",
    ),
)


def loss_advice(losses: Sequence[float], section: str, lr: float) -> str:
    """One line if supervised training has not moved the loss; nothing if it has, or if there is too little to tell.

    The first third of the updates is compared with the last. `section` is where the user finds the settings.
    """
    third = len(losses) // 3
    if not third:
        return ""
    first, last = sum(losses[:third]) / third, sum(losses[-third:]) / third
    if last < (1 - LEAST_MOVED) * first:
        return ""
    updates = f"{len(losses)} updates at a learning rate of {lr:g}"
    if last > (1 + RISEN) * first:
        return f"the loss rose ({first:.3g} at first, {last:.3g} at the end, {updates}): lower {section}.lr"
    return (
        f"the loss did not move ({first:.3g} at first, {last:.3g} at the end, {updates}): the model is what it was;"
        f" raise {section}.lr or {section}.epochs"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def worst_first(source: Path, count: int) -> list[Feedback]:
    """The `count` worst judged records of a file: by score, else by the share of poor characters.

    Raises:
        UserError: see `read_jsonl`.
    """
    judged: Iterable[Feedback] = (record for record in read_jsonl(source, Feedback) if record.error is None)
    return heapq.nsmallest(count, judged, key=_goodness)


def _goodness(record: Feedback) -> tuple[float, float]:
    poor = sum(span.end - span.start for span in record.spans if span.label < 0)
    left = 1 - 2 * poor / max(1, len(record.response))
    return (left if record.score is None else record.score), left
