"""A reward model measured against annotations and the baselines it must beat; its rewards in
numbers. No torch."""

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
PLACEMENTS, DRAWS = 20, 4000


def reward_model_report(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, Any]:
    """Every figure of the paper's Tables 1, 6, 7, 15 and 19 for one critic, JSON-ready; see
    docs/metrics.md.

    Raises:
        ValueError: nothing to compare.
    """
    rates = span_report(cases)
    bounds = {name: list(both) for name, both in intervals(cases, seed=seed).items()}
    gold = Counter(span.label for case in cases for span in case.gold.spans)
    read = [case.predicted for case in cases if isinstance(case.predicted, Critique)]
    said = Counter(span.label for critique in read for span in critique.spans)
    labels = {
        name: {
            **{rate: rates[f"{name}_{rate}"] for rate in LABEL_RATES},
            "intervals": {rate: bounds[f"{name}_{rate}"] for rate in LABEL_RATES},
            "characters": {rate: rates[f"{name}_character_{rate}"] for rate in LABEL_RATES[:3]},
            "gold_spans": gold[label],
            "predicted_spans": said[label],
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
        "verdict": None if (found := verdicts(cases)) is None else found._asdict(),
        "verdict_order": verdict_order(cases),
        "baselines": baselines(cases, seed),
        "records": len(cases),
    }


def verdicts(cases: Sequence[SpanCase]) -> Correlation | None:
    """How the verdicts follow those of the annotations, over the answers that have both."""
    read = [(case.gold.score, case.predicted.score) for case in cases if isinstance(case.predicted, Critique)]
    both = [(gold, said) for gold, said in read if gold is not None and said is not None]
    return correlation([gold for gold, _ in both], [said for _, said in both])


def verdict_order(cases: Sequence[SpanCase]) -> float | None:
    """The share of two answers to one question, which the annotations tell apart, that the verdicts
    order alike.

    Equal verdicts, and one that is missing, count one half. None: there are no such answers.
    """
    pairs = [(a, b) for a, b in combinations(cases, 2) if a.question and a.question == b.question]
    golden = [_ahead(a.gold, b.gold) for a, b in pairs]
    alike = [
        0.5 + 0.5 * gold * _ahead(a.predicted, b.predicted)
        for gold, (a, b) in zip(golden, pairs, strict=True)
        if gold
    ]
    return mean(alike) if alike else None


def _ahead(one: Judgement, other: Judgement) -> int:
    """1 or -1 where the first or the second verdict is higher, else 0."""
    scores = [each.score if isinstance(each, Critique) else None for each in (one, other)]
    first, second = scores
    return 0 if first is None or second is None else (first > second) - (first < second)


def accuracy_by_length(cases: Sequence[SpanCase], label: Label) -> list[dict[str, float]]:
    """Share of the tokens of gold spans that got their label, by quartile of span length in tokens
    (`by_length`).

    Spans without a token are skipped.
    """
    measured = [pair for case in cases for pair in _spans_measured(case, label)]
    return by_length(measured, lambda quarter: float(quarter[:, 1].sum() / quarter[:, 0].sum()))


def _spans_measured(case: SpanCase, label: Label) -> list[tuple[int, int]]:
    """(tokens, of them labelled alike by the prediction) of each gold span of a label."""
    said = case.predicted.spans if isinstance(case.predicted, Critique) else ()
    guess = token_labels(said, case.aligned)
    gold = [token_labels([span], case.aligned) == label for span in case.gold.spans]
    return [(int(inside.sum()), int((guess[inside] == label).sum())) for inside in gold if inside.any()]


def critique_rouge(cases: Sequence[SpanCase]) -> dict[str, float]:
    """ROUGE of the critiques' texts where the annotation has one; an unreadable answer scores 0."""
    told = [case for case in cases if case.gold.text.strip()]
    said = ["" if isinstance(case.predicted, Failure) else case.predicted.text for case in told]
    return rouge([case.gold.text for case in told], said) if told else {}


def baselines(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, Any]:
    """The scores of critics that know nothing: `always_neutral`, `always_good`, `always_poor`, and
    `random_spans`.

    The last marks random places with as many spans as a randomly chosen annotation of these records
    has, of the same labels and lengths in tokens; the rates are over 20 draws for each response
    (fewer for many responses).
    """
    known: dict[str, dict[str, float]] = {}
    for label, name in ((0, "neutral"), *LABEL_NAMES.items()):
        alike = [case._replace(predicted=_whole(case.aligned.text, label)) for case in cases]
        known[f"always_{name}"] = span_report(alike)
    rng = np.random.default_rng(seed)
    shapes = [_shape(case) for case in cases]
    drawn = []
    for case in list(cases) * max(1, min(PLACEMENTS, DRAWS // len(cases))):
        spans = _scattered(shapes[rng.integers(len(cases))], case.aligned, rng)
        drawn.append(case._replace(predicted=Critique(text="", spans=spans)))
    return {**known, "random_spans": span_report(drawn)}


def _whole(text: str, label: int) -> Critique:
    """One label for a whole response; none for 0."""
    if not label or not text:
        return Critique(text="")
    return Critique(text="", spans=(Span(start=0, end=len(text), label=1 if label > 0 else -1, text=text),))


def _shape(case: SpanCase) -> list[tuple[Label, int]]:
    """Label and visible tokens of each gold span."""
    solid = case.aligned.core_ends > case.aligned.core_starts
    lengths = [int(np.count_nonzero(solid & (token_labels([span], case.aligned) != 0))) for span in case.gold.spans]
    measured = zip(case.gold.spans, lengths, strict=True)
    return [(span.label, max(1, length)) for span, length in measured if span.label]


def _scattered(shape: Sequence[tuple[Label, int]], aligned: Aligned, rng: np.random.Generator) -> tuple[Span, ...]:
    """Spans of these labels and lengths at random places of a response, cut where it is shorter."""
    solid = np.flatnonzero(aligned.core_ends > aligned.core_starts)
    spans = []
    for label, length in shape if len(solid) else ():
        size = min(length, len(solid))
        first = int(rng.integers(len(solid) - size + 1))
        start, end = int(aligned.core_starts[solid[first]]), int(aligned.core_ends[solid[first + size - 1]])
        spans.append(Span(start=start, end=end, label=label, text=aligned.text[start:end]))
    return tuple(spans)


def reward_report(
    judgements: Sequence[Judgement], aligned: Sequence[Aligned], settings: CreditSettings
) -> dict[str, float]:
    """What a reward model gives a policy's answers: means over those it could read; see
    docs/metrics.md.

    Returns:
        `token_reward`: mean delta of a token (all tokens of all answers alike), the verdict's share
        included; `span_reward`: the same of the spans alone, without the verdict;
        `answer_reward`: mean over answers of their summed delta;
        `good_tokens`, `poor_tokens`: shares of the tokens that belong to a good, a poor span;
        `verdict`: mean score; `length`: mean tokens of an answer (the first four fall or rise with
        it); `critic_failed`: share of answers whose critique could not be read, which the others
        leave out; `unmatched`: quotes an answer that are not in it.

    Raises:
        ValueError: nothing was judged.
    """
    if not judgements:
        raise ValueError("no answers were judged")
    pairs = list(zip(judgements, aligned, strict=True))
    read = [(said, place) for said, place in pairs if not isinstance(said, Failure)]
    tokens = max(1, sum(len(place) for _, place in read))
    spans_only = settings.model_copy(update={"outcome_weight": 0.0})
    summed = [float(credit(said, place, settings).delta.sum()) for said, place in read]
    of_spans = [float(credit(said, place, spans_only).delta.sum()) for said, place in read]
    labels = [token_labels(said.spans, place) for said, place in read]
    return {
        "token_reward": sum(summed) / tokens,
        "span_reward": sum(of_spans) / tokens,
        "answer_reward": sum(summed) / max(1, len(read)),
        "good_tokens": sum(int((each == 1).sum()) for each in labels) / tokens,
        "poor_tokens": sum(int((each == -1).sum()) for each in labels) / tokens,
        "verdict": mean([said.score for said, _ in read if said.score is not None]),
        "length": mean([float(len(place)) for _, place in read]),
        "critic_failed": 1 - len(read) / len(pairs),
        "unmatched": sum(said.quotes.unmatched for said, _ in read) / max(1, len(read)),
    }
