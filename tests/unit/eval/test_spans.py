"""`eval.critics.spans`: hand-counted tokens, and the cases the published metric gets wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from span_cases import TEXT, UNREADABLE, case, critique, word_span
from text2grad.align import Aligned
from text2grad.eval.critics.spans import SpanCase, intervals, span_report
from text2grad.feedback import Critique, Judgement, Span


@st.composite
def critiques(draw: st.DrawFn) -> Critique:
    ends = sorted(draw(st.sets(st.integers(0, 9), max_size=6)))
    pairs = zip(ends[::2], ends[1::2], strict=False)
    return critique(*(word_span(draw(st.sampled_from([1, -1])), first, last) for first, last in pairs))


def test_tokens_counted_by_hand() -> None:
    """Gold: words 0-3 good, 7-9 poor. Predicted: 1-4 good, 8-9 and 3 (of the good ones) poor."""
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    predicted = critique(word_span(1, 1, 2), word_span(1, 4, 4), word_span(-1, 3, 3), word_span(-1, 8, 9))
    scores = span_report([case(gold, predicted)])
    counted = [f"{label}_{rate}" for label in ("good", "poor") for rate in ("precision", "recall", "f1")]
    assert {name: scores[name] for name in [*counted, "wrong_sign_rate"]} == approx(
        {
            "good_precision": 2 / 3,
            "good_recall": 2 / 4,
            "good_f1": 4 / 7,
            "poor_precision": 2 / 3,
            "poor_recall": 2 / 3,
            "poor_f1": 2 / 3,
            "wrong_sign_rate": 1 / 6,
        }
    )


def test_improvement_suggestions_have_figures_of_their_own_and_move_no_other() -> None:
    """Table 7: of two suggestions one is found to the letter, one by its edge alone."""
    gold = critique(word_span(1, 0, 3), word_span(0, 4, 4), word_span(0, 5, 8))
    said = critique(word_span(1, 0, 3), word_span(0, 4, 4), word_span(0, 8, 9), unmatched=1)
    plain = [case(*(each.model_copy(update={"spans": each.spans[:1]}) for each in (gold, said)))]
    scores, others = span_report([case(gold, said)]), span_report(plain)
    assert (scores["improvable_exact"], scores["improvable_nearly"], scores["improvable_partial"]) == (0.5, 0.5, 1)
    assert 0 < scores["improvable_iou"] < 1
    assert {name: scores[name] for name in others} == others
    assert not any(name.startswith("improvable_") for name in others)
    missed = span_report([case(gold, critique())])
    assert missed["improvable_exact"] == 0 and missed["good_recall"] == 0
    assert intervals([case(gold, said)])["improvable_exact"] == (0.5, 0.5)


@given(st.lists(critiques(), min_size=1, max_size=4))
def test_a_perfect_prediction_scores_one(golds: Sequence[Critique]) -> None:
    report = span_report([case(gold, gold) for gold in golds])
    signs = {"wrong_sign_rate", "word_wrong_sign_rate", "character_wrong_sign_rate"}
    wrong = {*signs, "unreadable", "unmatched", "ambiguous", "forced"}
    assert {name for name, value in report.items() if value == 0} == wrong
    assert all(value == 1 for name, value in report.items() if name not in wrong)


@given(st.lists(st.tuples(critiques(), st.one_of(critiques(), st.just(UNREADABLE))), min_size=1, max_size=4))
def test_every_number_is_a_share(pairs: Sequence[tuple[Critique, Judgement]]) -> None:
    report = span_report([case(gold, predicted) for gold, predicted in pairs])
    assert all(0 <= value <= 1 for value in report.values())


def test_a_repeated_word_is_a_position() -> None:
    """ "the" is praised at word 0 and marked at word 7: same word, no agreement."""
    scores = span_report([case(critique(word_span(1, 0, 0)), critique(word_span(1, 7, 7)))])
    assert scores["good_precision"] == scores["good_recall"] == scores["good_f1"] == 0.0


def test_an_unreadable_prediction_misses_everything() -> None:
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    readable, unreadable = case(gold, gold), case(gold, UNREADABLE)
    scores = span_report([readable, unreadable])
    assert scores["good_precision"] == scores["poor_precision"] == 1.0
    assert scores["good_recall"] == scores["poor_recall"] == 0.5
    spans = span_report([readable, unreadable])
    assert (spans["span_exact_precision"], spans["span_exact_recall"], spans["span_iou"]) == (1.0, 0.5, 0.5)
    assert span_report([readable, unreadable])["unreadable"] == 0.5


def test_silence_is_not_perfection() -> None:
    scores = span_report([case(critique(word_span(1, 0, 3)), critique())])
    assert (scores["good_precision"], scores["good_recall"], scores["span_iou"]) == (0.0, 0.0, 0.0)
    assert scores["poor_f1"] == 1.0
    babble = span_report([case(critique(), critique(word_span(1, 0, 3)))])
    assert (babble["good_precision"], babble["good_recall"], babble["span_iou"]) == (0.0, 0.0, 0.0)


def test_the_opposite_label_is_worse_than_a_miss() -> None:
    gold = critique(word_span(1, 0, 3))
    assert span_report([case(gold, critique(word_span(-1, 0, 3)))])["wrong_sign_rate"] == 1.0
    assert span_report([case(gold, critique(word_span(-1, 2, 5)))])["wrong_sign_rate"] == 0.5
    assert span_report([case(gold, critique(word_span(1, 4, 5)))])["wrong_sign_rate"] == 0.0


def test_a_token_that_is_half_covered_counts() -> None:
    """The span covers 'ca' of 'cat'."""
    gold, half = critique(word_span(1, 1, 1)), Span(start=4, end=6, label=1, text="ca")
    assert span_report([case(gold, critique(half))])["good_recall"] == 1.0


def test_spans_counted_by_hand() -> None:
    """One exact, one overlapping by 3 of 11 characters, one with the other label, one missed."""
    gold = critique(word_span(1, 0, 1), word_span(-1, 2, 3), word_span(1, 4, 5), word_span(1, 8, 9))
    predicted = critique(word_span(1, 0, 1), word_span(-1, 3, 4), word_span(-1, 5, 5))
    scores = span_report([case(gold, predicted)])
    shared = 2 / (6 + 6 - 2)  # "sat on" and "on the" share "on"
    assert {name: value for name, value in scores.items() if name.startswith("span_")} == approx(
        {
            "span_exact_precision": 1 / 3,
            "span_exact_recall": 1 / 4,
            "span_exact_f1": 2 / 7,
            "span_partial_precision": 2 / 3,
            "span_partial_recall": 2 / 4,
            "span_partial_f1": 4 / 7,
            "span_iou": (1 + shared) / 4,
        }
    )
    found = [f"{label}_{rate}" for label in ("good", "poor") for rate in ("exact", "partial", "nearly", "iou")]
    assert {name: scores[name] for name in found} == approx(
        {
            **{"good_exact": 1 / 3, "good_partial": 1 / 3, "good_nearly": 1 / 3, "good_iou": 1 / 3},
            **{"poor_exact": 0.0, "poor_partial": 1.0, "poor_nearly": 0.0, "poor_iou": shared},
        }
    )


def test_spans_of_different_responses_never_meet() -> None:
    one, other = critique(word_span(1, 0, 1)), critique(word_span(1, 4, 5))
    scores = span_report([case(one, critique()), case(other, one)])
    assert scores["span_partial_f1"] == 0.0


def test_lost_quotes_are_shares_of_the_quotes() -> None:
    gold = critique(word_span(1, 0, 3))
    predicted = critique(word_span(1, 0, 3), word_span(-1, 7, 9), unmatched=1, ambiguous=1)
    rates = span_report(
        [case(gold, predicted), case(gold, UNREADABLE), case(gold, critique(unmatched=1, forced=2))]
    )
    lost = {name: rates[name] for name in ("unreadable", "unmatched", "ambiguous", "forced")}
    assert lost == approx({"unreadable": 1 / 3, "unmatched": 2 / 5, "ambiguous": 1 / 5, "forced": 1 / 3})


def test_nothing_to_compare_is_not_a_score() -> None:
    with pytest.raises(ValueError, match="no critiques"):
        span_report([])


def test_a_repeated_gold_span_lifts_no_share_above_one() -> None:
    twice = critique(word_span(1, 0, 1), word_span(1, 0, 1), word_span(-1, 4, 5))
    scores = span_report([case(twice, critique(word_span(1, 0, 1)))])
    assert (scores["span_exact_precision"], scores["span_exact_recall"]) == (1.0, approx(2 / 3))


def test_characters_counted_by_hand() -> None:
    """Gold "the cat" good (7), predicted "cat sat" good (7): "cat" is shared."""
    scores = span_report([case(critique(word_span(1, 0, 1)), critique(word_span(1, 1, 2)))])
    assert (scores["good_character_precision"], scores["good_character_recall"]) == approx((3 / 7, 3 / 7))
    assert scores["good_overlap_index"] == approx(3 / 11)
    assert (scores["poor_overlap_index"], scores["character_wrong_sign_rate"]) == (1.0, 0.0)


def test_words_counted_by_hand_where_tokens_are_pieces_of_them() -> None:
    """Gold "the cat" good, predicted "cat sat" good; every token is a character."""
    edges = np.arange(len(TEXT) + 1)
    pieces = Aligned.of(TEXT, edges[:-1], edges[1:])
    scores = span_report([SpanCase(critique(word_span(1, 0, 1)), critique(word_span(1, 1, 2)), pieces)])
    assert (scores["good_word_precision"], scores["good_word_recall"], scores["good_word_f1"]) == (0.5, 0.5, 0.5)
    assert scores["good_precision"] == approx(3 / 7)
    opposite = span_report([SpanCase(critique(word_span(1, 0, 1)), critique(word_span(-1, 1, 2)), pieces)])
    assert opposite["word_wrong_sign_rate"] == 0.5


def test_nearly_is_nine_tenths_of_the_longer() -> None:
    whole = word_span(1, 0, 8)  # 34 of 40 characters
    text = Span(start=0, end=len(TEXT), label=1, text=TEXT)
    most = Span(start=0, end=37, label=1, text=TEXT[:37])
    for mine, found in ((whole, 0.0), (most, 1.0)):
        assert span_report([case(critique(text), critique(mine))])["good_nearly"] == found
        assert span_report([case(critique(mine), critique(text))])["good_nearly"] == found


def test_intervals_hold_the_rate_and_shrink_with_the_records() -> None:
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    mixed = [case(gold, gold), case(gold, critique(word_span(1, 0, 1))), case(gold, UNREADABLE)]
    few, many = intervals(mixed * 2), intervals(mixed * 40)
    rates = span_report(mixed)
    assert set(few) == set(rates)
    assert all(low <= rates[name] + 1e-9 and rates[name] - 1e-9 <= high for name, (low, high) in many.items())
    assert many["good_recall"][1] - many["good_recall"][0] < few["good_recall"][1] - few["good_recall"][0]
    assert intervals(mixed, seed=3) == intervals(mixed, seed=3)


def test_intervals_of_the_same_record_have_no_width() -> None:
    gold = critique(word_span(1, 0, 3))
    low, high = intervals([case(gold, critique(word_span(1, 0, 1)))] * 5)["good_recall"]
    assert low == high == 0.5
