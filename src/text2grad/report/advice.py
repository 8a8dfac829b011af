"""What a file of feedback teaches, and what to write next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.feedback import Feedback, read_jsonl
from text2grad.report.signs import MOST_UNMATCHED

Figures = Mapping[str, Any]
Rule = tuple[Callable[[Figures], Any], str]
"""A problem if not zero (or None), and its cure; `{name}` is a figure, `{0}` the value."""
FEW_REMARKS = 200
"""Records up to which the marks teach more than a reward model."""
LEAST_MOVED, RISEN = 0.05, 0.2
"""Share by which a loss must fall, or has risen."""
LOPSIDED, FEW, LEAST_ALPHA = 0.2, 50, 0.4
"""Least share of either label, records, agreement (alpha)."""


def judgement(figures: Figures) -> list[str]:
    """What a policy would learn."""
    share = figures["good_share"]
    if share is None:
        paid = (
            "only the verdict of a whole answer is learned from" if figures["scored"] else "nothing can be learned"
        )
        return [f"No token is labelled: {paid}."]
    meaning = "balanced"
    if share < LOPSIDED:
        meaning = "the policy will learn to say less"
    elif share > 1 - LOPSIDED:
        meaning = "the policy will learn to repeat itself"
    labelled = f"{100 * figures['labelled_share']:.0f} % of all tokens are labelled."
    return [f"{100 * share:.0f} % of labelled tokens are praise: {meaning}.", labelled]


def what_next(figures: Figures) -> list[str]:
    """What to write or correct; if nothing, the next command."""
    advice = [text.format(value, **figures) for problem, text in RULES if (value := problem(figures))]
    few = figures["records"] < FEW_REMARKS
    then = f"train --offline (train-reward from {FEW_REMARKS} records on)" if few else "train-reward"
    return advice or [f"Nothing is missing: text2grad {then}."]


def _most(figures: Figures, count: int) -> int:
    """A count above half of the records, else 0."""
    return count if 2 * count > figures["records"] else 0


def _below(value: float | None, least: float) -> bool:
    return value is not None and value < least


RULES: tuple[Rule, ...] = (
    (lambda f: _below(f["good_share"], LOPSIDED), "Mark what is right too: 'good' quotes, or [+...+]."),
    (lambda f: (f["good_share"] or 0) > 1 - LOPSIDED, "Mark what is wrong too: 'poor' quotes, or [-...-]{{why}}."),
    (lambda f: f["unmatched"], "Quote word for word (not in the response: {0})."),
    (
        lambda f: (f["unmatched_rate"] or 0) > MOST_UNMATCHED and f["unmatched_rate"],
        "{0:.1%} of the quotes, above 5 %, are not in their response (docs/metrics.md).",
    ),
    (lambda f: f["ambiguous"], "Quote more words (found more than once: {0})."),
    (
        lambda f: _most(f, f["records_without_spans"]),
        "Mark words: {0} of {records} records have none (or text2grad annotate --anchor).",
    ),
    (
        lambda f: _most(f, f["records"] - f["scored"]),
        "Give a score from -1 to 1, for omissions: {0} of {records} records have none.",
    ),
    (lambda f: sum(f["failed"].values()), "Judge {0} failures again: text2grad annotate --again."),
    (lambda f: f["repeated_records"], "Remove repeated records ({0})."),
    (
        lambda f: _below(f["agreement_alpha"], LEAST_ALPHA) and f["several_annotators"],
        "Define good and poor: annotators disagree (alpha {agreement_alpha}, responses: {0}).",
    ),
    (lambda f: f["records"] < FEW and f["records"], "Write more: {0} records teach little."),
)


def loss_advice(losses: Sequence[float], section: str, lr: float) -> str:
    """A line if the loss did not fall from the first third to the last, else empty; `section` has the settings."""
    third = len(losses) // 3
    if not third:
        return ""
    first, last = sum(losses[:third]) / third, sum(losses[-third:]) / third
    if last < (1 - LEAST_MOVED) * first:
        return ""
    ends = f"{first:.3g} at first, {last:.3g} at the end, {len(losses)} updates at a learning rate of {lr:g}"
    if last > (1 + RISEN) * first:
        return f"the loss rose ({ends}): lower {section}.lr"
    return f"the loss did not move ({ends}): raise {section}.lr or {section}.epochs"


def worst_first(source: Path, count: int) -> list[Feedback]:
    """The `count` worst judged records of a file: by score, else by the share of poor characters."""
    judged: Iterable[Feedback] = (record for record in read_jsonl(source, Feedback) if record.error is None)
    return heapq.nsmallest(count, judged, key=_goodness)


def _goodness(record: Feedback) -> tuple[float, float]:
    poor = sum(span.end - span.start for span in record.spans if span.label < 0)
    left = 1 - 2 * poor / max(1, len(record.response))
    return (left if record.score is None else record.score), left
