"""The gate: whether a reward model is fit to train against, with reasons, from measured figures. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from text2grad.align import Aligned, CreditSettings, credit
from text2grad.eval.critics.reward_model import baselines, verdicts
from text2grad.eval.critics.spans import LABEL_NAMES, SpanCase, intervals, span_report
from text2grad.eval.metrics import mean
from text2grad.feedback import Critique, Failure, Judgement

MOST_LOST = MOST_UNREADABLE = MOST_PRAISED = 0.5
"""Shares of quotes that are lost, of critiques that cannot be read, and of spoiled answers that are rewarded."""
MOST_FORCED, MOST_CUT = 0.1, 0.5
"""Shares of critiques that the token limit closes: from the first on a caution, from the second on a reason."""
MOST_FAULTED, MOST_FAULTED_OF_FEW, FEWEST_CORRECTED = 0.25, 0.5, 4
"""Shares of people's own corrections that are faulted, of at least so many and of fewer."""
LEAST_SPREAD = 0.01
"""Standard deviation of verdicts; below it they are one and the same."""
FEW, FEWEST_SPOILED = 20, 4
"""Held-out critiques below which the interval says more than the figure, and readable critiques of spoiled answers
below which nothing is concluded from them."""

Paid = tuple[Judgement, Aligned]
"""A reward model's judgement of an answer, and the answer's tokens."""


