"""The quality of feedback: figures, the effect on a policy, and what to write next."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from text2grad.errors import UserError
from text2grad.feedback import Feedback, Span, response_key
from text2grad.jsonl import read_jsonl
from text2grad.page.signs import MOST_UNMATCHED
from text2grad.unicode_words import units

Offsets = Sequence[tuple[int, int]]
FEW_RECORDS = 200
"""Below this number of records, `train --offline` teaches more than a reward model."""
LOPSIDED, LEAST_ALPHA = 0.2, 0.4
"""Least share of either label; least agreement between annotators (alpha)."""


def feedback_quality(source: Path, canaries: Path | None = None) -> dict[str, Any]:
    """Measure a file of feedback and its `canaries`; `judgement` and `next` are sentences.

    Raises:
        UserError: the file cannot be read, or is empty.
    """
    canary_records = read_jsonl(canaries, Feedback) if canaries is not None and canaries.is_file() else ()
    figures = measure(read_jsonl(source, Feedback), canary_records)
    if not figures["records"]:
        raise UserError(f"{source} has no records", "run text2grad annotate or text2grad import first")
    return figures | {"judgement": judge(figures), "next": list(advise(figures))}


def measure(records: Iterable[Feedback], canaries: Iterable[Feedback] = ()) -> dict[str, Any]:
    """Return the figures of feedback; see docs/marking.md."""
    quality = _Quality()
    for record in records:
        quality.add(record)
    for record in canaries:
        quality.add_canary(record)
    return quality.figures()


def describe_feedback(figures: Mapping[str, Any]) -> list[str]:
    """Describe feedback: its size, failures, effect on a policy, and what to write next."""
    failed = ", ".join(f"{count} {kind}" for kind, count in figures["failed"].items())
    size = f"{figures['records']} records, {figures['spans']} spans" + f"; failed: {failed}" * bool(failed)
    return [size, *judge(figures), *advise(figures)]


class _Quality:
    """Running counts; each record takes a hash, and a byte per token."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.usage: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.seen: Counter[bytes] = Counter()
        self.lengths: dict[int, list[int]] = {1: [], 0: [], -1: []}  # tokens of each span by label
        self.opinions: dict[bytes, dict[bytes, bytes]] = {}  # response -> annotator -> token labels

    def add(self, record: Feedback) -> None:
        """Count one record."""
        self.seen[_digest(record.id, response_key(record.response))] += 1
        self.usage.update(record.usage)
        self.counts.update(record.quotes.model_dump())
        self.counts.update(records=1, dropped_spans=int(record.meta.get("dropped_spans", 0)))
        if record.error is not None:
            self.failures[record.error.kind] += 1
            return
        tokens = list(units(record.response))
        labels = span_labels(record.spans, tokens)
        self.counts.update(
            tokens=len(tokens),
            good_tokens=labels.count(1),
            labelled_tokens=len(labels) - labels.count(0),
            records_without_spans=not record.spans,
            scored=record.score is not None,
            records_all_good=bool(tokens) and labels.count(1) == len(tokens),
        )
        for span in record.spans:
            self.lengths[span.label].append(sum(a < span.end and b > span.start for a, b in tokens))
        self.add_canary(record)
        if not record.spans:  # without marks there is no opinion on words
            return
        response = _digest(*(turn.content for turn in record.prompt), response_key(record.response))
        source, annotator = record.source, str(record.meta.get("annotator", ""))
        judge = _digest(record.id, source.kind, source.model, source.prompt_version, annotator)
        self.opinions.setdefault(response, {})[judge] = bytes(label + 1 for label in labels)

    def add_canary(self, record: Feedback) -> None:
        """Count a judged record with known spans as a canary."""
        if "canary" in record.meta and record.error is None:
            tokens = list(units(record.response))
            moved = has_moved(record.meta["canary"], span_labels(record.spans, tokens), tokens)
            self.counts.update(canaries=1, canaries_moved=moved)

    def figures(self) -> dict[str, Any]:
        """Return the figures; shares are fractions, None for 0 of 0."""
        counts, spans = self.counts, len(self.lengths[1]) + len(self.lengths[-1])
        quotes = spans + counts["dropped_spans"] + counts["ambiguous"] + counts["no_polarity"] + counts["repeated"]
        counted = ("records_without_spans", "scored", "records_all_good", "canaries", "canaries_moved")
        return {
            "records": counts["records"],
            "spans": spans,
            "exact": quotes - counts["normalised"],
            **{name: counts[name] for name in ("normalised", "unmatched", "ambiguous")},
            "unmatched_rate": _share(counts["unmatched"], quotes + counts["unmatched"]),
            "failed": dict(sorted(self.failures.items())),
            "repeated_records": self.seen.total() - len(self.seen),
            **{name: counts[name] for name in counted},
            "input_tokens": int(self.usage["prompt_tokens"]),
            "output_tokens": int(self.usage["completion_tokens"]),
            "usd": round(self.usage["usd"], 6) if "usd" in self.usage else None,
            "labelled_share": _share(counts["labelled_tokens"], counts["tokens"]),
            "good_share": _share(counts["good_tokens"], counts["labelled_tokens"]),
            "good_spans": _length_figures(self.lengths[1]),
            "poor_spans": _length_figures(self.lengths[-1]),
            **self._agreement(),
        }

    def _agreement(self) -> dict[str, Any]:
        """Return the mean alpha of the responses with several annotators."""
        shared = [list(opinions.values()) for opinions in self.opinions.values() if len(opinions) > 1]
        alphas = [alpha for labels in shared if (alpha := token_alpha(labels)) is not None]
        alpha = round(fmean(alphas), 4) if alphas else None
        return {"several_annotators": len(shared), "agreement_measured": len(alphas), "agreement_alpha": alpha}


