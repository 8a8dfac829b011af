"""Tell which policy answers held-out questions best: by feedback, predicted ratings and a judge."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from text2grad.config import Config
from text2grad.eval.improvement import Comparison, compare, expectations
from text2grad.eval.judge import AnswerPair
from text2grad.eval.metrics import Interval
from text2grad.eval.ratings import RatingModel, heldout_correlation
from text2grad.feedback import Example, Feedback, Message
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.model import Policy
from text2grad.stages.evaluate.answers import judge_against, judge_of_answers
from text2grad.stages.improve.plan import Plan
from text2grad.stages.run_folder import ANSWERS, BASE, RunFolder, read_json
from text2grad.tasks.base import question_key, question_text

BATCH = 8
CURES = "corrections of some answers, comments that quote words, or a judge (--evaluate.judge MODEL)"

Answer = tuple[Sequence[Message], str]
"""A prompt and an answer."""


def best_policy(config: Config, run: RunFolder, records: Sequence[Feedback], plan: Plan) -> tuple[Comparison, str]:
    """Return the trained policy with the largest gain over the base, the later one of equals."""
    questions = {example.id: question_text(example) for example in plan.heldout}
    expected = expectations(records, questions.values())
    answers = {name: _read_answers(run, name, questions) for name in (BASE, *plan.steps)}
    ratings: dict[str, dict[str, float]] | None = None
    if has_only_ratings(records):
        # Likeness to a praised answer of another model says little about new answers.
        expected = {question: replace(expectation, praised="") for question, expectation in expected.items()}
        prompts = {question_text(example): example.prompt for example in plan.heldout}
        pairs = {name: [(prompts[key], text) for key, text in texts.items()] for name, texts in answers.items()}
        predicted = predict_ratings(run.load_policy(BASE), records, pairs)
        if predicted is not None:
            ratings = {name: dict(zip(answers[name], predicted[name], strict=True)) for name in answers}
    comparisons = {
        name: compare(expected, answers[BASE], answers[name], [ratings[BASE], ratings[name]] if ratings else None)
        for name in plan.steps
    }

    def gain(name: str) -> float:
        interval = comparisons[name].gain
        return interval.mean if interval else 0.0

    best = max(reversed(plan.steps), key=gain)
    if not config.evaluate.judge:
        return comparisons[best], best
    return ask_judge(config, comparisons[best], plan.heldout, answers[BASE], answers[best]), best


def _read_answers(run: RunFolder, name: str, questions: Mapping[str, str]) -> dict[str, str]:
    rows = read_json(run.results / f"{name}{ANSWERS}")
    return {questions[row["id"]]: str(row["response"]) for row in rows if row["id"] in questions}


# Ratings.


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


# A judge.


def ask_judge(
    config: Config,
    comparison: Comparison,
    heldout: Sequence[Example],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> Comparison:
    """Ask `evaluate.judge` about each pair of answers, blindly and in both orders.

    The judge decides if `comparison`, which people's feedback made, has no gain. Otherwise it only
    rules out a policy that loses beyond chance. `before` and `after` are answers by question.

    Raises:
        UserError: the judge cannot be asked.
    """
    questions = [question_text(example) for example in heldout]
    pairs = [
        AnswerPair(example, after[question], before[question])
        for example, question in zip(heldout, questions, strict=True)
        if question in before and question in after
    ]
    figures = judge_against(judge_of_answers(config), BASE, pairs)
    if not figures["judge_judged"]:
        print(f"judge {config.evaluate.judge}: no readable verdict", file=sys.stderr)
        return comparison
    margin = Interval(*(float(figures[f"judge_{name}"]) for name in ("margin", "margin_low", "margin_high")))
    shares = ", ".join(f"{name} {figures[f'judge_{name}']:.2f}" for name in ("win", "tie", "loss"))
    interval = f"margin {margin.mean:+.2f}, 95 % interval {margin.low:+.2f} to {margin.high:+.2f}"
    print(f"judge {config.evaluate.judge}, {len(pairs)} questions: {shares}; {interval}", file=sys.stderr)
    if comparison.gain is None or margin.high < 0:
        return replace(comparison, gain=margin)
    return comparison
