"""The gate: whether a reward model is fit to train against, with reasons, from measured figures. No
torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from text2grad.align import Aligned, CreditSettings, credit
from text2grad.eval.critics.reward_model import baselines, verdicts
from text2grad.eval.critics.spans import LABEL_NAMES, SpanCase, intervals, span_report
from text2grad.eval.metrics import mean
from text2grad.feedback import Critique, Failure, Judgement

MOST_LOST = MOST_UNREADABLE = MOST_PRAISED = 0.5
"""Shares of quotes that are lost, of critiques that cannot be read, and of spoiled answers that are
rewarded."""
MOST_FORCED, MOST_CUT = 0.1, 0.5
"""Shares of critiques that the token limit closes: from the first on a caution, from the second on
a reason."""
MOST_FAULTED, MOST_FAULTED_OF_FEW, FEWEST_CORRECTED = 0.25, 0.5, 4
"""Shares of people's own corrections that are faulted, of at least so many and of fewer."""
LEAST_SPREAD = 0.01
"""Standard deviation of verdicts; below it they are one and the same."""
FEW, FEWEST_SPOILED = 20, 4
"""Held-out critiques below which the interval says more than the figure, and readable critiques of
spoiled answers below which nothing is concluded from them."""

Paid = tuple[Judgement, Aligned]
"""A reward model's judgement of an answer, and the answer's tokens."""


