"""How well a critic marks what a better critic marked: by token, by span, and by what went wrong. No torch.

The tokens are those the policy sampled and a label is a position, so a word that occurs twice is two
chances to be right or wrong, and a perfect prediction scores exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from text2grad.align import Aligned, token_labels
from text2grad.feedback import Critique, Failure, Judgement, Span

Labels = NDArray[np.int8]
LABEL_NAMES: dict[Literal[1, -1], str] = {1: "good", -1: "poor"}


class SpanCase(NamedTuple):
    """One response: the critique held to be right, what the judged critic said, and the response's tokens."""

    gold: Critique
    predicted: Judgement
    aligned: Aligned


def span_report(
    cases: Sequence[SpanCase], membership: Literal["overlap", "contained"] = "overlap"
) -> dict[str, float]:
    """All numbers of this module for one critic, flat and JSON-ready; see docs/metrics.md.

    Raises:
        ValueError: nothing to compare.
    """
    if not cases:
        raise ValueError("no critiques to compare")
    return {
        **token_scores(cases, membership),
        **span_scores(cases),
        **failure_rates(cases),
    }


def token_scores(
    cases: Iterable[SpanCase], membership: Literal["overlap", "contained"] = "overlap"
) -> dict[str, float]:
    """Precision, recall and F1 of each label over all tokens (paper, Table 1), and the wrong-sign rate.

    Tokens are counted over all responses before dividing. An unreadable prediction labels nothing: every
    token that should have been labelled is missed. `wrong_sign_rate` is the share of the tokens the critic
    labelled whose gold label is the opposite one: the reward that would push the wrong way. Of a label that
    neither side uses precision, recall and F1 are 1; of one that only one side uses they are 0.
    """
    pairs = [_labels(case, membership) for case in cases]
    gold, predicted = (np.concatenate(side) for side in zip(*pairs, strict=True))
    scores: dict[str, float] = {}
    for label, name in LABEL_NAMES.items():
        hits = int(((gold == label) & (predicted == label)).sum())
        scores |= _f1(name, hits, int((predicted == label).sum()), hits, int((gold == label).sum()))
    opposed = int((gold * predicted < 0).sum())
    return scores | {"wrong_sign_rate": opposed / max(1, int((predicted != 0).sum()))}


def _labels(case: SpanCase, membership: Literal["overlap", "contained"]) -> tuple[Labels, Labels]:
    gold, predicted, aligned = case
    return (
        token_labels(gold.spans, aligned, membership),
        token_labels(_spans(predicted), aligned, membership),
    )


def _spans(judgement: Judgement) -> tuple[Span, ...]:
    return () if isinstance(judgement, Failure) else judgement.spans


def _f1(name: str, precise: int, predicted: int, recalled: int, gold: int) -> dict[str, float]:
    """Precision = precise / predicted, recall = recalled / gold, and their harmonic mean."""
    nothing = float(predicted == gold == 0)
    precision = precise / predicted if predicted else nothing
    recall = recalled / gold if gold else nothing
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    return {f"{name}_precision": precision, f"{name}_recall": recall, f"{name}_f1": f1}


def span_scores(cases: Iterable[SpanCase]) -> dict[str, float]:
    """Agreement span by span, in characters; two spans can agree only when their labels do.

    Returns:
        `span_exact_*`: precision, recall and F1 of spans with the same first and last character;
        `span_partial_*`: the same, where sharing one character is enough;
        `span_iou`: mean over the gold spans of the best intersection over union with a predicted span
        (0 when there is none; 1 when there are no gold spans and none was predicted).
    """
    recalled: list[float] = []
    precise: list[float] = []
    for gold, judgement, _ in cases:
        predicted = _spans(judgement)
        recalled += [_best(span, predicted) for span in gold.spans]
        precise += [_best(span, gold.spans) for span in predicted]
    return {
        **_f1("span_exact", precise.count(1.0), len(precise), recalled.count(1.0), len(recalled)),
        **_f1("span_partial", _positive(precise), len(precise), _positive(recalled), len(recalled)),
        "span_iou": sum(recalled) / len(recalled) if recalled else float(not precise),
    }


def _positive(overlaps: Iterable[float]) -> int:
    return sum(overlap > 0 for overlap in overlaps)


def _best(span: Span, others: Iterable[Span]) -> float:
    return max((intersection_over_union(span, other) for other in others if other.label == span.label), default=0)


def intersection_over_union(a: Span, b: Span) -> float:
    """Shared characters over all characters of two spans, in [0, 1]."""
    shared = max(0, min(a.end, b.end) - max(a.start, b.start))
    return shared / (a.end - a.start + b.end - b.start - shared)


def failure_rates(cases: Iterable[SpanCase]) -> dict[str, float]:
    """What of the critic's answers could not be used.

    Returns:
        `unreadable`: share of answers that are a `Failure`;
        `unmatched`, `ambiguous`: shares of all quotes in the readable answers that are not in the response
        (paper, Table 15), or that occur more than once and do not say which (METHOD's table).
    """
    judgements = [case.predicted for case in cases]
    readable = [judgement for judgement in judgements if not isinstance(judgement, Failure)]

    def total(count: Callable[[Critique], int]) -> int:
        return sum(map(count, readable))

    unmatched, ambiguous = total(lambda c: c.unmatched), total(lambda c: c.ambiguous)
    quotes = max(1, total(lambda c: len(c.spans)) + unmatched + ambiguous)
    return {
        "unreadable": 1 - len(readable) / max(1, len(judgements)),
        "unmatched": unmatched / quotes,
        "ambiguous": ambiguous / quotes,
    }
