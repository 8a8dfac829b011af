"""Answers before and after are compared by what people said, and nothing is credited that is not
there."""

from __future__ import annotations

from typing import Any

import pytest

from text2grad.eval.improvement import (
    Expectation,
    compare,
    criticised_terms,
    expectations,
    likeness,
    measure,
)
from text2grad.feedback import Critique, Example, Feedback, Message, Source, Span

NOBODY = Expectation("", "", 6.0, frozenset())


def record(question: str, response: str, poor: str = "", score: float | None = None, **meta: Any) -> Feedback:
    example = Example(id=question, prompt=(Message(role="user", content=question),), meta=meta)
    start = response.index(poor)
    spans = (Span(start=start, end=start + len(poor), label=-1, text=poor),) if poor else ()
    return Feedback.of(example, response, Critique(text="c", spans=spans, score=score), Source(kind="human"))


def test_criticised_words_are_short_and_nobody_writes_them() -> None:
    records = [
        record("q1", "It is 12 inches wide and blue.", "12 inches"),
        record("q2", "The best lamp, and it is wide.", "The best"),
        record("q3", "It is blue.", "blue", corrected="It is blue and tall."),
        record("q4", "All of this is far too long.", "All of this is far too long"),
        record("q5", "A tall lamp.", score=1.0),
        *(record(name, "We are so sorry for that.", "We are so sorry for that") for name in ("q7", "q8")),
        record("q6", "A tall mug.", "tall"),
    ]
    assert criticised_terms(records) == {"12 inches", "the best", "we are so sorry for that"}


def test_what_people_want_of_a_question() -> None:
    records = [
        record("Is it the best?", "The best lamp.", "The best", -1.0),
        record("Is it the best?", "A lamp of oak.", score=0.5),
        record("How wide?", "12 inches.", "12 inches", -1.0, corrected="30 cm."),
    ]
    wanted = expectations(records, ["Is it the best?", "How wide?", "Who?"])
    assert (
        wanted["Is it the best?"].praised == "A lamp of oak." and "the best" not in wanted["Is it the best?"].terms
    )
    assert wanted["How wide?"].corrected == "30 cm." and wanted["How wide?"].terms == {"12 inches", "the best"}
    assert not wanted["Who?"].corrected and wanted["Who?"].length > 2


@pytest.mark.parametrize(
    ("answer", "clean"),
    [("It is thirty cm wide today.", 1.0), ("It is 12 Inches wide today.", 0.0), ("", 0.0), ("so " * 40, 0.0)],
)
def test_an_answer_is_clean_if_it_is_one_and_repeats_nothing(answer: str, clean: float) -> None:
    assert measure(answer, Expectation("", "", 6.0, frozenset({"12 inches"})), True) == {"clean": clean}
    assert measure(answer, NOBODY, False) == {}


def test_likeness_counts_words_in_their_order() -> None:
    assert likeness("It is 30 cm wide.", "it is 30 cm wide") == 1.0
    assert likeness("a b c d", "a b x y") == 0.5 and likeness("", "a") == 0.0


@pytest.mark.parametrize(("count", "better"), [(6, True), (2, False)])
def test_better_is_better_beyond_chance(count: int, better: bool) -> None:
    wanted = {str(n): Expectation("It is 30 cm wide.", "", 5.0, frozenset()) for n in range(count)}
    before, after = dict.fromkeys(wanted, "No idea at all."), dict.fromkeys(wanted, "It is 30 cm wide.")
    compared = compare(wanted, before, after)
    assert compared.better is better and compared.after == {"corrections": 1.0}
    assert (compared.gain is None) is (count < 3)
    assert not compare(wanted, after, after).better and not compare(wanted, after, before).better
    assert "0.00 -> 1.00" in compared.line


def test_gains_that_cancel_are_no_gain() -> None:
    wanted = {str(n): Expectation("It is 30 cm wide.", "", 5.0, frozenset()) for n in range(8)}
    before = {name: ("It is 30 cm wide.", "No.")[int(name) % 2] for name in wanted}
    after = {name: ("No.", "It is 30 cm wide.")[int(name) % 2] for name in wanted}
    assert not compare(wanted, before, after).better


def test_without_anything_to_measure_by_nothing_is_decided() -> None:
    compared = compare(
        {str(n): NOBODY for n in range(9)}, dict.fromkeys("012345678", "a"), dict.fromkeys("012345678", "b")
    )
    assert compared.gain is None and not compared.better and compared.after == {}
