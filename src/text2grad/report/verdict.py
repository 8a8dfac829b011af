"""What the metrics of a training mean, in a sentence each; all figures stay in `metrics.jsonl` and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.report.curves import signed
from text2grad.report.folder import read_metrics

Row = Mapping[str, Any]
ENDS = 0.1
"""The share of the steps, at the beginning and at the end of a run, that are compared."""
NOISE = 2.0
"""Standard errors of the difference, below which a mean of noisy steps has not moved."""
FAR, NEAR = 1.0, 0.001
"""Nats a token from the start: above the first a policy hardly says what it would have said, below the second
nothing has happened."""
MISLEADING = 0.2
"""A share of labelled tokens with the wrong sign from which on a reward model often pushes the wrong way."""


def training_verdict(folder: Path) -> list[str]:
    """Sentences on the run in a folder; none where it has written no metrics."""
    return sentences_of(read_metrics(folder / "metrics.jsonl"))


def sentences_of(rows: Sequence[Row]) -> list[str]:
    """Sentences on a run with these metrics."""
    return [sentence(rows) for names, sentence in SENTENCES.items() if any(values_of(rows, name) for name in names)]


def values_of(rows: Sequence[Row], name: str) -> list[float]:
    """A metric of the steps that have it."""
    return [float(row[name]) for row in rows if row.get(name) is not None]


def _ends(rows: Sequence[Row], name: str) -> tuple[float, float, int]:
    """Means of a metric over the first and the last steps, and how many those are."""
    values = values_of(rows, name)
    count = max(1, round(ENDS * len(values)))
    return fmean(values[:count]), fmean(values[-count:]), count


def _reward(rows: Sequence[Row]) -> str:
    """Whether the critic likes the answers of PPO better than at first, beyond the noise of its steps."""
    name, subject = "score", "The critic's score"
    if _constant(rows, name):
        same = "The critic gives every answer the same score; the" if values_of(rows, name) else "The"
        name, subject = "delta_sum", f"{same} reward of an answer"
        if _constant(rows, name):
            return "Every answer earned the same in every step: nothing to learn (see text2grad sample --critique)."
    first, last, count = _ends(rows, name)
    steps = [(after - before) ** 2 for before, after in pairwise(values_of(rows, name))]
    error = (fmean(steps or [0.0]) / count) ** 0.5  # of the difference of two means
    moved = f"{subject} went from {signed(first)} to {signed(last)}"
    if abs(last - first) <= NOISE * error:
        advice = " More steps, or a higher ppo.lr, would tell." if last >= first else ""
        return f"{moved}: no more than its steps vary.{advice}"
    return f"{moved}: the answers {'please' if last > first else 'displease'} the critic more than at first."


def _constant(rows: Sequence[Row], name: str) -> bool:
    """Whether several steps have this metric, and all the same; also where none has it."""
    values = values_of(rows, name)
    return len(values) != 1 and len({round(value, 9) for value in values}) < 2


def _kl(rows: Sequence[Row]) -> str:
    """How far a policy is from its start."""
    far = _ends(rows, "kl_token")[1]
    if far < NEAR:  # an estimate from samples, which may be below 0 where the distance is about 0
        return f"It has hardly moved: less than {NEAR:g} nats a token from where it started."
    return f"It is {far:.3f} nats a token from where it started{': too far to be trusted unread' * (far > FAR)}."


def _accuracy(rows: Sequence[Row]) -> str:
    first, last, _ = _ends(rows, "accuracy")
    return f"Of the pairs in training it ranks {last:.0%} rightly, at first {first:.0%}."


def _loss(rows: Sequence[Row]) -> str:
    first, last, _ = _ends(rows, "loss")
    return f"The loss went from {first:.3g} to {last:.3g}{': nothing was learned' * (last >= first)}."


SENTENCES = {("score", "delta_sum"): _reward, ("kl_token",): _kl, ("accuracy",): _accuracy, ("loss",): _loss}
"""The sentence on a run that logs one of these metrics."""


def reward_model_verdict(rates: Row) -> list[str]:
    """Sentences on a reward model measured on held-out critiques; none where there are no figures."""
    if rates.get("poor_f1") is None or rates.get("wrong_sign_rate") is None:
        return []
    found = ", ".join(
        f"{rates[f'{label}_recall']:.0%} of the {label} tokens ({rates[f'{label}_precision']:.0%} of what it marks)"
        for label in ("good", "poor")
    )
    wrong = rates["wrong_sign_rate"]
    meaning = "it often pushes the wrong way" if wrong >= MISLEADING else "it mostly has the right sign"
    return [f"On held-out answers it finds {found}.", f"{wrong:.0%} of them have the wrong sign: {meaning}."]
