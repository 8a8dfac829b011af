"""The metrics of a training in sentences."""

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
"""Share of the steps compared, at each end of a run."""
NOISE = 2.0
"""Standard errors within which a mean has not moved."""
FAR, NEAR = 1.0, 0.001
"""Nats a token from the start: too far, and no movement."""
MISLEADING = 0.2
"""Share of labelled tokens with the wrong sign that misleads."""


def training_verdict(folder: Path) -> list[str]:
    """Sentences on the run in a folder; none without metrics."""
    return sentences_of(read_metrics(folder / "metrics.jsonl"))


def sentences_of(rows: Sequence[Row]) -> list[str]:
    """Sentences on a run with these metrics."""
    return [sentence(rows) for names, sentence in SENTENCES.items() if any(values_of(rows, name) for name in names)]


def values_of(rows: Sequence[Row], name: str) -> list[float]:
    """A metric of the steps that have it."""
    return [float(row[name]) for row in rows if row.get(name) is not None]


def _ends(rows: Sequence[Row], name: str) -> tuple[float, float, int]:
    """Means of a metric over the first and the last steps, and their number."""
    values = values_of(rows, name)
    count = max(1, round(ENDS * len(values)))
    return fmean(values[:count]), fmean(values[-count:]), count


def _reward(rows: Sequence[Row]) -> str:
    name, subject = "score", "The critic's score"
    if _constant(rows, name):
        name, subject = (
            "delta_sum",
            "The reward of an answer" + " (all scores are equal)" * bool(values_of(rows, name)),
        )
        if _constant(rows, name):
            return "Every answer earned the same, nothing was learned (see text2grad sample --critique)."
    first, last, count = _ends(rows, name)
    squares = [(after - before) ** 2 for before, after in pairwise(values_of(rows, name))]
    error = (fmean(squares or [0.0]) / count) ** 0.5  # of the difference of two means
    moved = f"{subject} went from {signed(first)} to {signed(last)}"
    if abs(last - first) <= NOISE * error:
        return f"{moved}, within its noise{': try more steps, or a higher ppo.lr' if last >= first else ''}."
    return f"{moved}: {'better' if last > first else 'worse'}."


def _constant(rows: Sequence[Row], name: str) -> bool:
    """Whether several steps have this metric, all the same, or none has it."""
    values = values_of(rows, name)
    return len(values) != 1 and len({round(value, 9) for value in values}) < 2


def _kl(rows: Sequence[Row]) -> str:
    far = _ends(rows, "kl_token")[1]
    if far < NEAR:  # an estimate from samples, which may be below 0 where the distance is about 0
        return f"It has hardly moved: less than {NEAR:g} nats a token from where it started."
    return f"It is {far:.3f} nats a token from where it started{': read its answers' * (far > FAR)}."


def _accuracy(rows: Sequence[Row]) -> str:
    first, last, _ = _ends(rows, "accuracy")
    return f"Training pairs ranked correctly: {last:.0%}, at first {first:.0%}."


def _loss(rows: Sequence[Row]) -> str:
    first, last, _ = _ends(rows, "loss")
    return f"The loss went from {first:.3g} to {last:.3g}{': nothing was learned' * (last >= first)}."


SENTENCES = {("score", "delta_sum"): _reward, ("kl_token",): _kl, ("accuracy",): _accuracy, ("loss",): _loss}
"""The sentence on runs with one of these metrics."""


def reward_model_verdict(rates: Row) -> list[str]:
    """Sentences on a reward model measured on held-out critiques; none without figures."""
    if rates.get("poor_f1") is None or rates.get("wrong_sign_rate") is None:
        return []
    shares = ", ".join(
        f"{rates[f'{label}_recall']:.0%} of the {label} tokens (precision {rates[f'{label}_precision']:.0%})"
        for label in ("good", "poor")
    )
    wrong = rates["wrong_sign_rate"]
    meaning = "too many" if wrong >= MISLEADING else "few enough"
    return [
        f"On held-out answers it finds {shares}.",
        f"Marked tokens with the wrong sign: {wrong:.0%}, {meaning}.",
    ]
