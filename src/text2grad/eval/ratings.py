"""Predict people's ratings from features of answers, by ridge regression.

The prediction is of use only if it correlates with people's ratings on answers to questions that it
was not fitted to. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from text2grad.eval.metrics import Correlation, correlation

FOLDS, PENALTY = 5, 1.0
"""Folds of the cross-validation, and the ridge penalty on features of unit variance."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RatingModel:
    """A ridge regression in dual form: its prediction is `offset + z(x) z(X)^T weights / H`.

    `features` (N, H) are X, standardised by `mean` and `scale` (H,); `weights` are (N,).
    """

    features: Array
    mean: Array
    scale: Array
    weights: Array
    offset: float

    @classmethod
    def fit(cls, features: Array, ratings: Array) -> RatingModel:
        """Fit ratings (N,) to features (N, H)."""
        mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
        standardised = (features - mean) / scale
        kernel = standardised @ standardised.T / features.shape[1]  # (N, N), diagonal near 1
        offset = float(ratings.mean())
        weights = np.linalg.solve(kernel + PENALTY * np.eye(len(ratings)), ratings - offset)
        return cls(standardised, mean, scale, weights, offset)

    def predict(self, features: Array) -> Array:
        """Return the predicted ratings (M,) of features (M, H)."""
        standardised = (features - self.mean) / self.scale
        predictions: Array = self.offset + standardised @ self.features.T @ self.weights / features.shape[1]
        return predictions


def heldout_correlation(features: Array, ratings: Array, questions: Sequence[str]) -> Correlation | None:
    """Return Pearson's r of predicted and given ratings, each predicted without its own question.

    None if there are fewer questions than folds, or if all ratings are equal.
    """
    order = {question: number for number, question in enumerate(sorted(set(questions)))}
    folds = np.array([order[question] % FOLDS for question in questions])
    if len(order) < FOLDS:
        return None
    predictions = np.empty(len(ratings))
    for fold in range(FOLDS):
        heldout = folds == fold
        predictions[heldout] = RatingModel.fit(features[~heldout], ratings[~heldout]).predict(features[heldout])
    return correlation(predictions.tolist(), ratings.tolist())
