"""Span metrics of a critic against a gold critic: by token, by character, by span, and by kind of
error.

The tokens are those the policy sampled and a label is a position, so a word that occurs twice is
two chances to be right or wrong, and a perfect prediction scores exactly 1. No torch.

Every rate is a quotient of sums over the responses (`tally` counts one of them), so that resampling
responses is resampling rows: `intervals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from text2grad.align import Aligned, token_labels
from text2grad.feedback import Critique, Failure, Judgement, Label, Span

Labels = NDArray[np.int8]
Sums = NDArray[np.float64]
LABEL_NAMES: dict[Label, str] = {1: "good", -1: "poor"}
SPAN_NAMES: dict[Label, str] = {**LABEL_NAMES, 0: "improvable"}
NEARLY = 0.9
UNITS = {"token": "", "character": "character_"}  # and how the names of rates contain them


class SpanCase(NamedTuple):
    """One response: the gold critique, the critic's judgement, the response's tokens, and what it
    answers."""

    gold: Critique
    predicted: Judgement
    aligned: Aligned
    question: str = ""


def span_report(cases: Sequence[SpanCase]) -> dict[str, float]:
    """All rates of one critic, flat and JSON-ready; see docs/metrics.md.

    Counts are summed over all responses before dividing. An unreadable prediction marks nothing:
    everything that should have been marked is missed. Of a label that neither side uses precision,
    recall and F1 are 1; of one that only one side uses they are 0.

    Returns:
        `good_*`, `poor_*`: `precision`, `recall` and `f1` of the tokens with the label (paper,
        Table 1), and the same over characters (`character_*`), to compare critics of policies whose
        tokens differ; `overlap_index`: the share of the characters with the label on either side
        that have it on both (the paper's Table 6 gives such an index without its formula);
        `wrong_sign_rate`: the share of the tokens the critic labelled whose gold label is the
        opposite one, the reward that would push the wrong way;
        `span_exact_*`: precision, recall and F1 of spans with the same label, first and last
        character; `span_partial_*`: the same, where sharing one character is enough;
        `span_iou`: mean over the gold spans of the best intersection over union with a predicted
        span (0 when there is none; 1 when there are no gold spans and none was predicted);
        for each label (`improvable_` too, where there are such spans) `iou`, and `exact`,
        `partial`, `nearly`: the share of its gold spans that were found to the character, by one
        character, with 90 % of the longer of the two shared (paper, Tables 6 and 7);
        `unreadable`: share of answers that are a `Failure`;
        `unmatched`, `ambiguous`: shares of all quotes in the readable answers that are not in the
        response (paper, Table 15), or that occur more than once and do not say which;
        `forced`: share of answers that grounded decoding had to close at the token limit.

    Raises:
        ValueError: nothing to compare.
    """
    if not cases:
        raise ValueError("no critiques to compare")
    rows = [tally(case) for case in cases]
    sums = {name: np.array(sum(row[name] for row in rows), dtype=np.float64) for name in rows[0]}
    return {name: float(value) for name, value in rates_of(sums).items()}


def intervals(
    cases: Sequence[SpanCase],
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap bounds of every rate in `span_report`; whole responses are resampled."""
    rows = [tally(case) for case in cases]
    table = np.array([list(row.values()) for row in rows], dtype=np.float64)
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=resamples)
    sums = dict(zip(rows[0], (times @ table).T, strict=True))
    tail = (1 - confidence) / 2
    bounds = {name: np.quantile(values, [tail, 1 - tail]) for name, values in rates_of(sums).items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def tally(case: SpanCase) -> dict[str, float]:
    """Counts behind the rates for one response."""
    said = () if isinstance(case.predicted, Failure) else case.predicted.spans
    by_span = _tally_spans(case.gold.spans, said)
    return {**_tally_labels(case, said), **by_span, **_tally_quotes(case.predicted)}


def rates_of(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    """The rates of `span_report` from sums of counts, elementwise."""
    return {**_label_rates(sums), **_span_rates(sums), **_quote_rates(sums)}


def _tally_labels(case: SpanCase, said: Sequence[Span]) -> dict[str, float]:
    gold, aligned = case.gold.spans, case.aligned
    by_unit = {
        "token": (token_labels(gold, aligned), token_labels(said, aligned)),
        "character": (character_labels(gold, aligned.text), character_labels(said, aligned.text)),
    }
    counts: dict[str, float] = {}
    for unit, (true, guess) in by_unit.items():
        for label, name in LABEL_NAMES.items():
            counts[f"{name}_{unit}_hits"] = int(((true == label) & (guess == label)).sum())
            counts[f"{name}_{unit}_gold"] = int((true == label).sum())
            counts[f"{name}_{unit}_said"] = int((guess == label).sum())
        # Widened: a product of int8 is safe here, a sum of them need not be.
        counts[f"{unit}_opposed"] = int((true.astype(np.int64) * guess < 0).sum())
    return counts


def character_labels(spans: Iterable[Span], text: str) -> Labels:
    """+1, -1 or 0 of each character; one that is both good and poor is neither, as with tokens."""
    good, poor = (np.zeros(len(text), dtype=bool) for _ in range(2))
    for span in filter(lambda span: span.label, spans):
        (good if span.label > 0 else poor)[span.start : span.end] = True
    return np.subtract(good, poor, dtype=np.int8)


def _label_rates(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    rates: dict[str, Sums] = {}
    for unit, mark in UNITS.items():
        for name in LABEL_NAMES.values():
            hits, gold, said = (sums[f"{name}_{unit}_{what}"] for what in ("hits", "gold", "said"))
            rates |= _f1(f"{name}_{mark}", hits, said, hits, gold)
            if unit == "character":
                rates[f"{name}_overlap_index"] = _share(hits, gold + said - hits, said)
        said = sums[f"good_{unit}_said"] + sums[f"poor_{unit}_said"]
        rates[f"{mark}wrong_sign_rate"] = sums[f"{unit}_opposed"] / np.maximum(1, said)
    return rates


def _tally_spans(true: Sequence[Span], said: Sequence[Span]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for label, name in SPAN_NAMES.items():
        gold, mine = ([span for span in spans if span.label == label] for spans in (true, said))
        found, made = [_best(span, mine) for span in gold], [_best(span, gold) for span in mine]
        counts |= {
            f"{name}_gold_spans": len(gold),
            f"{name}_said_spans": len(mine),
            f"{name}_exact_found": found.count(1.0),
            f"{name}_exact_made": made.count(1.0),
            f"{name}_partial_found": sum(overlap > 0 for overlap in found),
            f"{name}_partial_made": sum(overlap > 0 for overlap in made),
            f"{name}_nearly_found": sum(_shares_most(span, mine) for span in gold),
            f"{name}_iou": sum(found),
        }
    return counts


def _span_rates(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    both = {what: sums[f"good_{what}"] + sums[f"poor_{what}"] for what in _SPAN_COUNTS}
    gold, said = both["gold_spans"], both["said_spans"]
    rates = {
        **_f1("span_exact_", both["exact_made"], said, both["exact_found"], gold),
        **_f1("span_partial_", both["partial_made"], said, both["partial_found"], gold),
        "span_iou": _share(both["iou"], gold, said),
    }
    for name in SPAN_NAMES.values():
        gold, said = sums[f"{name}_gold_spans"], sums[f"{name}_said_spans"]
        if name not in LABEL_NAMES.values() and not (gold.any() or said.any()):
            continue
        for what in ("exact", "partial", "nearly"):
            rates[f"{name}_{what}"] = _share(sums[f"{name}_{what}_found"], gold, said)
        rates[f"{name}_iou"] = _share(sums[f"{name}_iou"], gold, said)
    return rates


_SPAN_COUNTS = ("gold_spans", "said_spans", "exact_found", "exact_made", "partial_found", "partial_made", "iou")


def _tally_quotes(said: Judgement) -> dict[str, float]:
    read = Critique(text="") if isinstance(said, Failure) else said
    return {
        "answers": 1,
        "unreadable_answers": int(isinstance(said, Failure)),
        "forced_answers": int(read.forced > 0),
        "quotes": read.quote_count,
        "unmatched_quotes": read.quotes.unmatched,
        "ambiguous_quotes": read.quotes.ambiguous,
    }


def _quote_rates(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    quotes = np.maximum(1, sums["quotes"])
    return {
        "unreadable": sums["unreadable_answers"] / np.maximum(1, sums["answers"]),
        "unmatched": sums["unmatched_quotes"] / quotes,
        "ambiguous": sums["ambiguous_quotes"] / quotes,
        "forced": sums["forced_answers"] / np.maximum(1, sums["answers"]),
    }


def _share(part: Sums, whole: Sums, other: Sums) -> Sums:
    """part / whole; of nothing, 1 if the other side has nothing either, else 0."""
    return np.where(whole > 0, part / np.maximum(1, whole), (whole == 0) & (other == 0)).astype(np.float64)


def _f1(name: str, precise: Sums, said: Sums, recalled: Sums, gold: Sums) -> dict[str, Sums]:
    """Precision = precise / said, recall = recalled / gold, and their harmonic mean."""
    precision, recall = _share(precise, said, gold), _share(recalled, gold, said)
    both = precision + recall
    f1 = np.where(both > 0, 2 * precision * recall / np.where(both > 0, both, 1), 0.0)
    return {f"{name}precision": precision, f"{name}recall": recall, f"{name}f1": f1}


def _best(span: Span, others: Iterable[Span]) -> float:
    """The highest intersection over union of a span with one of the others, in characters."""
    shared = [(_shared(span, other), other.end - other.start) for other in others]
    return max((same / (span.end - span.start + length - same) for same, length in shared), default=0.0)


def _shared(a: Span, b: Span) -> int:
    return max(0, min(a.end, b.end) - max(a.start, b.start))


def _shares_most(span: Span, others: Iterable[Span]) -> bool:
    length = span.end - span.start
    return any(_shared(span, other) >= NEARLY * max(length, other.end - other.start) for other in others)
