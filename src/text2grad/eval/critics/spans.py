"""Span metrics of a critic against gold critiques, by token, word, character and span. No torch.

Tokens are those that the policy sampled, and labels belong to positions, so the two occurrences of
a repeated word are scored separately and a perfect prediction scores exactly 1.

Every rate is a quotient of sums over responses (`count_case` counts one response), so `intervals`
resamples rows of counts instead of responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from text2grad.align import Aligned, token_labels
from text2grad.feedback import Critique, Failure, Judgement, Label, Span
from text2grad.unicode_words import units

Labels = NDArray[np.int8]
Sums = NDArray[np.float64]
LABEL_NAMES: dict[Label, str] = {1: "good", -1: "poor"}
SPAN_NAMES: dict[Label, str] = {**LABEL_NAMES, 0: "improvable"}
NEARLY, RESAMPLES = 0.9, 1000
UNITS = {"token": "", "word": "word_", "character": "character_"}
"""The units of labels, with their prefix in the names of rates."""


class SpanCase(NamedTuple):
    """One response: the gold critique, the critic's judgement, the tokens, and the question."""

    gold: Critique
    predicted: Judgement
    aligned: Aligned
    question: str = ""


def span_report(cases: Sequence[SpanCase]) -> dict[str, float]:
    """Return all rates of one critic, flat and JSON-ready (docs/reward-models.md).

    Counts are summed over all responses before dividing. An unreadable prediction marks nothing, so
    it misses every gold label. If neither side uses a label, its precision, recall and F1 are 1; if
    only one side uses it, they are 0.

    Returns:
        `good_*`, `poor_*`: `precision`, `recall` and `f1` of the tokens with the label (paper,
        Table 1), and the same over words and signs (`word_*`) and characters (`character_*`), to
        compare critics across tokenizers; `overlap_index`: of the characters with the label on
        either side, the share that has it on both (the paper's Table 6 has such an index without
        its formula);
        `wrong_sign_rate`: of the tokens that the critic labelled, the share with the opposite gold
        label, whose reward would push the wrong way;
        `span_exact_*`: precision, recall and F1 of spans with equal label and bounds;
        `span_partial_*`: the same for spans that share at least one character;
        `span_iou`: mean over the gold spans of the best intersection over union with a predicted
        span (0 without one; 1 if neither side has spans);
        for each label (`improvable_` only if used) `iou`, and the shares of its gold spans that
        match a predicted span: `exact`, `partial` (one shared character) and `nearly` (90 % of the
        longer span is shared; paper, Tables 6 and 7);
        `unreadable`: share of answers that are a `Failure`;
        `unmatched`, `ambiguous`: of all quotes in readable answers, the shares that are not in the
        response (paper, Table 15), or occur several times without naming an occurrence;
        `forced`: share of answers that grounded decoding had to close at the token limit.

    Raises:
        ValueError: no cases.
    """
    if not cases:
        raise ValueError("no critiques to compare")
    rows = [count_case(case) for case in cases]
    sums = {name: np.array(sum(row[name] for row in rows), dtype=np.float64) for name in rows[0]}
    return {name: float(value) for name, value in _rates(sums).items()}


