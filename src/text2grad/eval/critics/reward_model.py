"""Measure a reward model against annotations and baselines, and summarise its rewards. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from text2grad.align import Aligned, CreditSettings, credit, token_labels
from text2grad.eval.critics.spans import LABEL_NAMES, SpanCase, intervals, span_report
from text2grad.eval.metrics import Correlation, by_length, correlation, mean, rouge
from text2grad.feedback import Critique, Failure, Judgement, Label, Span

LABEL_RATES = ("precision", "recall", "f1", "exact", "partial", "nearly", "iou", "overlap_index")
DRAWS_PER_CASE, MAX_DRAWS = 20, 4000


def reward_model_report(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, Any]:
    """Return the figures of the paper's Tables 1, 6, 7, 15 and 19 for one critic.

    docs/reward-models.md explains them.

    Raises:
        ValueError: no cases.
    """
    rates = span_report(cases)
    bounds = {name: list(interval) for name, interval in intervals(cases, seed=seed).items()}
    gold = Counter(span.label for case in cases for span in case.gold.spans)
    critiques = [case.predicted for case in cases if isinstance(case.predicted, Critique)]
    predicted = Counter(span.label for critique in critiques for span in critique.spans)
    verdict = verdict_correlation(cases)
    labels = {
        name: {
            **{rate: rates[f"{name}_{rate}"] for rate in LABEL_RATES},
            "intervals": {rate: bounds[f"{name}_{rate}"] for rate in LABEL_RATES},
            "words": {rate: rates[f"{name}_word_{rate}"] for rate in LABEL_RATES[:3]},
            "characters": {rate: rates[f"{name}_character_{rate}"] for rate in LABEL_RATES[:3]},
            "gold_spans": gold[label],
            "predicted_spans": predicted[label],
            "by_length": accuracy_by_length(cases, label),
        }
        for label, name in LABEL_NAMES.items()
    }
    return {
        **rates,
        **labels,
        "exact": rates["span_exact_recall"],
        "partial": rates["span_partial_recall"],
        "iou": rates["span_iou"],
        "wrong_sign": rates["wrong_sign_rate"],
        "intervals": {
            name: bounds[name] for name in ("wrong_sign_rate", "span_iou", "unreadable", "unmatched", "forced")
        },
        "rouge": critique_rouge(cases),
        "verdict": None if verdict is None else verdict._asdict(),
        "verdict_order": verdict_order(cases),
        "baselines": baselines(cases, seed),
        "records": len(cases),
    }


def verdict_correlation(cases: Sequence[SpanCase]) -> Correlation | None:
    """Correlate predicted with annotated verdicts, over the answers that have both."""
    pairs = [(case.gold.score, case.predicted.score) for case in cases if isinstance(case.predicted, Critique)]
    scores = [(gold, predicted) for gold, predicted in pairs if gold is not None and predicted is not None]
    return correlation([gold for gold, _ in scores], [predicted for _, predicted in scores])


def verdict_order(cases: Sequence[SpanCase]) -> float | None:
    """Return the share of answer pairs that the predicted verdicts order like the annotated ones.

    Pairs are answers to one question with different annotated verdicts. Equal and missing predicted
    verdicts count one half. None without such pairs.
    """
    questions: dict[str, list[SpanCase]] = {}
    for case in cases:
        questions.setdefault(case.question, []).append(case)
    questions.pop("", None)
    pairs = [pair for answers in questions.values() for pair in combinations(answers, 2)]
    golden = [_compare_verdicts(a.gold, b.gold) for a, b in pairs]
    agreements = [
        0.5 + 0.5 * gold * _compare_verdicts(a.predicted, b.predicted)
        for gold, (a, b) in zip(golden, pairs, strict=True)
        if gold
    ]
    return mean(agreements) if agreements else None


def _compare_verdicts(first: Judgement, second: Judgement) -> int:
    """Return 1 if the first verdict is higher, -1 if the second is, 0 if equal or missing."""
    a, b = (judgement.score if isinstance(judgement, Critique) else None for judgement in (first, second))
    return 0 if a is None or b is None else (a > b) - (a < b)


def accuracy_by_length(cases: Sequence[SpanCase], label: Label) -> list[dict[str, float]]:
    """Return the share of gold-span tokens with the right label, by quartile of span length.

    Lengths are in tokens (`by_length`). Spans without a token are skipped.
    """
    counts = [pair for case in cases for pair in _count_span_tokens(case, label)]
    return by_length(counts, lambda quarter: float(quarter[:, 1].sum() / quarter[:, 0].sum()))


def _count_span_tokens(case: SpanCase, label: Label) -> list[tuple[int, int]]:
    """Return (tokens, correctly labelled tokens) of every gold span of a label."""
    spans = case.predicted.spans if isinstance(case.predicted, Critique) else ()
    predicted = token_labels(spans, case.aligned)
    masks = [token_labels([span], case.aligned) == label for span in case.gold.spans]
    return [(int(mask.sum()), int((predicted[mask] == label).sum())) for mask in masks if mask.any()]


def critique_rouge(cases: Sequence[SpanCase]) -> dict[str, float]:
    """Return ROUGE of the critique texts, if annotated; an unreadable answer scores 0."""
    annotated = [case for case in cases if case.gold.text.strip()]
    texts = ["" if isinstance(case.predicted, Failure) else case.predicted.text for case in annotated]
    return rouge([case.gold.text for case in annotated], texts) if annotated else {}


def baselines(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, Any]:
    """Return the rates of `always_neutral`, `always_good`, `always_poor` and `random_spans`.

    `random_spans` copies the labels and token lengths of a random annotation to random places of a
    response, 20 times per response (less often for many responses).
    """
    rates: dict[str, dict[str, float]] = {}
    for label, name in ((0, "neutral"), *LABEL_NAMES.items()):
        constant = [case._replace(predicted=_constant_critique(case.aligned.text, label)) for case in cases]
        rates[f"always_{name}"] = span_report(constant)
    rng = np.random.default_rng(seed)
    layouts = [_span_layout(case) for case in cases]
    drawn = []
    for case in list(cases) * max(1, min(DRAWS_PER_CASE, MAX_DRAWS // len(cases))):
        spans = _place_randomly(layouts[rng.integers(len(cases))], case.aligned, rng)
        drawn.append(case._replace(predicted=Critique(text="", spans=spans)))
    return {**rates, "random_spans": span_report(drawn)}


def _constant_critique(text: str, label: int) -> Critique:
    """Give one label to a whole response; mark nothing for label 0."""
    if not label or not text:
        return Critique(text="")
    return Critique(text="", spans=(Span(start=0, end=len(text), label=1 if label > 0 else -1, text=text),))


def _span_layout(case: SpanCase) -> list[tuple[Label, int]]:
    """Return label and number of visible tokens of every good or poor gold span."""
    visible = case.aligned.core_ends > case.aligned.core_starts
    return [
        (span.label, max(1, int(np.count_nonzero(visible & (token_labels([span], case.aligned) != 0)))))
        for span in case.gold.spans
        if span.label
    ]


def _place_randomly(
    layout: Sequence[tuple[Label, int]], aligned: Aligned, rng: np.random.Generator
) -> tuple[Span, ...]:
    """Return spans of this layout at random places, truncated to the length of the response."""
    visible = np.flatnonzero(aligned.core_ends > aligned.core_starts)
    spans = []
    for label, length in layout if len(visible) else ():
        size = min(length, len(visible))
        first = int(rng.integers(len(visible) - size + 1))
        start, end = int(aligned.core_starts[visible[first]]), int(aligned.core_ends[visible[first + size - 1]])
        spans.append(Span(start=start, end=end, label=label, text=aligned.text[start:end]))
    return tuple(spans)


def reward_report(
    judgements: Sequence[Judgement], aligned: Sequence[Aligned], settings: CreditSettings
) -> dict[str, float]:
    """Summarise a reward model's rewards for a policy's answers (docs/deploy.md).

    Returns:
        `token_reward`: mean delta over all tokens, with the share of the verdict; `span_reward`:
        the same without the verdict; `answer_reward`: mean over answers of the summed delta;
        `good_tokens`, `poor_tokens`: shares of tokens in a good or poor span; `verdict`: mean
        score; `length`: mean tokens of an answer; `unmatched`: unmatched quotes per answer;
        `critic_failed`: share of answers without a readable critique, which all other figures
        leave out.

    Raises:
        ValueError: no judgements.
    """
    if not judgements:
        raise ValueError("no answers were judged")
    readable = [
        (judgement, answer)
        for judgement, answer in zip(judgements, aligned, strict=True)
        if not isinstance(judgement, Failure)
    ]
    tokens = max(1, sum(len(answer) for _, answer in readable))
    credits = [credit(critique, answer, settings) for critique, answer in readable]
    rewards = [float(paid.delta.sum()) for paid in credits]
    span_rewards = [float(paid.word_rewards.sum()) for paid in credits]
    labels = [token_labels(critique.spans, answer) for critique, answer in readable]
    return {
        "token_reward": sum(rewards) / tokens,
        "span_reward": sum(span_rewards) / tokens,
        "answer_reward": sum(rewards) / max(1, len(readable)),
        "good_tokens": sum(int((answer_labels == 1).sum()) for answer_labels in labels) / tokens,
        "poor_tokens": sum(int((answer_labels == -1).sum()) for answer_labels in labels) / tokens,
        "verdict": mean([critique.score for critique, _ in readable if critique.score is not None]),
        "length": mean([float(len(answer)) for _, answer in readable]),
        "critic_failed": 1 - len(readable) / len(judgements),
        "unmatched": sum(critique.quotes.unmatched for critique, _ in readable) / max(1, len(readable)),
    }
