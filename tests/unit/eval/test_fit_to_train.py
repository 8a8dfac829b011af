"""The gate of a reward model: each reason by itself, what is only a caution, and the figures they
are read from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from span_cases import TEXT, UNREADABLE, case, critique, word_span, words_aligned
from text2grad.align import CreditSettings
from text2grad.eval.critics.gate import Gate, GateFigures, GateJudgements, check, gate, gate_figures
from text2grad.eval.critics.reward_model import reward_model_report
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critique

SOUND = GateFigures(
    heldout=40,
    f1=0.7,
    f1_low=0.6,
    f1_high=0.8,
    random_f1=0.2,
    neutral_f1=0.0,
    spread=0.6,
    gold_spread=0.7,
    verdict_r=0.8,
    verdict_r_low=0.6,
    verdict_r_high=0.9,
    lost=0.1,
    unreadable=0.02,
    fresh=16,
    fresh_paid=0.5,
    spoiled=16,
    spoiled_paid=0.1,
)


def test_a_sound_reward_model_is_fit_without_a_word() -> None:
    assert gate(SOUND) == Gate(fit=True, reasons=(), figures=SOUND)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"f1": 0.2}, "no better than chance (F1 0.20, random spans 0.20)"),
        ({"spread": 0.0}, "the same verdict"),
        ({"verdict_r": 0.0, "verdict_r_low": -0.3}, "do not follow those of the annotations (r 0.00, -0.30 to"),
        ({"verdict_r": 0.18, "verdict_r_low": -0.37, "verdict_r_high": 0.63}, "by chance (r 0.18, -0.37 to 0.63)"),
        ({"verdict_r": -0.2, "verdict_r_low": -0.7, "heldout": 12}, "by chance (r -0.20"),
        ({"verdict_r": None, "verdict_r_low": None, "verdict_r_high": None}, "too few held-out answers"),
        ({"heldout": 0, "f1": None, "random_f1": None}, "no critique is held out"),
        ({"f1": None, "random_f1": None}, "no held-out critique marks words"),
        (
            {"pays_spans": False, "gold_spread": None, "spread": None, "verdict_r": None},
            "no held-out critique has a score",
        ),
        (
            {"corrected": 16, "corrected_faulted": 15 / 16},
            "fault with 15 of 16 held-out answers that people corrected",
        ),
        ({"corrected": 4, "corrected_faulted": 0.5}, "fault with 2 of 4"),
        ({"corrected": 1, "corrected_faulted": 1.0}, "fault with 1 of 1"),
        ({"gold_spread": None, "verdict_r": None}, "no held-out critique has a score to compare them with"),
        ({"gold_spread": 0.0, "verdict_r": None}, "its verdicts differ, but those of the held-out"),
        ({"forced": 0.86}, "86 % of its critiques reached the token limit"),
        (
            {"spoiled_paid": 0.51},
            "rewards 51 % of 16 answers made unreadable on purpose (50 % of the policy's own)",
        ),
        ({"lost": 0.6}, "60 % of its quotes"),
        ({"unreadable": 0.75}, "75 % of its critiques cannot be read"),
    ],
)
def test_one_failure_is_the_one_reason(changes: dict[str, float], reason: str) -> None:
    found = gate(replace(SOUND, **changes))  # type: ignore[arg-type]
    assert not found.fit
    [said] = found.reasons
    assert reason in said


@pytest.mark.parametrize(
    "changes",
    [
        {"f1": 0.21, "f1_low": 0.2},
        {"spoiled_paid": 0.5},
        {"spoiled_paid": 1.0, "spoiled": 3},
        {"lost": 0.5},
        {"unreadable": 0.5},
        {"forced": 0.5},
        {"gold_spread": 0.0, "spread": 0.0},
        {"corrected": 16, "corrected_faulted": 0.25},
        {"corrected": 2, "corrected_faulted": 0.5},
        {"pays_spans": False, "f1": None, "random_f1": None},
        {"pays_verdict": False, "gold_spread": None, "spread": None, "verdict_r": None},
        {"pays_verdict": False, "verdict_r": 0.0, "verdict_r_low": -0.5},
    ],
)
def test_at_the_limit_it_is_fit(changes: dict[str, Any]) -> None:
    assert gate(replace(SOUND, **changes)).fit


@pytest.mark.parametrize(
    ("changes", "caution"),
    [
        ({"heldout": 9}, "measured on 9 critiques only"),
        ({"f1_low": 0.15}, "reaches down to chance"),
        ({"spoiled_paid": 0.3, "fresh_paid": 0.25}, "as often as the policy's own"),
        ({"forced": 0.11}, "11 % of its critiques reached the token limit"),
        ({"forced": 0.5}, "50 % of its critiques reached the token limit"),
        (
            {"by_label": {"good": (0.9, 0.5), "poor": (0.02, 0.1)}},
            "poor spans are no better than chance (F1 0.02, random",
        ),
    ],
)
def test_what_is_doubtful_is_a_caution(changes: dict[str, Any], caution: str) -> None:
    found = gate(replace(SOUND, **changes))
    assert found.fit and len(found.cautions) == 1 and caution in found.cautions[0]


GOLD = critique(word_span(1, 0, 0), word_span(-1, 4, 5))
PLACE = words_aligned(TEXT)


def figures_of(cases: list[SpanCase], **credit: Any) -> GateFigures:
    return gate_figures(GateJudgements(cases), CreditSettings(**credit), seed=0)


def test_only_labels_that_the_annotations_use_count() -> None:
    poor = critique(word_span(-1, 4, 5))
    figures = figures_of([case(poor, poor)] * 3)
    assert figures.f1 == figures.f1_low == figures.f1_high == 1.0
    assert figures.neutral_f1 == 0.0 and 0 < (figures.random_f1 or 0) < 1
    half = figures_of([case(GOLD, poor)] * 3)
    assert half.f1 == 0.5
    assert {name: f1 for name, (f1, _) in half.by_label.items()} == {"good": 0.0, "poor": 1.0}
    assert set(figures.by_label) == {"poor"}


def test_verdicts_count_only_where_they_are_paid() -> None:
    scored = [
        case(GOLD.model_copy(update={"score": score}), GOLD.model_copy(update={"score": 1.0}))
        for score in (1.0, -1.0)
    ]
    figures = figures_of(scored)
    assert (figures.spread, figures.gold_spread) == (0.0, 1.0)
    assert figures_of(scored, outcome_weight=0.0).spread is None
    assert figures_of([case(GOLD, GOLD)]).spread is None


def test_verdicts_are_compared_with_those_of_the_annotations() -> None:
    """By hand: gold -1, 0, 1 and -0.5, said 1, 0, -1 and nothing: r is -1 over the three that have
    both."""
    pairs = [(-1.0, 1.0), (0.0, 0.0), (1.0, -1.0), (-0.5, None)]
    scored = [
        case(GOLD.model_copy(update={"score": gold}), GOLD.model_copy(update={"score": said}))
        for gold, said in pairs
    ]
    figures = figures_of([*scored, case(GOLD, UNREADABLE)])
    assert figures.verdict_r == pytest.approx(-1.0)
    assert (figures.verdict_r_low, figures.verdict_r_high) == (-1.0, 1.0)  # three say nothing for sure
    report = reward_model_report(scored)
    assert report["verdict"]["r"] == figures.verdict_r
    assert reward_model_report([case(GOLD, GOLD)] * 2)["verdict"] is None
    assert figures_of(scored, outcome_weight=0.0).verdict_r is None


def test_what_is_paid_lost_and_unreadable() -> None:
    good, poor = (
        critique(word_span(1, 0, 2)),
        critique(word_span(-1, 0, 2), word_span(0, 4, 4), unmatched=2, ambiguous=1),
    )
    fresh = [(good, PLACE), (poor, PLACE), (UNREADABLE, PLACE), (Critique(text=""), PLACE)]
    figures = gate_figures(GateJudgements((), fresh, fresh[:2]), CreditSettings(), seed=0)
    assert (figures.heldout, figures.f1) == (0, None)
    assert (figures.fresh, figures.fresh_paid, figures.spoiled, figures.spoiled_paid) == (3, 1 / 3, 2, 0.5)
    assert figures.lost == 6 / 10 and figures.unreadable == pytest.approx(1 / 6)
    assert figures.forced == 0.0
    cut = gate_figures(GateJudgements((), [*fresh, (critique(forced=1), PLACE)]), CreditSettings(), seed=0)
    assert cut.forced == 1 / 5


def test_an_answer_of_which_a_part_is_blamed_is_not_rewarded_for_the_rest() -> None:
    """As on KodCode, where what is not marked is paid 1."""
    blamed = [(critique(word_span(-1, 0, 0)), PLACE)]
    settings = CreditSettings(unlabelled=1.0, outcome_weight=0.0)
    assert gate_figures(GateJudgements((), (), blamed), settings, seed=0).spoiled_paid == 0.0


def test_verdicts_that_nobody_gave_are_measured_by_none() -> None:
    """People gave no score; where the reward model mostly gives one, what is paid is known to
    nobody."""
    scored = GOLD.model_copy(update={"score": 0.5})
    assert figures_of([case(GOLD, scored)] * 2 + [case(GOLD, GOLD)]).spread == 0.0
    assert figures_of([case(GOLD, scored), case(GOLD, GOLD)]).spread is None
    assert figures_of([case(GOLD, scored)] * 3, outcome_weight=0.0).spread is None


def test_a_correction_is_faulted_by_what_is_paid() -> None:
    """Poor words where spans are paid, a verdict below 0 where verdicts are; what cannot be read is
    not counted."""
    poor, bad = critique(word_span(-1, 4, 5)), Critique(text="", score=-0.5)
    said = [poor, bad, Critique(text="", score=1.0), critique(word_span(1, 0, 2)), UNREADABLE]
    expected = {"spans": (4, 0.5), "last_token": (4, 0.25)}
    for scheme, faulted in expected.items():
        found = gate_figures(GateJudgements(corrected=said), CreditSettings(scheme=scheme), seed=0)
        assert (found.corrected, found.corrected_faulted) == faulted
    alone = gate_figures(GateJudgements(corrected=said), CreditSettings(outcome_weight=0.0), seed=0)
    assert alone.corrected_faulted == 0.25 and not alone.pays_verdict


def test_a_verdict_of_chance_leaves_spans_that_are_fit() -> None:
    """Twelve held-out answers with spans marked to the word, and verdicts that have nothing to do
    with the gold."""
    golds, saids = [1.0, -1.0, 0.5] * 4, [0.5, 0.4, -0.5, 0.3] * 3
    cases = [
        case(GOLD.model_copy(update={"score": gold}), GOLD.model_copy(update={"score": said}))
        for gold, said in zip(golds, saids, strict=True)
    ]
    found = check(GateJudgements(cases), CreditSettings(), seed=0)
    assert not found.fit and "by chance" in found.reasons[0]
    assert found.spans_alone is not None and found.spans_alone.fit
    assert check(GateJudgements(cases), CreditSettings(outcome_weight=0.0), seed=0).spans_alone is None
    assert check(GateJudgements(cases), CreditSettings(scheme="last_token"), seed=0).spans_alone is None
