"""Pairwise accuracy of rewards with its interval, and their length bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from text2grad.eval.metrics import correlation, mean_with_interval


def preference_report(
    chosen: Sequence[float],
    rejected: Sequence[float],
    lengths: Sequence[tuple[int, int]],
    questions: Sequence[str],
    seed: int = 0,
) -> dict[str, float]:
    """Figures of the rewards of held-out pairs.

    Args:
        chosen, rejected: the rewards of both answers.
        lengths: of both answers, in any unit.
        questions: what each pair is about; pairs of one question are resampled together.
        seed: of the resampling.

    Returns:
        `pairs`, `questions`; `loss`, the mean of -log sigmoid(margin); `accuracy`, the share of pairs whose chosen
        answer has the higher reward (half of one where they are equal), as a mean over the questions, with its 95 %
        interval; `longer_accuracy`, that of preferring the longer answer; `length_correlation` of reward and length
        over all answers (Pearson; left out where either is constant).

    Raises:
        ValueError: no pairs, or columns of different lengths.
    """
    margins = [one - other for one, other in zip(chosen, rejected, strict=True)]
    longer = [float(one - other) for one, other in lengths]
    accuracy = mean_with_interval(_by_question(margins, questions), seed=seed)
    report = {
        "pairs": float(len(margins)),
        "questions": float(len(set(questions))),
        "loss": float(np.logaddexp(0.0, -np.array(margins)).mean()),
        "accuracy": accuracy.mean,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "longer_accuracy": float(np.mean(_by_question(longer, questions))),
    }
    sizes = [float(size) for side in zip(*lengths, strict=True) for size in side]
    if found := correlation([*chosen, *rejected], sizes):
        report["length_correlation"] = found.r
    return report


def _by_question(margins: Sequence[float], questions: Sequence[str]) -> list[float]:
    """Pairwise accuracy per question; a tie counts half."""
    found: dict[str, list[float]] = {}
    for margin, question in zip(margins, questions, strict=True):
        found.setdefault(question, []).append((float(np.sign(margin)) + 1) / 2)
    return [float(np.mean(each)) for each in found.values()]
