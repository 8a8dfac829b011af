"""Judge new answers by ratings alone, where predicted ratings agree with people's."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from text2grad.eval.ratings import RatingModel, heldout_correlation
from text2grad.feedback import Feedback, Message
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.model import Policy
from text2grad.tasks.base import question_key

BATCH = 8
CURES = "corrections of some answers, comments that quote words, or a judge (--evaluate.judge MODEL)"

Answer = tuple[Sequence[Message], str]
"""A prompt and an answer."""


def has_only_ratings(records: Sequence[Feedback]) -> bool:
    """True if no answer is corrected and no word is marked, but some answers are rated."""
    is_rated = any(record.score is not None for record in records)
    return is_rated and not any(record.spans or record.meta.get("corrected") for record in records)


def predict_ratings(
    policy: Policy, records: Sequence[Feedback], answers: Mapping[str, Sequence[Answer]]
) -> dict[str, list[float]] | None:
    """Predict ratings from 0 to 1 for the answers of each policy, from hidden states of `policy`.

    Returns None, and prints what would help, if predicted and given ratings of held-out questions
    do not correlate significantly.
    """
    rated = [record for record in records if record.score is not None]
    features = _features(policy, [(record.prompt, str(record.response)) for record in rated])
    ratings = np.array([record.score for record in rated], dtype=np.float64)
    agreement = heldout_correlation(features, ratings, [question_key(record) for record in rated])
    if agreement is None or agreement.low <= 0:
        correlation = f"r {agreement.r:.2f} ({agreement.low:.2f} to {agreement.high:.2f})" if agreement else "none"
        print(
            "ratings alone cannot judge new answers: correlation of predicted and given ratings on held-out"
            f" questions: {correlation}, n {len(rated)}. These could: {CURES}",
            file=sys.stderr,
        )
        return None
    print(
        "new answers are judged by predicted ratings: ridge regression on the base model's hidden states,"
        f" held-out r {agreement.r:.2f} ({agreement.low:.2f} to {agreement.high:.2f}), n {len(rated)}",
        file=sys.stderr,
    )
    model = RatingModel.fit(features, ratings)
    predictions = {name: model.predict(_features(policy, pairs)) for name, pairs in answers.items()}
    return {name: ((values.clip(-1, 1) + 1) / 2).tolist() for name, values in predictions.items()}


def _features(policy: Policy, answers: Sequence[Answer]) -> NDArray[np.float64]:
    """Return the mean hidden state (N, H) over the tokens of each answer."""
    limit = policy.context or sys.maxsize
    means = []
    for start in range(0, len(answers), BATCH):
        chunk = answers[start : start + BATCH]
        targets = [encode_target(policy.tokenizer, text)[: limit // 2] for _, text in chunk]
        prompts = [encode_prompt(policy.tokenizer, prompt)[-(limit - limit // 2) :] for prompt, _ in chunk]
        batch = policy.pack(prompts, targets)
        with torch.no_grad():
            hidden = policy.reader(policy.model, batch).hidden[:, 1:].float()  # (B, T, H), after each token
        mask = batch.mask[..., None]
        means.append(((hidden * mask).sum(1) / mask.sum(1).clamp(min=1)).cpu().double().numpy())
    return np.concatenate(means)