@dataclass(frozen=True, kw_only=True)
class GateFigures:
    """What was measured; None where it could not be.

    `f1` is the mean over the labels that the annotations use, `random_f1` that of as many spans at random places,
    `neutral_f1` that of a critic that marks nothing; `f1_low` and `f1_high` are the means of the labels' own 95 %
    bounds, a little wider than those of the mean. `lost` is a share of quotes, `unreadable` and `forced` (closed
    by the token limit) of critiques, `spoiled_paid` of spoiled answers whose rewards add up to more than 0,
    `fresh_paid` the same of the policy's own answers, both of those (`spoiled`, `fresh`) whose critique can be
    read, as the others are not trained on. `spread`, `gold_spread`: standard deviations of the verdicts;
    `verdict_r` (`_low`, `_high`): their correlation, with Fisher's 95 % bounds. `by_label`: F1, and
    that of random spans. `corrected`: answers as people corrected them, held out, whose critique can be read;
    `corrected_faulted`: the share in which it marks something poor, or that it gives a verdict below 0 where
    verdicts are paid. `pays_spans`, `pays_verdict`: what the run's credit pays.
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
    """The verdict on a reward model: `reasons` why it is not fit to train against, `cautions` where it is.

    `spans_alone`: that on the same reward model where its spans are paid and its verdict is not.
    """

    fit: bool
    reasons: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    figures: GateFigures = GateFigures()
    spans_alone: Gate | None = None


@dataclass(frozen=True)
class GateJudgements:
    """A reward model's judgements of held-out records, of fresh and of spoiled answers, and of held-out answers as
    people corrected them."""

    cases: Sequence[SpanCase] = ()
    fresh: Sequence[Paid] = ()
    spoiled: Sequence[Paid] = ()
    corrected: Sequence[Judgement] = ()


def check(judged: GateJudgements, settings: CreditSettings, seed: int) -> Gate:
    """The verdict under these credit settings, and where they pay both the one on spans alone."""
    found = gate(gate_figures(judged, settings, seed))
    if settings.by_score or not settings.outcome_weight:
        return found
    spans = settings.model_copy(update={"outcome_weight": 0.0})
    return replace(found, spans_alone=gate(gate_figures(judged, spans, seed)))


def gate_figures(judged: GateJudgements, settings: CreditSettings, seed: int) -> GateFigures:
    """The figures of a reward model, where answers are paid by these settings."""
    answers = [judgement for judgement, _ in (*judged.fresh, *judged.spoiled)]
    said = [*(case.predicted for case in judged.cases), *answers, *judged.corrected]
    lost, unreadable, forced = _failures(said)
    own, marred = (_paid(answers, settings) for answers in (judged.fresh, judged.spoiled))
    faulted = [_faults(each, settings) for each in judged.corrected if isinstance(each, Critique)]
    return GateFigures(
        **_heldout_figures(judged.cases, settings, seed),
        lost=lost,
        unreadable=unreadable,
        forced=forced,
        fresh=len(own),
        fresh_paid=sum(own) / max(1, len(own)),
        spoiled=len(marred),
        spoiled_paid=sum(marred) / max(1, len(marred)),
        corrected=len(faulted),
        corrected_faulted=sum(faulted) / max(1, len(faulted)),
        pays_spans=not settings.by_score,
        pays_verdict=_pays_verdict(settings),
    )


def _pays_verdict(settings: CreditSettings) -> bool:
    return settings.by_score or settings.outcome_weight != 0


def _faults(said: Critique, settings: CreditSettings) -> bool:
    """Whether a critique holds something against an answer that these settings pay for."""
    marked = not settings.by_score and any(span.label < 0 for span in said.spans)
    return marked or (_pays_verdict(settings) and said.score is not None and said.score < 0)


def _heldout_figures(cases: Sequence[SpanCase], settings: CreditSettings, seed: int) -> dict[str, Any]:
    if not cases:
        return {}
    used = {span.label for case in cases for span in case.gold.spans}
    names = [name for label, name in LABEL_NAMES.items() if label in used]
    rates, bounds = span_report(cases), intervals(cases, seed=seed)
    knowing_nothing = baselines(cases, seed)
    scattered = knowing_nothing["random_spans"]

    def over(rates: Mapping[str, float]) -> float | None:
        return mean([rates[f"{name}_f1"] for name in names]) if names else None

    return {
        "heldout": len(cases),
        "f1": over(rates),
        "f1_low": over({name: low for name, (low, _) in bounds.items()}),
        "f1_high": over({name: high for name, (_, high) in bounds.items()}),
        "random_f1": over(scattered),
        "neutral_f1": over(knowing_nothing["always_neutral"]),
        "by_label": {name: (rates[f"{name}_f1"], scattered[f"{name}_f1"]) for name in names},
        **_spreads(cases, settings),
    }


def _spreads(cases: Sequence[SpanCase], settings: CreditSettings) -> dict[str, float]:
    """Of the verdicts, where they are paid and mostly given, and their correlation with the gold ones."""
    gold = [case.gold.score for case in cases if case.gold.score is not None]
    read = [case.predicted for case in cases if isinstance(case.predicted, Critique)]
    given = [each.score for each in read if each.score is not None]
    if not _pays_verdict(settings):
        return {}
    if not gold:
        return {"spread": float(np.std(given))} if 2 * len(given) > len(cases) else {}
    found = {"spread": float(np.std(given or [0.0])), "gold_spread": float(np.std(gold))}
    if r := verdicts(cases):
        found |= {"verdict_r": r.r, "verdict_r_low": r.low, "verdict_r_high": r.high}
    return found


def _failures(said: Sequence[Judgement]) -> tuple[float, float, float]:
    """Shares of quotes lost, of critiques that cannot be read, and of critiques that the token limit closed."""
    read = [each for each in said if isinstance(each, Critique)]
    lost = sum(each.quotes.unmatched + each.quotes.ambiguous for each in read)
    quotes = sum(each.quote_count for each in read)
    count = max(1, len(said))
    return lost / max(1, quotes), (len(said) - len(read)) / count, sum(each.forced > 0 for each in read) / count


def _paid(answers: Sequence[Paid], settings: CreditSettings) -> list[bool]:
    """Of each answer whose critique can be read, whether its rewards add up to more than 0."""
    return [
        bool(credit(judgement, aligned, settings).delta.sum() > 0)
        for judgement, aligned in answers
        if not isinstance(judgement, Failure)
    ]


def gate(figures: GateFigures) -> Gate:
    """Fit or not, and why. What is paid must have been measured on held-out records."""
    shares = {name: getattr(figures, name) for name in SHARES}
    high = [f"{100 * shares[name]:.0f} % {what}" for name, (most, what) in SHARES.items() if shares[name] > most]
    reasons = (*(reason for rule in REASONS if (reason := rule(figures))), *high)
    return Gate(fit=not reasons, reasons=reasons, cautions=tuple(_cautions(figures)), figures=figures)


def _faults_corrections(found: GateFigures) -> str:
    few = found.corrected < FEWEST_CORRECTED
    if found.corrected_faulted <= (MOST_FAULTED_OF_FEW if few else MOST_FAULTED):
        return ""
    faulted = round(found.corrected_faulted * found.corrected)
    return f"it finds fault with {faulted} of {found.corrected} held-out answers as people corrected them"


def _not_measured(found: GateFigures) -> str:
    if not found.heldout:
        return "no critique is held out (task.heldout_share), so nobody knows how well it does"
    if found.pays_spans and found.f1 is None:
        return "no held-out critique marks words, so nobody knows how well it does"
    if not found.pays_spans and found.gold_spread is None:
        return "no held-out critique has a score, so nobody knows how well its verdicts do"
    return ""


def _worse_than_random(found: GateFigures) -> str:
    if found.f1 is None or found.random_f1 is None or found.f1 > found.random_f1:
        return ""
    return f"it marks no better than chance (F1 {found.f1:.2f}, random spans {found.random_f1:.2f})"


def _one_verdict(found: GateFigures) -> str:
    if found.spread is None or found.gold_spread is None:
        return ""
    told_apart = found.spread >= LEAST_SPREAD or found.gold_spread < LEAST_SPREAD
    return "" if told_apart else "it gives every answer the same verdict, where the annotations differ"


def _verdicts_of_chance(found: GateFigures) -> str:
    if not found.pays_verdict or found.spread is None or _one_verdict(found):
        return ""
    if found.gold_spread is None:
        return "it gives verdicts, and no held-out critique has a score to compare them with"
    if found.gold_spread < LEAST_SPREAD:
        apart = "its verdicts differ, where those of the held-out annotations are all the same"
        return apart if found.spread >= LEAST_SPREAD else ""
    if found.verdict_r is None or found.verdict_r_low is None or found.verdict_r_high is None:
        return "too few held-out answers have a verdict of both to compare them"
    interval = f"r {found.verdict_r:.2f}, {found.verdict_r_low:.2f} to {found.verdict_r_high:.2f}"
    if found.verdict_r <= 0 and found.heldout >= FEW:
        return f"its verdicts do not follow those of the annotations ({interval})"
    may_be_chance = found.verdict_r_low <= 0
    return f"its verdicts may follow those of the annotations by chance ({interval})" if may_be_chance else ""


def _praises_anything(found: GateFigures) -> str:
    if found.spoiled_paid <= MOST_PRAISED or found.spoiled < FEWEST_SPOILED:
        return ""
    share, own = f"{100 * found.spoiled_paid:.0f} %", f"{100 * found.fresh_paid:.0f} %"
    return f"it rewards {share} of {found.spoiled} answers made unreadable on purpose ({own} of the policy's own)"


REASONS = (
    _not_measured,
    _faults_corrections,
    _worse_than_random,
    _one_verdict,
    _verdicts_of_chance,
    _praises_anything,
)
CUT = "of its critiques ran into the token limit, and their rest is lost (reward_model.max_new_tokens)"
SHARES = {
    "lost": (MOST_LOST, "of its quotes are not in the answer or not unique, so nothing is paid for them"),
    "unreadable": (MOST_UNREADABLE, "of its critiques cannot be read"),
    "forced": (MOST_CUT, CUT),
}
"""Shares that are reasons above a limit, and what they are shares of."""


def _cautions(found: GateFigures) -> list[str]:
    cautions = []
    if 0 < found.heldout < FEW:
        cautions.append(f"measured on {found.heldout} critiques only")
    for name, (f1, chance) in found.by_label.items():
        if f1 <= chance and not _worse_than_random(found):
            cautions.append(f"its {name} spans are no better than chance (F1 {f1:.2f}, random {chance:.2f})")
    overlapping = found.f1_low is not None and found.random_f1 is not None and found.f1_low <= found.random_f1
    if overlapping and not _worse_than_random(found):
        cautions.append("its interval reaches down to chance")
    if MOST_FORCED < found.forced <= MOST_CUT:
        cautions.append(f"{100 * found.forced:.0f} % {CUT}")
    if found.spoiled > 0 and 0 < found.fresh_paid <= found.spoiled_paid <= MOST_PRAISED:
        cautions.append("it rewards answers made unreadable on purpose as often as the policy's own")
    return cautions
