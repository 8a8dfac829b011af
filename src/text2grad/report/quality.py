"""The quality of a file of feedback (the paper's tables 12, 14, 15 and 18), in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from text2grad.errors import UserError
from text2grad.feedback import Feedback, Span, key_of, read_jsonl
from text2grad.report.advice import judgement, what_next, worst_first
from text2grad.report.pages import render_page, write_page
from text2grad.report.samples import record_view
from text2grad.unicode_words import units

Offsets = list[tuple[int, int]]
Tokenize = Callable[[str], Offsets]
Cost = Callable[[str, Mapping[str, float]], float | None]
"""USD of an answer by model and usage; None if unknown."""
DENSE_TOKENS_PER_TOKEN = 2
"""The token again, and its label (paper, table 12)."""
PLACES = 5
MOST_NAMED, MOST_SHOWN = 50, 200
"""Agreements and records on the page."""
_SECTIONS = {
    "Quotes (paper, table 15)": """records spans exact normalised fuzzy unmatched ambiguous unmatched_rate refused
        repeated_records records_without_spans records_all_good omissions canaries canaries_moved""",
    "Cost (paper, tables 12 and 14)": """tokens_per_response annotation_tokens_per_record dense_tokens_per_record
        saved_against_dense annotation_tokens dense_tokens input_tokens output_tokens usd usd_per_record
        usd_dense_per_record""",
    "Labels": "labelled_share good_share several_annotators agreement_alpha",
}
_COUNTED = ("records_without_spans", "scored", "records_all_good", "omissions", "canaries", "canaries_moved")
_LENGTHS = ("count", "mean", "min", "q1", "q2", "q3", "max", "position")


def report_quality(
    source: Path,
    page: Path | None = None,
    tokenizer: Path | None = None,
    cost: Cost | None = None,
    canaries: Path | None = None,
    named: int | None = None,
) -> dict[str, Any]:
    """The figures of a file, also as a page; with the `named` least agreements (None: all).

    Raises:
        UserError: the file, or the tokenizer, cannot be read, or is empty.
    """
    quality = Quality(tokenize_by(tokenizer), cost or (lambda model, usage: None))
    for record in read_jsonl(source, Feedback):
        quality.add(record)
    if not quality.records:
        raise UserError(f"{source} holds no records", "text2grad annotate, or text2grad import, first")
    for record in read_jsonl(canaries, Feedback) if canaries is not None and canaries.is_file() else ():
        quality.add_canary(record)
    figures = quality.figures()
    figures["agreement"] = dict(list(figures["agreement"].items())[:named])
    figures |= {"judgement": judgement(figures), "next": what_next(figures)}
    if page is not None:
        write_page(page, quality_page(source.name, figures, worst_first(source, MOST_SHOWN)))
        figures["out"] = str(page)
    return figures


def quality_page(name: str, figures: dict[str, Any], records: Sequence[Feedback]) -> str:
    """A static page of figures and marked records."""
    sections = {
        title: [(key.replace("_", " "), _shown(figures.get(key))) for key in keys.split()]
        for title, keys in _SECTIONS.items()
    }
    lengths = {
        label: [_shown(figures[f"{label}_spans"].get(key)) for key in _LENGTHS]
        for label in ("good", "poor", "improvable")
        if f"{label}_spans" in figures
    }
    return render_page(
        "quality.html.j2",
        name=name,
        advice=[*figures["judgement"], *figures["next"]],
        records=list(map(record_view, records)),
        left_out=figures["records"] - sum(figures["failed"].values()) - len(records),
        sections=sections,
        keys=_LENGTHS,
        lengths=lengths,
        failed=figures["failed"],
        agreement=dict(list(figures["agreement"].items())[:MOST_NAMED]),
    )


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return " · ".join(map(str, value))
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def tokenize_by(file: Path | None) -> Tokenize:
    """Splits a text into character intervals: by a tokenizer.json, else words and signs."""
    if file is None:
        return lambda text: list(units(text))
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise UserError(f"{file} is not a tokenizer.json", "give the file from a model's folder") from error
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).offsets)


@dataclass
class Quality:
    """Running counts; each record leaves a hash, and a byte per token."""

    tokenize: Tokenize
    cost: Cost
    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(default_factory=Counter)
    usd_dense: float = 0.0
    lengths: dict[int, list[int]] = field(default_factory=lambda: {1: [], 0: [], -1: []})
    places: Counter[tuple[int, int]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    opinions: dict[bytes, tuple[str, dict[bytes, bytes]]] = field(default_factory=dict)
    """Response -> its first id, and token labels by annotator."""
    seen: Counter[bytes] = field(default_factory=Counter)

    def add(self, record: Feedback) -> None:
        """Count one record."""
        self.records += 1
        self.seen[_digest(record.id, key_of(record.response))] += 1
        self.usage.update(record.usage)
        self.counts["priced"] += "usd" in record.usage
        self.counts.update(record.quotes.model_dump())
        self.counts["dropped_spans"] += int(record.meta.get("dropped_spans", 0))
        self.counts["omissions"] += len(record.meta.get("omissions", ()))
        if record.error is not None:
            self.failures[record.error.kind] += 1
            return
        tokens = self.tokenize(record.response)
        labels = span_labels(record.spans, tokens)
        # What an annotator writes to point at spans: the quotes, and a label each (paper, table 12).
        written = sum(len(self.tokenize(span.text)) + 1 for span in record.spans)
        self.counts.update(
            tokens=len(tokens),
            good_tokens=labels.count(1),
            labelled_tokens=len(labels) - labels.count(0),
            records_without_spans=not record.spans,
            scored=record.score is not None,
            records_all_good=bool(tokens) and labels.count(1) == len(tokens),
            written=written,
        )
        self._dense_cost(record, DENSE_TOKENS_PER_TOKEN * len(tokens) - written)
        self.add_canary(record)
        self._spans(record, tokens)
        about = _digest(*(turn.content for turn in record.prompt), key_of(record.response))
        _, opinions = self.opinions.setdefault(about, (record.id, {}))
        by, annotator = record.source, str(record.meta.get("annotator", ""))
        judge = _digest(record.id, by.kind, by.model, by.prompt_version, annotator)
        opinions[judge] = bytes(label + 1 for label in labels)  # a duplicate record counts once

    def add_canary(self, record: Feedback) -> None:
        """Count a record as a canary, if it is one."""
        if "canary" in record.meta and record.error is None:
            tokens = self.tokenize(record.response)
            self.counts["canaries"] += 1
            labels = span_labels(record.spans, tokens)
            self.counts["canaries_moved"] += has_moved(record.meta["canary"], labels, tokens)

    def _dense_cost(self, record: Feedback, more: int) -> None:
        """Add the cost of an answer with `more` tokens, at the same discount."""
        usage, model = record.usage, record.source.model
        dense = {**usage, "completion_tokens": max(0.0, usage.get("completion_tokens", 0.0) + more)}
        price, dense_price = self.cost(model, usage), self.cost(model, dense)
        if usage.get("usd") and price and dense_price is not None:
            self.counts["dense_priced"] += 1
            self.usd_dense += usage["usd"] * dense_price / price

    def _spans(self, record: Feedback, tokens: Offsets) -> None:
        for span in record.spans:
            self.lengths[span.label].append(sum(a < span.end and b > span.start for a, b in tokens))
            middle = (span.start + span.end) / 2 / max(1, len(record.response))
            self.places[span.label, min(PLACES - 1, int(middle * PLACES))] += 1

    def figures(self) -> dict[str, Any]:
        """Plain numbers; shares are of 1, None for 0 of 0."""
        counts, spans = self.counts, len(self.lengths[1]) + len(self.lengths[-1])
        quotes = spans + counts["dropped_spans"] + counts["ambiguous"] + counts["no_polarity"] + counts["repeated"]
        dense = DENSE_TOKENS_PER_TOKEN * counts["tokens"]
        judged = self.records - self.failures.total()
        return {
            "records": self.records,
            "spans": spans,
            "exact": quotes - counts["normalised"] - counts["fuzzy"],
            **{name: counts[name] for name in ("normalised", "fuzzy", "unmatched", "ambiguous")},
            "unmatched_rate": _share(counts["unmatched"], quotes + counts["unmatched"]),
            "failed": dict(sorted(self.failures.items())),
            "refused": self.failures["refused"],
            "repeated_records": sum(count - 1 for count in self.seen.values()),
            **{name: counts[name] for name in _COUNTED},
            "tokens_per_response": _share(counts["tokens"], judged),
            "annotation_tokens_per_record": _share(counts["written"], judged),
            "dense_tokens_per_record": _share(dense, judged),
            "annotation_tokens": counts["written"],
            "dense_tokens": dense,
            "saved_against_dense": None if not dense else round(1 - counts["written"] / dense, 4),
            "input_tokens": int(self.usage["prompt_tokens"]),
            "output_tokens": int(self.usage["completion_tokens"]),
            "usd": round(self.usage["usd"], 6) if counts["priced"] else None,
            "usd_per_record": _share(self.usage["usd"], counts["priced"], 6),
            "usd_dense_per_record": _share(self.usd_dense, counts["dense_priced"], 6),
            "labelled_share": _share(counts["labelled_tokens"], counts["tokens"]),
            "good_share": _share(counts["good_tokens"], counts["labelled_tokens"]),
            "good_spans": self._lengths(1),
            "poor_spans": self._lengths(-1),
            **({"improvable_spans": self._lengths(0)} if self.lengths[0] else {}),
            **self._agreement(),
        }

    def _lengths(self, label: int) -> dict[str, Any]:
        """Tokens per span (paper, table 18), and positions in the response by fifths."""
        lengths = sorted(self.lengths[label])
        places = [self.places[label, place] for place in range(PLACES)]
        if not lengths:
            return {"count": 0, "position": places}
        cuts = quantiles(lengths, n=4, method="inclusive") if len(lengths) > 1 else [float(lengths[0])] * 3
        return {
            "count": len(lengths),
            "mean": round(fmean(lengths), 2),
            "min": lengths[0],
            **{f"q{number}": cut for number, cut in enumerate(cuts, start=1)},
            "max": lengths[-1],
            "position": places,
        }

    def _agreement(self) -> dict[str, Any]:
        """Alpha of each response with several annotators, the least first, and the mean."""
        shared = [(id, opinions) for id, opinions in self.opinions.values() if len(opinions) > 1]
        alphas = {id: token_alpha(list(opinions.values())) for id, opinions in shared}
        known = {id: round(alpha, 4) for id, alpha in alphas.items() if alpha is not None}
        return {
            "several_annotators": len(shared),
            "agreement_alpha": round(fmean(known.values()), 4) if known else None,
            "agreement_measured": len(known),
            "agreement": dict(sorted(known.items(), key=lambda pair: pair[1])),
        }


def token_alpha(labels: Sequence[Sequence[int]]) -> float | None:
    """Krippendorff's nominal alpha of (annotators, tokens) labels; None if all are equal.

    Raises:
        UserError: the package krippendorff is missing.
    """
    if len({label for row in labels for label in row}) < 2:
        return None
    try:
        import krippendorff
        import numpy as np
    except ImportError as error:
        raise UserError("agreement needs krippendorff", "pip install 'text2grad[annotate]'") from error
    return float(
        krippendorff.alpha(np.array([list(row) for row in labels], dtype=float), level_of_measurement="nominal")
    )


def span_labels(spans: Sequence[Span], tokens: Offsets) -> list[int]:
    """The label of each token: +1 or -1 where it overlaps spans of that sign only, else 0."""
    signs = ({s.label for s in spans if s.start < end and s.end > start} for start, end in tokens)
    return [sum(sign) for sign in signs]


def has_moved(expected: Sequence[Mapping[str, Any]], labels: Sequence[int], tokens: Offsets) -> bool:
    """Whether a canary, with known spans, was judged differently.

    If a token has the opposite label, or fewer than half have the right one; without spans, if any is labelled.
    """
    wanted = [
        (next((span["label"] for span in expected if span["start"] < end and span["end"] > start), 0), label)
        for (start, end), label in zip(tokens, labels, strict=True)
    ]
    marked = [(right, label) for right, label in wanted if right]
    if not marked:
        return any(labels)
    opposite = any(label == -right for right, label in marked)
    return opposite or 2 * sum(label == right for right, label in marked) < len(marked)


def _digest(*texts: str) -> bytes:
    return blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=16).digest()


def _share(part: float, whole: float, digits: int = 4) -> float | None:
    return round(part / whole, digits) if whole else None