def intervals(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap bounds of every rate in `span_report`, resampling responses."""
    rows = [count_case(case) for case in cases]
    table = np.array([list(row.values()) for row in rows], dtype=np.float64)  # (responses, counts)
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=RESAMPLES)
    sums = dict(zip(rows[0], (times @ table).T, strict=True))
    bounds = {name: np.quantile(values, [0.025, 0.975]) for name, values in _rates(sums).items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def count_case(case: SpanCase) -> dict[str, float]:
    """Return the counts of one response, from which the rates are computed."""
    predicted = () if isinstance(case.predicted, Failure) else case.predicted.spans
    span_counts = _count_spans(case.gold.spans, predicted)
    return {**_count_labels(case, predicted), **span_counts, **_count_quotes(case.predicted)}


def _rates(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    """Compute the rates of `span_report` elementwise from sums of counts."""
    return {**_label_rates(sums), **_span_rates(sums), **_quote_rates(sums)}


def _count_labels(case: SpanCase, spans: Sequence[Span]) -> dict[str, float]:
    """Count tokens, words and characters by gold label, by predicted label, and with both."""
    gold_spans, aligned = case.gold.spans, case.aligned
    places = np.array(list(units(aligned.text)), dtype=np.int64).reshape(-1, 2)
    words = Aligned.of(aligned.text, places[:, 0], places[:, 1])
    labels = {
        "token": (token_labels(gold_spans, aligned), token_labels(spans, aligned)),
        "word": (token_labels(gold_spans, words), token_labels(spans, words)),
        "character": (character_labels(gold_spans, aligned.text), character_labels(spans, aligned.text)),
    }
    counts: dict[str, float] = {}
    for unit, (gold, predicted) in labels.items():
        for label, name in LABEL_NAMES.items():
            counts[f"{name}_{unit}_hits"] = int(((gold == label) & (predicted == label)).sum())
            counts[f"{name}_{unit}_gold"] = int((gold == label).sum())
            counts[f"{name}_{unit}_predicted"] = int((predicted == label).sum())
        counts[f"{unit}_opposite"] = int((gold.astype(np.int64) * predicted < 0).sum())
    return counts


def character_labels(spans: Iterable[Span], text: str) -> Labels:
    """Return 1, -1 or 0 for every character; 0 if it is both good and poor, as with tokens."""
    good, poor = (np.zeros(len(text), dtype=bool) for _ in range(2))
    for span in filter(lambda span: span.label, spans):
        (good if span.label > 0 else poor)[span.start : span.end] = True
    return np.subtract(good, poor, dtype=np.int8)


def _label_rates(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    rates: dict[str, Sums] = {}
    for unit, prefix in UNITS.items():
        for name in LABEL_NAMES.values():
            hits, gold, predicted = (sums[f"{name}_{unit}_{count}"] for count in ("hits", "gold", "predicted"))
            rates |= _f1(f"{name}_{prefix}", hits, predicted, hits, gold)
            if unit == "character":
                rates[f"{name}_overlap_index"] = _share(hits, gold + predicted - hits, predicted)
        predicted = sums[f"good_{unit}_predicted"] + sums[f"poor_{unit}_predicted"]
        rates[f"{prefix}wrong_sign_rate"] = sums[f"{unit}_opposite"] / np.maximum(1, predicted)
    return rates


def _count_spans(gold_spans: Sequence[Span], predicted_spans: Sequence[Span]) -> dict[str, float]:
    """Count, by label, the spans of both sides and those with a match on the other side."""
    counts: dict[str, float] = {}
    for label, name in SPAN_NAMES.items():
        gold, predicted = (
            [span for span in spans if span.label == label] for spans in (gold_spans, predicted_spans)
        )
        gold_ious = [_best_iou(span, predicted) for span in gold]
        predicted_ious = [_best_iou(span, gold) for span in predicted]
        counts |= {
            f"{name}_gold_spans": len(gold),
            f"{name}_predicted_spans": len(predicted),
            f"{name}_exact_gold": gold_ious.count(1.0),
            f"{name}_exact_predicted": predicted_ious.count(1.0),
            f"{name}_partial_gold": sum(iou > 0 for iou in gold_ious),
            f"{name}_partial_predicted": sum(iou > 0 for iou in predicted_ious),
            f"{name}_nearly_gold": sum(_nearly_matches(span, predicted) for span in gold),
            f"{name}_iou": sum(gold_ious),
        }
    return counts


def _span_rates(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    def total(count: str) -> Sums:
        return sums[f"good_{count}"] + sums[f"poor_{count}"]

    gold, predicted = total("gold_spans"), total("predicted_spans")
    rates = {
        **_f1("span_exact_", total("exact_predicted"), predicted, total("exact_gold"), gold),
        **_f1("span_partial_", total("partial_predicted"), predicted, total("partial_gold"), gold),
        "span_iou": _share(total("iou"), gold, predicted),
    }
    for name in SPAN_NAMES.values():
        gold, predicted = sums[f"{name}_gold_spans"], sums[f"{name}_predicted_spans"]
        if name not in LABEL_NAMES.values() and not (gold.any() or predicted.any()):
            continue
        for match in ("exact", "partial", "nearly"):
            rates[f"{name}_{match}"] = _share(sums[f"{name}_{match}_gold"], gold, predicted)
        rates[f"{name}_iou"] = _share(sums[f"{name}_iou"], gold, predicted)
    return rates


def _count_quotes(judgement: Judgement) -> dict[str, float]:
    critique = Critique(text="") if isinstance(judgement, Failure) else judgement
    return {
        "answers": 1,
        "unreadable_answers": int(isinstance(judgement, Failure)),
        "forced_answers": int(critique.forced > 0),
        "quotes": critique.quote_count,
        "unmatched_quotes": critique.quotes.unmatched,
        "ambiguous_quotes": critique.quotes.ambiguous,
    }


def _quote_rates(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    quotes = np.maximum(1, sums["quotes"])
    return {
        "unreadable": sums["unreadable_answers"] / np.maximum(1, sums["answers"]),
        "unmatched": sums["unmatched_quotes"] / quotes,
        "ambiguous": sums["ambiguous_quotes"] / quotes,
        "forced": sums["forced_answers"] / np.maximum(1, sums["answers"]),
    }


def _share(part: Sums, total: Sums, other: Sums) -> Sums:
    """Return part / total; if total is 0, 1 if the other side is 0 too, else 0."""
    return np.where(total > 0, part / np.maximum(1, total), (total == 0) & (other == 0)).astype(np.float64)


def _f1(prefix: str, precise: Sums, predicted: Sums, recalled: Sums, gold: Sums) -> dict[str, Sums]:
    """Return precision = precise / predicted, recall = recalled / gold, and their harmonic mean."""
    precision, recall = _share(precise, predicted, gold), _share(recalled, gold, predicted)
    total = precision + recall
    f1 = np.where(total > 0, 2 * precision * recall / np.where(total > 0, total, 1), 0.0)
    return {f"{prefix}precision": precision, f"{prefix}recall": recall, f"{prefix}f1": f1}


def _best_iou(span: Span, others: Iterable[Span]) -> float:
    """Return the highest intersection over union of a span with the others, in characters."""
    overlaps = [(_overlap(span, other), other.end - other.start) for other in others]
    return max((overlap / (span.end - span.start + length - overlap) for overlap, length in overlaps), default=0.0)


def _overlap(a: Span, b: Span) -> int:
    return max(0, min(a.end, b.end) - max(a.start, b.start))


def _nearly_matches(span: Span, others: Iterable[Span]) -> bool:
    length = span.end - span.start
    return any(_overlap(span, other) >= NEARLY * max(length, other.end - other.start) for other in others)
