"""What a training that has just ended says, in a sentence or two in the place of its thirty numbers.

All figures stay where they are: in `metrics.jsonl`, in `--json`, in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.report.curves import signed
from text2grad.report.folder import MetricRow, read_lines

Row = Mapping[str, Any]
ENDS = 0.1
"""The share of the steps, at the beginning and at the end of a run, that are compared."""
NOISE = 2.0
"""Standard errors of the difference, below which a mean of noisy steps has not moved."""
FAR, NEAR = 1.0, 0.001
"""Nats a token from where it started: above the first a policy hardly says what it would have said, below the
second nothing has happened."""
MISLEADING = 0.2
"""A share of labelled tokens with the wrong sign from which on a reward model often pushes the wrong way."""


def training_verdict(folder: Path) -> list[str]:
    """Sentences on the run in a folder; none where it has written no metrics."""
    return sentences_of([row.model_dump() for row in read_lines(folder / "metrics.jsonl", MetricRow, [])])


def sentences_of(rows: Sequence[Row]) -> list[str]:
    """Sentences on a run with these metrics."""
    known = {name for row in rows for name, value in row.items() if value is not None}
    return [sentence(rows) for names, sentence in SENTENCES.items() if known & set(names)]


def _ends(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    values = _values(rows, name)
    count = max(1, round(ENDS * len(values)))
    return values[:count], values[-count:]


def _reward(rows: Sequence[Row]) -> str:
    """Of PPO: whether the critic likes the answers better than at first, beyond the noise of its steps."""
    name, words = ("score", "The critic's score")
    if _constant(rows, name):
        same = "The critic gives every answer the same score; the" if _values(rows, name) else "The"
        name, words = ("delta_sum", f"{same} reward of an answer")
        if _constant(rows, name):
            return (
                "Every answer earned the same in every step, so there was nothing to learn from: see what the"
                " critic says of them (text2grad sample --critique)."
            )
    first, last = _ends(rows, name)
    moved = fmean(last) - fmean(first)
    between = [after - before for before, after in pairwise(_values(rows, name))]
    spread = (fmean(each**2 for each in between) / 2) ** 0.5 if between else 0.0
    error = spread * (2 / len(first)) ** 0.5
    words = f"{words} went from {signed(fmean(first))} to {signed(fmean(last))}"
    if abs(moved) <= NOISE * error:
        advice = " More steps, or a higher ppo.lr, would tell." if moved >= 0 else ""
        return f"{words}: no more than its steps vary.{advice}"
    return f"{words}: the answers {'please' if moved > 0 else 'displease'} the critic more than at first."


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row.get(name) is not None]


def _constant(rows: Sequence[Row], name: str) -> bool:
    """Whether several steps have this metric, and all the same; also where none has it."""
    values = _values(rows, name)
    return len(values) != 1 and len({round(value, 9) for value in values}) < 2


def _kl(rows: Sequence[Row]) -> str:
    """How far a policy has gone from where it started."""
    far = fmean(_ends(rows, "kl_token")[1])
    if far < NEAR:  # an estimate from samples, which may be below 0 where the distance is about 0
        return f"It has hardly moved: less than {NEAR:g} nats a token from where it started."
    words = f"It is {far:.3f} nats a token from where it started"
    return f"{words}: too far to be trusted unread." if far > FAR else f"{words}."


def _accuracy(rows: Sequence[Row]) -> str:
    """Of learning from pairs."""
    first, last = _ends(rows, "accuracy")
    return f"Of the pairs in training it ranks {fmean(last):.0%} rightly, at first {fmean(first):.0%}."


def _loss(rows: Sequence[Row]) -> str:
    """Of supervised training."""
    first, last = _ends(rows, "loss")
    words = f"The loss went from {fmean(first):.3g} to {fmean(last):.3g}"
    return f"{words}." if fmean(last) < fmean(first) else f"{words}: nothing was learned."


SENTENCES = {("score", "delta_sum"): _reward, ("kl_token",): _kl, ("accuracy",): _accuracy, ("loss",): _loss}
"""What is said of a run that logs one of these metrics."""


def reward_model_verdict(rates: Row) -> list[str]:
    """Sentences on a reward model measured on held-out critiques; none where there are no figures."""
    if rates.get("poor_f1") is None or rates.get("wrong_sign_rate") is None:
        return []
    found = ", ".join(
        f"{rates[f'{label}_recall']:.0%} of the {label} tokens ({rates[f'{label}_precision']:.0%} of what it marks)"
        for label in ("good", "poor")
    )
    wrong = rates["wrong_sign_rate"]
    meaning = "it often pushes the wrong way" if wrong >= MISLEADING else "what it marks mostly has the right sign"
    return [
        f"On held-out answers it finds {found}.",
        f"{wrong:.0%} of the tokens that it marks are marked as the opposite there: {meaning}.",
    ]