def _length_figures(lengths: Sequence[int]) -> dict[str, float]:
    """Return statistics of the tokens per span (paper, table 18)."""
    if not lengths:
        return {"count": 0}
    cuts = quantiles(lengths, n=4, method="inclusive") if len(lengths) > 1 else [float(lengths[0])] * 3
    ends = {"mean": round(fmean(lengths), 2), "min": min(lengths), "max": max(lengths)}
    return {"count": len(lengths), **ends, **{f"q{place}": cut for place, cut in enumerate(cuts, start=1)}}


def token_alpha(labels: Sequence[Sequence[int]]) -> float | None:
    """Krippendorff's nominal alpha of (annotators, tokens) labels; None if all are equal.

    1 − observed / expected disagreement of pairs of labels: pairs on one token, and pairs of any
    two labels.
    """
    totals = Counter(label for row in labels for label in row)
    if len(totals) < 2:
        return None
    tokens = [Counter(column) for column in zip(*labels, strict=True)]
    observed = sum(_unequal_pairs(token) for token in tokens) / (len(labels) - 1)
    expected = _unequal_pairs(totals) / (totals.total() - 1)
    return 1 - observed / expected


def _unequal_pairs(counts: Counter[int]) -> int:
    return counts.total() ** 2 - sum(count**2 for count in counts.values())


def span_labels(spans: Sequence[Span], tokens: Offsets) -> list[int]:
    """Label each token: +1 or -1 where it overlaps spans of that sign only, else 0."""
    signs = ({s.label for s in spans if s.start < end and s.end > start} for start, end in tokens)
    return [sum(sign) for sign in signs]


def has_moved(expected: Sequence[Mapping[str, Any]], labels: Sequence[int], tokens: Offsets) -> bool:
    """True if a canary, with known spans, was judged differently.

    That is, if a token has the opposite label or fewer than half have the right one; without known
    spans, if any token is labelled.
    """
    pairs = [
        (next((span["label"] for span in expected if span["start"] < end and span["end"] > start), 0), label)
        for (start, end), label in zip(tokens, labels, strict=True)
    ]
    labelled = [(right, label) for right, label in pairs if right]
    if not labelled:
        return any(labels)
    opposite = any(label == -right for right, label in labelled)
    return opposite or 2 * sum(label == right for right, label in labelled) < len(labelled)


def judge(figures: Mapping[str, Any]) -> list[str]:
    """Describe in sentences what a policy would learn."""
    share = figures["good_share"]
    if share is None:
        score = "the policy learns from scores alone"
        return [f"No token is labelled: {score if figures['scored'] else 'nothing can be learned'}."]
    meaning = "balanced"
    if share < LOPSIDED:
        meaning = "the policy will learn to say less"
    elif share > 1 - LOPSIDED:
        meaning = "the policy will learn to repeat itself"
    labelled = f"{100 * figures['labelled_share']:.0f} % of all tokens are labelled."
    return [f"{100 * share:.0f} % of labelled tokens are praise: {meaning}.", labelled]


def advise(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on what to write or correct; if nothing, the next command."""
    problems = list(_problems(figures))
    few = figures["records"] < FEW_RECORDS
    command = f"train --offline (train-reward from {FEW_RECORDS} records on)" if few else "train-reward"
    yield from problems or [f"Nothing is missing: text2grad {command}."]


def _problems(figures: Mapping[str, Any]) -> Iterator[str]:
    records, share, rate = figures["records"], figures["good_share"], figures["unmatched_rate"] or 0.0
    unmarked, unscored = figures["records_without_spans"], records - figures["scored"]
    limit = f", {rate:.1%} of the quotes, above 5 %: docs/metrics.md" * (rate > MOST_UNMATCHED)
    failed, alpha = sum(figures["failed"].values()), figures["agreement_alpha"]
    anchor = "or text2grad annotate --anchor"
    checks = {
        "Mark what is right too: 'good' quotes, or [+...+].": share is not None and share < LOPSIDED,
        "Mark what is wrong too: 'poor' quotes, or [-...-]{why}.": share is not None and share > 1 - LOPSIDED,
        f"Quote word for word (not in the response: {figures['unmatched']}{limit}).": figures["unmatched"],
        f"Quote more words (found more than once: {figures['ambiguous']}).": figures["ambiguous"],
        f"Mark words: {unmarked} of {records} records have none ({anchor}).": 2 * unmarked > records,
        f"Give a score from -1 to 1, for omissions: {unscored} of {records} have none.": 2 * unscored > records,
        f"Judge {failed} failures again: text2grad annotate --again.": failed,
        f"Remove repeated records ({figures['repeated_records']}).": figures["repeated_records"],
        f"Define good and poor: annotators disagree (alpha {alpha}).": alpha is not None and alpha < LEAST_ALPHA,
    }
    yield from (problem for problem, applies in checks.items() if applies)


def worst_records(source: Path, count: int) -> list[Feedback]:
    """Return the `count` worst records: by score, else by the share of poor characters."""
    records: Iterable[Feedback] = (record for record in read_jsonl(source, Feedback) if record.error is None)
    return heapq.nsmallest(count, records, key=_goodness)


def _goodness(record: Feedback) -> tuple[float, float]:
    poor = sum(span.end - span.start for span in record.spans if span.label < 0)
    unmarked = 1 - 2 * poor / max(1, len(record.response))
    return (unmarked if record.score is None else record.score), unmarked


def _digest(*texts: str) -> bytes:
    return blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=16).digest()


def _share(part: float, total: float, digits: int = 4) -> float | None:
    return round(part / total, digits) if total else None
