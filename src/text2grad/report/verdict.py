"""What a training that has just ended says, in a sentence or two in the place of its thirty numbers.

All figures stay where they are: in `metrics.jsonl`, in `--json`, in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.report.folder import MetricRow, read_lines

Row = Mapping[str, Any]
ENDS = 0.1
"""The share of the steps, at the beginning and at the end of a run, that are compared."""
NOISE = 2.0
"""Standard errors of the difference, below which a mean of noisy steps has not moved."""
FAR = 1.0
"""Nats a token from where it started: what the policy says there is hardly what it would have said."""
MISLEADING = 0.2
"""A share of labelled tokens with the wrong sign from which on a reward model often pushes the wrong way."""


def training_verdict(folder: Path) -> list[str]:
    """Sentences on the run in a folder; none where it has written no metrics."""
    rows = [row.model_dump() for row in read_lines(folder / "metrics.jsonl", MetricRow, [])]
    known = {name for row in rows for name, value in row.items() if value is not None}
    return [sentence(rows) for name, sentence in SENTENCES.items() if name in known]


def _ends(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    count = max(1, round(ENDS * len(values)))
    return values[:count], values[-count:]


def _score(rows: Sequence[Row]) -> str:
    """Of PPO: whether the critic likes the answers better than at first, beyond the noise of its steps."""
    first, last = _ends(rows, "score")
    moved = fmean(last) - fmean(first)
    scores = [float(row["score"]) for row in rows if row.get("score") is not None]
    between = [after - before for before, after in pairwise(scores)]
    spread = (fmean(each**2 for each in between) / 2) ** 0.5 if between else 0.0
    error = spread * (2 / len(first)) ** 0.5
    words = f"The critic's score went from {fmean(first):+.2f} to {fmean(last):+.2f}"
    if abs(moved) <= NOISE * error:
        return f"{words}: no more than its steps vary. More steps, or a higher ppo.lr, would tell."
    return f"{words}: the answers {'please' if moved > 0 else 'displease'} the critic more than at first."


def _kl(rows: Sequence[Row]) -> str:
    """How far a policy has gone from where it started."""
    far = _ends(rows, "kl_token")[1]
    words = f"It is {fmean(far):.3f} nats a token from where it started"
    return f"{words}: too far to be trusted unread." if fmean(far) > FAR else f"{words}."


def _accuracy(rows: Sequence[Row]) -> str:
    """Of learning from pairs."""
    first, last = _ends(rows, "accuracy")
    return f"Of the pairs in training it ranks {fmean(last):.0%} rightly, at first {fmean(first):.0%}."


def _loss(rows: Sequence[Row]) -> str:
    """Of supervised training."""
    first, last = _ends(rows, "loss")
    words = f"The loss went from {fmean(first):.3g} to {fmean(last):.3g}"
    return f"{words}." if fmean(last) < fmean(first) else f"{words}: nothing was learned."


SENTENCES = {"score": _score, "kl_token": _kl, "accuracy": _accuracy, "loss": _loss}
"""What is said of a run that logs this metric."""


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
