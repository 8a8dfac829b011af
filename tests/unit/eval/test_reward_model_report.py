"""The report on a reward model: quartiles, baselines, critiques; perfect, useless and unreadable
critics."""

from __future__ import annotations

import json

import pytest
from pytest import approx

from span_cases import UNREADABLE, case, critique, word_span
from text2grad.eval.critics.reward_model import (
    accuracy_by_length,
    baselines,
    critique_rouge,
    reward_model_report,
    verdict_order,
)
from text2grad.eval.critics.spans import SpanCase, span_report
from text2grad.feedback import Critique

SPANS = (word_span(1, 0, 0), word_span(1, 1, 2), word_span(-1, 4, 4), word_span(1, 5, 9))
GOLD = Critique(text="The dog sleeps too early.", spans=SPANS)


def test_a_perfect_critic() -> None:
    report = reward_model_report([case(GOLD, GOLD)] * 3)
    for label in ("good", "poor"):
        ones = (*report[label]["characters"].values(), *(report[label][rate] for rate in ("f1", "exact", "nearly")))
        assert set(ones) == {1.0}
        assert report[label]["intervals"]["f1"] == [1.0, 1.0]
        assert all(row["accuracy"] == 1.0 for row in report[label]["by_length"])
    assert (report["exact"], report["partial"], report["iou"]) == (1.0, 1.0, 1.0)
    assert (report["unmatched"], report["unreadable"], report["wrong_sign"]) == (0.0, 0.0, 0.0)
    assert set(report["rouge"].values()) == {1.0}
    assert (report["records"], report["good"]["gold_spans"], report["good"]["predicted_spans"]) == (3, 9, 9)
    json.dumps(report)


def test_the_flat_figures_are_those_of_the_span_report() -> None:
    cases = [case(GOLD, critique(word_span(1, 0, 3), word_span(-1, 4, 5))), case(GOLD, UNREADABLE)]
    report = reward_model_report(cases)
    assert span_report(cases).items() <= report.items()
    assert report["poor"]["recall"] == report["poor_recall"]


def test_an_unreadable_critic_misses_everything() -> None:
    report = reward_model_report([case(GOLD, UNREADABLE)] * 2)
    assert (report["good"]["f1"], report["poor"]["f1"], report["exact"], report["iou"]) == (0, 0, 0, 0)
    assert (report["unreadable"], report["rouge"]["rouge1"]) == (1.0, 0.0)
    assert [row["accuracy"] for row in report["good"]["by_length"]] == [0.0] * 4


def test_accuracy_by_length_counted_by_hand() -> None:
    """Spans of 1, 2 and 5 tokens; found: the first, none of the second, three of the five."""
    rows = accuracy_by_length([case(GOLD, critique(word_span(1, 0, 0), word_span(1, 5, 7)))], 1)
    assert [(row["spans"], row["from"], row["to"]) for row in rows] == [(1, 1, 1), (1, 2, 2), (1, 5, 5)]
    assert [row["accuracy"] for row in rows] == approx([1.0, 0.0, 3 / 5])


def test_quartiles_hold_a_quarter_of_the_spans_each() -> None:
    lengths = [1, 1, 2, 2, 3, 3, 4, 4]
    cases = [case(critique(word_span(1, 0, length - 1)), critique()) for length in lengths]
    rows = accuracy_by_length(cases, 1)
    assert [(row["spans"], row["from"], row["to"]) for row in rows] == [(2, n, n) for n in (1, 2, 3, 4)]


def test_baselines_know_nothing() -> None:
    found = baselines([case(GOLD, GOLD)] * 10)
    silent, random = found["always_neutral"], found["random_spans"]
    assert (silent["good_f1"], silent["poor_f1"], silent["wrong_sign_rate"], silent["unreadable"]) == (0, 0, 0, 0)
    assert 0.0 < random["poor_f1"] < 0.5 and random["wrong_sign_rate"] > 0


def test_one_label_for_every_token_is_right_as_often_as_tokens_have_it() -> None:
    """Two of ten tokens are poor: marked all over, precision 0.2 and recall 1."""
    found = baselines([case(critique(word_span(-1, 4, 5)), critique())] * 3)
    always = found["always_poor"]
    assert (always["poor_precision"], always["poor_recall"]) == (approx(0.2), 1.0)
    assert always["poor_f1"] == approx(1 / 3) and found["always_good"]["wrong_sign_rate"] == approx(0.2)


def test_random_spans_have_the_lengths_of_the_annotations() -> None:
    """One poor token of ten, drawn over and over: it hits one time in ten."""
    one = case(critique(word_span(-1, 4, 4)), critique())
    random = baselines([one] * 200)["random_spans"]
    assert random["poor_precision"] == random["poor_recall"] == approx(0.1, abs=0.02)


def test_random_spans_fit_into_short_responses() -> None:
    long, short = case(critique(word_span(-1, 0, 9)), critique()), case(critique(), critique())
    short = short._replace(aligned=type(short.aligned).of("", *([short.aligned.starts[:0]] * 2)))
    assert baselines([long, short])["random_spans"]["poor_recall"] > 0


def test_baselines_do_not_look_at_the_prediction() -> None:
    assert baselines([case(GOLD, GOLD)] * 4) == baselines([case(GOLD, UNREADABLE)] * 4)


def test_rouge_of_critiques_leaves_out_what_has_no_text() -> None:
    silent = case(Critique(text=" ", spans=GOLD.spans), GOLD)
    assert critique_rouge([silent]) == {}
    half = case(Critique(text="too short"), Critique(text="too long"))
    assert critique_rouge([silent, half])["rouge1"] == approx(0.5)


def test_nothing_to_compare_is_not_a_score() -> None:
    with pytest.raises(ValueError, match="no critiques"):
        reward_model_report([])


@pytest.mark.parametrize(
    ("said", "order"),
    [((0.9, 0.1), 1.0), ((0.1, 0.9), 0.0), ((0.4, 0.4), 0.5), ((0.4, None), 0.5), ((None, None), 0.5)],
)
def test_the_order_of_two_answers_is_that_of_their_verdicts(
    said: tuple[float | None, float | None], order: float
) -> None:
    """Those of one question whose annotations differ; an answer to another question is compared
    with none."""

    def to(question: str, gold: float | None, said: float | None) -> SpanCase:
        own, other = (Critique(text="", score=score) for score in (gold, said))
        return case(own, other)._replace(question=question)

    first, second = (to("q", *each) for each in zip((0.5, -0.5), said, strict=True))
    others = [to("other", 0.0, 0.95), to("q", None, 0.95), to("", 1.0, 0.0), to("", 0.0, 1.0)]
    assert verdict_order([first, second, *others]) == verdict_order([second, *others, first]) == order
    assert verdict_order([first, *others]) is None
