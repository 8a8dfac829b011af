"""The gate: decide from measured figures if a reward model is fit to train against. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from text2grad.align import Aligned, CreditSettings, credit
from text2grad.eval.critics.reward_model import baselines, verdict_correlation
from text2grad.eval.critics.spans import LABEL_NAMES, SpanCase, intervals, span_report
from text2grad.eval.metrics import mean
from text2grad.feedback import Critique, Failure, Judgement

MAX_LOST = MAX_UNREADABLE = MAX_PRAISED = 0.5
"""Maximum shares of lost quotes, of unreadable critiques, and of rewarded corrupted answers."""
CAUTION_TRUNCATED, MAX_TRUNCATED = 0.1, 0.5
"""Shares of critiques closed by the token limit: above the first a caution, the second a reason."""
MAX_FAULTED, MAX_FAULTED_OF_FEW, MIN_CORRECTED = 0.25, 0.5, 4
"""Maximum share of faulted human corrections; the second if there are fewer than the third."""
MIN_SPREAD = 0.01
"""Standard deviation below which verdicts count as identical."""
MIN_HELDOUT, MIN_CORRUPTED = 20, 4
"""Minimum held-out critiques, below which a caution is given, and judged corrupted answers."""

JudgedAnswer = tuple[Judgement, Aligned]
"""A judgement of an answer, and the tokens of the answer."""


@dataclass(frozen=True, kw_only=True)
class GateFigures:
    """The measured figures; None if a figure could not be measured.

    Attributes:
        heldout: number of held-out critiques.
        f1: mean F1 over the labels that the annotations use.
        f1_low: mean of the labels' lower 95 % bounds; a little wider than the bound of the mean.
        f1_high: the same for the upper bounds.
        random_f1: F1 of as many spans at random places.
        neutral_f1: F1 of a critic that marks nothing.
        by_label: for each label, F1 and the F1 of random spans.
        spread: standard deviation of the verdicts.
        gold_spread: standard deviation of the annotations' verdicts.
        verdict_r: correlation of the two.
        verdict_r_low: its lower bound by Fisher (95 %).
        verdict_r_high: its upper bound.
        lost: share of quotes that are not in the answer or not unique.
        unreadable: share of unreadable critiques.
        forced: share of critiques closed by the token limit.
        fresh: number of the policy's own answers with a readable critique.
        fresh_paid: share of these with more praise than blame.
        spoiled: number of corrupted answers with a readable critique.
        spoiled_paid: share of these with more praise than blame.
        corrected: number of held-out human corrections with a readable critique.
        corrected_faulted: share of these with a poor span, or with a negative verdict if verdicts
            are paid.
        pays_spans: True if the credit settings pay spans.
        pays_verdict: True if the credit settings pay the verdict.
    """

    heldout: int = 0
    f1: float | None = None
    f1_low: float | None = None
    f1_high: float | None = None
    random_f1: float | None = None
    neutral_f1: float | None = None
    by_label: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    spread: float | None = None
    gold_spread: float | None = None
    verdict_r: float | None = None
    verdict_r_low: float | None = None
    verdict_r_high: float | None = None
    lost: float = 0.0
    unreadable: float = 0.0
    forced: float = 0.0
    fresh: int = 0
    fresh_paid: float = 0.0
    spoiled: int = 0
    spoiled_paid: float = 0.0
    corrected: int = 0
    corrected_faulted: float = 0.0
    pays_spans: bool = True
    pays_verdict: bool = True


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The decision on a reward model: `reasons` why it is unfit to train against, and `cautions`.

    `spans_alone` is the decision if only its spans are paid and not its verdict.
    """

    fit: bool
    reasons: tuple[str, ...]
    cautions: tuple[str, ...] = ()
    figures: GateFigures = GateFigures()
    spans_alone: Gate | None = None

    def unfit_reason(self, credit: CreditSettings) -> str:
        """Return the first reason why the reward model is unfit under these credit settings.

        Empty if it is fit. If the score is not paid, `spans_alone` decides.
        """
        score_paid = _pays_verdict(credit)
        gate = self if score_paid else self.spans_alone or self
        if not gate.fit:
            first, *others = gate.reasons or ["no reason given"]
            return f"{first}, and {len(others)} more" if others else first
        if score_paid and not self.figures.pays_verdict:
            return "it was checked with credit.outcome_weight 0, so its score, which is now paid, is unchecked"
        return ""


@dataclass(frozen=True)
class GateJudgements:
    """A reward model's judgements.

    Attributes:
        cases: held-out records.
        fresh: the policy's own answers.
        spoiled: corrupted answers.
        corrected: held-out answers as corrected by people.
    """

    cases: Sequence[SpanCase] = ()
    fresh: Sequence[JudgedAnswer] = ()
    spoiled: Sequence[JudgedAnswer] = ()
    corrected: Sequence[Judgement] = ()