@dataclass(frozen=True, kw_only=True)
class GateFigures:
    """What was measured; None where it could not be.

    `f1` is the mean over the labels that the annotations use, `random_f1` that of as many spans at
    random places, `neutral_f1` that of a critic that marks nothing; `f1_low` and `f1_high` are the
    means of the labels' own 95 % bounds, a little wider than those of the mean. `lost` is a share
    of quotes, `unreadable` and `forced` (closed by the token limit) of critiques, `spoiled_paid` of
    spoiled answers with more praise than blame, `fresh_paid` the same of the policy's own answers,
    both of those (`spoiled`, `fresh`) whose critique can be read, as the others are not trained on.
    `spread`, `gold_spread`: standard deviations of the verdicts; `verdict_r` (`_low`, `_high`):
    their correlation, with Fisher's 95 % bounds. `by_label`: F1, and that of random spans.
    `corrected`: answers as people corrected them, held out, whose critique can be read;
    `corrected_faulted`: the share in which it marks something poor, or that it gives a verdict
    below 0 where verdicts are paid. `pays_spans`, `pays_verdict`: what the run's credit pays.
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
    """The verdict on a reward model: `reasons` why it is not fit to train against, `cautions` where
    it is.

    `spans_alone`: that on the same reward model where its spans are paid and its verdict is not.
    """

    fit: bool
    reasons: tuple[str, ...]
    cautions: tuple[str, ...] = ()
    figures: GateFigures = GateFigures()
    spans_alone: Gate | None = None

    def unfit_reason(self, credit: CreditSettings) -> str:
        """The first reason why the reward model is unfit where these settings pay its judgements;
        "" if it is fit.

        Where the score is not paid, the verdict on its spans alone counts.
        """
        score_paid = _pays_verdict(credit)
        verdict = self if score_paid else self.spans_alone or self
        if not verdict.fit:
            first, *others = verdict.reasons or ["no reason given"]
            return f"{first}, and {len(others)} more" if others else first
        if score_paid and not self.figures.pays_verdict:
            return "it was checked with credit.outcome_weight 0, so its score, which is paid now, is unchecked"
        return ""


@dataclass(frozen=True)
class GateJudgements:
    """A reward model's judgements of held-out records, of fresh and of spoiled answers, and of
    held-out answers as people corrected them."""

    cases: Sequence[SpanCase] = ()
    fresh: Sequence[Paid] = ()
    spoiled: Sequence[Paid] = ()
    corrected: Sequence[Judgement] = ()


def check(judged: GateJudgements, settings: CreditSettings, seed: int) -> Gate:
    """The verdict under these credit settings, and where they pay both the one on spans alone."""
    verdict = gate(gate_figures(judged, settings, seed))
    if settings.by_score or not settings.outcome_weight:
        return verdict
    spans = settings.model_copy(update={"outcome_weight": 0.0})
    return replace(verdict, spans_alone=gate(gate_figures(judged, spans, seed)))


def gate_figures(judged: GateJudgements, settings: CreditSettings, seed: int) -> GateFigures:
    """The figures of a reward model, where answers are paid by these settings."""
    answers = [judgement for judgement, _ in (*judged.fresh, *judged.spoiled)]
    judgements = [*(case.predicted for case in judged.cases), *answers, *judged.corrected]
    critiques = [critique for critique in judgements if isinstance(critique, Critique)]
    lost = sum(critique.quotes.unmatched + critique.quotes.ambiguous for critique in critiques)
    fresh, corrupted = (_rewarded(answers, settings) for answers in (judged.fresh, judged.spoiled))
    faulted = [_faults(critique, settings) for critique in judged.corrected if isinstance(critique, Critique)]
    return GateFigures(
        **_heldout_figures(judged.cases, settings, seed),
        lost=lost / max(1, sum(critique.quote_count for critique in critiques)),
        unreadable=_share([isinstance(judgement, Failure) for judgement in judgements]),
        forced=sum(critique.forced > 0 for critique in critiques) / max(1, len(judgements)),
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


def _rewarded(answers: Sequence[Paid], settings: CreditSettings) -> list[bool]:
    """True for an answer with more praise than blame, of those whose critique can be read.

    What `credit.unlabelled` pays to tokens without a mark is neither: it would praise an answer
    whose few wrong lines are marked.
    """
    settings = settings.model_copy(update={"unlabelled": 0.0})
    read = [(critique, aligned) for critique, aligned in answers if isinstance(critique, Critique)]
    return [bool(credit(critique, aligned, settings).delta.sum() > 0) for critique, aligned in read]


def _faults(critique: Critique, settings: CreditSettings) -> bool:
    """True if a critique holds something against an answer that these settings pay for."""
    marked = not settings.by_score and any(span.label < 0 for span in critique.spans)
    return marked or (_pays_verdict(settings) and critique.score is not None and critique.score < 0)


def _heldout_figures(cases: Sequence[SpanCase], settings: CreditSettings, seed: int) -> dict[str, Any]:
    if not cases:
        return {}
    used = {span.label for case in cases for span in case.gold.spans}
    names = [name for label, name in LABEL_NAMES.items() if label in used]
    rates, bounds = span_report(cases), intervals(cases, seed=seed)
    uninformed = baselines(cases, seed)
    random = uninformed["random_spans"]

    def over(rates: Mapping[str, float]) -> float | None:
        return mean([rates[f"{name}_f1"] for name in names]) if names else None

    return {
        "heldout": len(cases),
        "f1": over(rates),
        "f1_low": over({name: low for name, (low, _) in bounds.items()}),
        "f1_high": over({name: high for name, (_, high) in bounds.items()}),
        "random_f1": over(random),
        "neutral_f1": over(uninformed["always_neutral"]),
        "by_label": {name: (rates[f"{name}_f1"], random[f"{name}_f1"]) for name in names},
        **(_verdict_figures(cases) if _pays_verdict(settings) else {}),
    }


def _verdict_figures(cases: Sequence[SpanCase]) -> dict[str, float]:
    """The spread of the verdicts, where they are mostly given, and their correlation with the gold
    ones."""
    gold = [case.gold.score for case in cases if case.gold.score is not None]
    read = [case.predicted for case in cases if isinstance(case.predicted, Critique)]
    given = [critique.score for critique in read if critique.score is not None]
    if not gold:
        return {"spread": float(np.std(given))} if 2 * len(given) > len(cases) else {}
    figures = {"spread": float(np.std(given or [0.0])), "gold_spread": float(np.std(gold))}
    if r := verdicts(cases):
        figures |= {"verdict_r": r.r, "verdict_r_low": r.low, "verdict_r_high": r.high}
    return figures


def gate(figures: GateFigures) -> Gate:
    """Fit or not, and why. What is paid must have been measured on held-out records."""
    reasons = tuple(_reasons(figures))
    return Gate(fit=not reasons, reasons=reasons, cautions=tuple(_cautions(figures)), figures=figures)


CUT = "of its critiques ran into the token limit, and their rest is lost (reward_model.max_new_tokens)"
SHARES = {
    "lost": (MOST_LOST, "of its quotes are not in the answer or not unique, so nothing is paid for them"),
    "unreadable": (MOST_UNREADABLE, "of its critiques cannot be read"),
    "forced": (MOST_CUT, CUT),
}
"""Shares that are reasons above a limit, and what they are shares of."""


def _reasons(figures: GateFigures) -> Iterator[str]:
    if not figures.heldout:
        yield "no critique is held out (task.heldout_share), so nobody knows how well it does"
    elif figures.pays_spans and figures.f1 is None:
        yield "no held-out critique marks words, so nobody knows how well it does"
    elif not figures.pays_spans and figures.gold_spread is None:
        yield "no held-out critique has a score, so nobody knows how well its verdicts do"
    few = figures.corrected < FEWEST_CORRECTED
    if figures.corrected_faulted > (MOST_FAULTED_OF_FEW if few else MOST_FAULTED):
        faulted = round(figures.corrected_faulted * figures.corrected)
        yield f"it finds fault with {faulted} of {figures.corrected} held-out answers as people corrected them"
    if _at_chance(figures):
        yield f"it marks no better than chance (F1 {figures.f1:.2f}, random spans {figures.random_f1:.2f})"
    if reason := _verdict_reason(figures):
        yield reason
    if figures.spoiled_paid > MOST_PRAISED and figures.spoiled >= FEWEST_SPOILED:
        corrupted, fresh = (f"{100 * share:.0f} %" for share in (figures.spoiled_paid, figures.fresh_paid))
        yield (
            f"it rewards {corrupted} of {figures.spoiled} answers made unreadable on purpose"
            f" ({fresh} of the policy's own)"
        )
    for name, (most, what) in SHARES.items():
        if (share := getattr(figures, name)) > most:
            yield f"{100 * share:.0f} % {what}"


def _at_chance(figures: GateFigures) -> bool:
    return figures.f1 is not None and figures.random_f1 is not None and figures.f1 <= figures.random_f1


def _verdict_reason(figures: GateFigures) -> str:
    """The reason not to train on the verdicts, where they are paid; "" if there is none."""
    if not figures.pays_verdict or figures.spread is None:
        return ""
    if figures.gold_spread is None:
        return "it gives verdicts, and no held-out critique has a score to compare them with"
    differ, gold_differ = figures.spread >= LEAST_SPREAD, figures.gold_spread >= LEAST_SPREAD
    if not gold_differ:
        apart = "its verdicts differ, where those of the held-out annotations are all the same"
        return apart if differ else ""
    if not differ:
        return "it gives every answer the same verdict, where the annotations differ"
    r, low, high = figures.verdict_r, figures.verdict_r_low, figures.verdict_r_high
    if r is None or low is None or high is None:
        return "too few held-out answers have a verdict of both to compare them"
    interval = f"(r {r:.2f}, {low:.2f} to {high:.2f})"
    if r <= 0 and figures.heldout >= FEW:
        return f"its verdicts do not follow those of the annotations {interval}"
    return f"its verdicts may follow those of the annotations by chance {interval}" if low <= 0 else ""


def _cautions(figures: GateFigures) -> Iterator[str]:
    if 0 < figures.heldout < FEW:
        yield f"measured on {figures.heldout} critiques only"
    if not _at_chance(figures):
        for name, (f1, random) in figures.by_label.items():
            if f1 <= random:
                yield f"its {name} spans are no better than chance (F1 {f1:.2f}, random {random:.2f})"
        low, random_f1 = figures.f1_low, figures.random_f1
        if low is not None and random_f1 is not None and low <= random_f1:
            yield "its interval reaches down to chance"
    if MOST_FORCED < figures.forced <= MOST_CUT:
        yield f"{100 * figures.forced:.0f} % {CUT}"
    if figures.spoiled > 0 and 0 < figures.fresh_paid <= figures.spoiled_paid <= MOST_PRAISED:
        yield "it rewards answers made unreadable on purpose as often as the policy's own"