def check(judgements: GateJudgements, settings: CreditSettings, seed: int) -> Gate:
    """Decide under these credit settings and, if they pay both, for spans alone."""
    verdict = gate(gate_figures(judgements, settings, seed))
    if settings.by_score or not settings.outcome_weight:
        return verdict
    spans = settings.model_copy(update={"outcome_weight": 0.0})
    return replace(verdict, spans_alone=gate(gate_figures(judgements, spans, seed)))


def gate_figures(judgements: GateJudgements, settings: CreditSettings, seed: int) -> GateFigures:
    """Compute the figures of a reward model under these credit settings."""
    answers = [judgement for judgement, _ in (*judgements.fresh, *judgements.spoiled)]
    all_judgements = [*(case.predicted for case in judgements.cases), *answers, *judgements.corrected]
    critiques = [critique for critique in all_judgements if isinstance(critique, Critique)]
    lost_quotes = sum(critique.quotes.unmatched + critique.quotes.ambiguous for critique in critiques)
    fresh, corrupted = (_rewarded(answers, settings) for answers in (judgements.fresh, judgements.spoiled))
    faulted = [_faults(critique, settings) for critique in judgements.corrected if isinstance(critique, Critique)]
    return GateFigures(
        **_heldout_figures(judgements.cases, settings, seed),
        lost=lost_quotes / max(1, sum(critique.quote_count for critique in critiques)),
        unreadable=_share([isinstance(judgement, Failure) for judgement in all_judgements]),
        forced=sum(critique.forced > 0 for critique in critiques) / max(1, len(all_judgements)),
        fresh=len(fresh),
        fresh_paid=_share(fresh),
        spoiled=len(corrupted),
        spoiled_paid=_share(corrupted),
        corrected=len(faulted),
        corrected_faulted=_share(faulted),
        pays_spans=not settings.by_score,
        pays_verdict=_pays_verdict(settings),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / max(1, len(flags))


def _pays_verdict(settings: CreditSettings) -> bool:
    return settings.by_score or settings.outcome_weight != 0


def _rewarded(answers: Sequence[JudgedAnswer], settings: CreditSettings) -> list[bool]:
    """Return for every answer with a readable critique whether praise outweighs blame.

    `credit.unlabelled` is ignored: it would praise an answer in which only a few lines are marked.
    """
    settings = settings.model_copy(update={"unlabelled": 0.0})
    return [
        bool(credit(critique, aligned, settings).delta.sum() > 0)
        for critique, aligned in answers
        if isinstance(critique, Critique)
    ]


def _faults(critique: Critique, settings: CreditSettings) -> bool:
    """True if a critique blames an answer in a way that these settings pay for."""
    has_poor_span = not settings.by_score and any(span.label < 0 for span in critique.spans)
    return has_poor_span or (_pays_verdict(settings) and critique.score is not None and critique.score < 0)


def _heldout_figures(cases: Sequence[SpanCase], settings: CreditSettings, seed: int) -> dict[str, Any]:
    if not cases:
        return {}
    used = {span.label for case in cases for span in case.gold.spans}
    names = [name for label, name in LABEL_NAMES.items() if label in used]
    rates, bounds = span_report(cases), intervals(cases, seed=seed)
    baseline_rates = baselines(cases, seed)
    random = baseline_rates["random_spans"]

    def mean_f1(rates: Mapping[str, float]) -> float | None:
        return mean([rates[f"{name}_f1"] for name in names]) if names else None

    return {
        "heldout": len(cases),
        "f1": mean_f1(rates),
        "f1_low": mean_f1({name: low for name, (low, _) in bounds.items()}),
        "f1_high": mean_f1({name: high for name, (_, high) in bounds.items()}),
        "random_f1": mean_f1(random),
        "neutral_f1": mean_f1(baseline_rates["always_neutral"]),
        "by_label": {name: (rates[f"{name}_f1"], random[f"{name}_f1"]) for name in names},
        **(_verdict_figures(cases) if _pays_verdict(settings) else {}),
    }


def _verdict_figures(cases: Sequence[SpanCase]) -> dict[str, float]:
    """Return the spread of the verdicts, and their correlation with the annotations' verdicts.

    Without annotated verdicts, only the spread, if most critiques have a verdict.
    """
    gold = [case.gold.score for case in cases if case.gold.score is not None]
    critiques = [case.predicted for case in cases if isinstance(case.predicted, Critique)]
    predicted = [critique.score for critique in critiques if critique.score is not None]
    if not gold:
        return {"spread": float(np.std(predicted))} if 2 * len(predicted) > len(cases) else {}
    figures = {"spread": float(np.std(predicted or [0.0])), "gold_spread": float(np.std(gold))}
    if r := verdict_correlation(cases):
        figures |= {"verdict_r": r.r, "verdict_r_low": r.low, "verdict_r_high": r.high}
    return figures


def gate(figures: GateFigures) -> Gate:
    """Decide from figures; everything that is paid must have been measured on held-out records."""
    reasons = tuple(_reasons(figures))
    return Gate(fit=not reasons, reasons=reasons, cautions=tuple(_cautions(figures)), figures=figures)


TRUNCATED = "of its critiques reached the token limit and are incomplete (reward_model.max_new_tokens)"
LIMITS = {
    "lost": (MAX_LOST, "of its quotes are not in the answer or not unique, so they are not paid"),
    "unreadable": (MAX_UNREADABLE, "of its critiques cannot be read"),
    "forced": (MAX_TRUNCATED, TRUNCATED),
}
"""Maximum shares by figure, with the description of the share."""


def _reasons(figures: GateFigures) -> Iterator[str]:
    if not figures.heldout:
        yield "no critique is held out (task.heldout_share), so its quality is unknown"
    elif figures.pays_spans and figures.f1 is None:
        yield "no held-out critique marks words, so its quality is unknown"
    elif not figures.pays_spans and figures.gold_spread is None:
        yield "no held-out critique has a score, so the quality of its verdicts is unknown"
    few = figures.corrected < MIN_CORRECTED
    if figures.corrected_faulted > (MAX_FAULTED_OF_FEW if few else MAX_FAULTED):
        faulted = round(figures.corrected_faulted * figures.corrected)
        yield f"it finds fault with {faulted} of {figures.corrected} held-out answers that people corrected"
    if _at_chance(figures):
        yield f"it marks no better than chance (F1 {figures.f1:.2f}, random spans {figures.random_f1:.2f})"
    if reason := _verdict_reason(figures):
        yield reason
    if figures.spoiled_paid > MAX_PRAISED and figures.spoiled >= MIN_CORRUPTED:
        corrupted, fresh = (f"{100 * share:.0f} %" for share in (figures.spoiled_paid, figures.fresh_paid))
        yield (
            f"it rewards {corrupted} of {figures.spoiled} answers made unreadable on purpose"
            f" ({fresh} of the policy's own)"
        )
    for name, (limit, description) in LIMITS.items():
        if (share := getattr(figures, name)) > limit:
            yield f"{100 * share:.0f} % {description}"


def _at_chance(figures: GateFigures) -> bool:
    return figures.f1 is not None and figures.random_f1 is not None and figures.f1 <= figures.random_f1


def _verdict_reason(figures: GateFigures) -> str:
    """Return the reason not to train on the verdicts; empty if they are good or not paid."""
    if not figures.pays_verdict or figures.spread is None:
        return ""
    if figures.gold_spread is None:
        return "it gives verdicts, but no held-out critique has a score to compare them with"
    differ, gold_differ = figures.spread >= MIN_SPREAD, figures.gold_spread >= MIN_SPREAD
    if not gold_differ:
        return "its verdicts differ, but those of the held-out annotations are identical" if differ else ""
    if not differ:
        return "it gives every answer the same verdict, but the annotations differ"
    r, low, high = figures.verdict_r, figures.verdict_r_low, figures.verdict_r_high
    if r is None or low is None or high is None:
        return "too few held-out answers have both verdicts to compare them"
    interval = f"(r {r:.2f}, {low:.2f} to {high:.2f})"
    if r <= 0 and figures.heldout >= MIN_HELDOUT:
        return f"its verdicts do not follow those of the annotations {interval}"
    return f"its verdicts may follow those of the annotations by chance {interval}" if low <= 0 else ""


def _cautions(figures: GateFigures) -> Iterator[str]:
    if 0 < figures.heldout < MIN_HELDOUT:
        yield f"measured on {figures.heldout} critiques only"
    if not _at_chance(figures):
        for name, (f1, random) in figures.by_label.items():
            if f1 <= random:
                yield f"its {name} spans are no better than chance (F1 {f1:.2f}, random {random:.2f})"
        low, random_f1 = figures.f1_low, figures.random_f1
        if low is not None and random_f1 is not None and low <= random_f1:
            yield "its interval reaches down to chance"
    if CAUTION_TRUNCATED < figures.forced <= MAX_TRUNCATED:
        yield f"{100 * figures.forced:.0f} % {TRUNCATED}"
    if figures.spoiled > 0 and 0 < figures.fresh_paid <= figures.spoiled_paid <= MAX_PRAISED:
        yield "it rewards answers made unreadable on purpose as often as the policy's own"
