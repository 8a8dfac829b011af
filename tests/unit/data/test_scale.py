"""Ratings: on a declared scale a score; without one none, and a line that names the cure."""

from __future__ import annotations

from typing import Any

import pytest

from text2grad.data.scale import Reading, Scale, Scales, number_of, parse_scale, parse_scales, verdict
from text2grad.errors import UsageError


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("1..5", {1: -1, 3: 0, 4: 0.5, 5: 1, "4.0": 0.5, 3.5: 0.25, 0: None, 6: None, "many": None}),
        ("0..1", {0: -1, 1: 1, 0.5: 0, -1: None}),
        ("-1..1", {-1: -1, 0: 0, 0.25: 0.25, 1: 1}),
        ("6..1", {6: -1, 1: 1, 3.5: 0}),
        ("0 .. 100", {0: -1, 80: 0.6, 100: 1}),
        ("poor, fair ,good", {"Poor": -1, "fair": 0, " GOOD ": 1, "meh": None, 1: None}),
        ("F,D,C,B,A", {"f": -1, "C": 0, "A": 1, "E": None}),
    ],
)
def test_a_scale_from_its_worst_to_its_best(text: str, scores: dict[Any, float | None]) -> None:
    scale = parse_scale(text)
    assert {value: scale.score(value) for value in scores} == scores


@pytest.mark.parametrize("text", ["", "5", "1..1", "1..many", "1-5", "good", "a,,b", "a,a", "1..2..3", "nan..5"])
def test_what_is_no_scale(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no scale .*--scale 1\.\.5"):
        parse_scale(text)


@pytest.mark.parametrize("values", [[0, 1], [1, 2, 3, 4, 5], ["5", "4.0"], [-0.5, 0.25], [0, 37, 100]])
def test_values_alone_show_no_scale(values: list[Any]) -> None:
    reading = Reading("rating", values)
    assert reading.rates and not any(reading.score(value) is not None for value in values)
    assert "--scale rating=WORST..BEST" in reading.problem


@pytest.mark.parametrize(
    ("name", "values", "scores"),
    [
        ("quality", ["Good", "bad", "Neutral"], [1, -1, 0]),
        ("quality", ["Thumbs-Up", "thumbs_down", "👍"], [1, -1, 1]),
        ("quality", ["poor", "fair", "Good", "excellent"], [None] * 4),
        ("is_correct", [True, False, "no"], [None] * 3),
        ("flag", ["yes", True], [None, None]),
        ("topic", ["sports"], [None]),
    ],
)
def test_words_and_names(name: str, values: list[Any], scores: list[float | None]) -> None:
    reading = Reading(name, values)
    assert [reading.score(value) for value in values] == scores
    assert bool(reading.problem) == (None in scores) and bool(reading.line) == any(s is not None for s in scores)


@pytest.mark.parametrize(
    "name", ["toxicity", "factualErrors", "confidence", "no_errors", "error-free", "not helpful"]
)
def test_a_scale_of_the_file_is_not_taken_where_more_may_not_be_better(name: str) -> None:
    assert Reading(name, [1, 5], Scale(1, 5)).score(5) is None
    assert Reading(name, [1, 5], parse_scale("5..1")).score(5) == -1


def test_a_declared_scale_leaves_out_and_names_what_is_not_on_it() -> None:
    reading = Reading("rating", [0, 5], Scale(1, 5))
    assert (reading.score(0), reading.score(5)) == (None, 1)
    assert reading.problem == "rating: not on the scale 1 to 5, so without a score: 0 (1 of 2)"


@pytest.mark.parametrize(
    ("values", "given", "main", "score"),
    [
        ({"rating": [4]}, ["1..5"], "", 0.5),
        ({"stars": [4]}, ["1..5"], "", 0.5),
        ({"stars": [4]}, ["stars=1..10"], "", -0.333333),
        ({"helpful": [2], "overall": [4]}, ["1..5"], "", 0.5),
        ({"helpful": [2], "harmless": [4]}, ["1..5"], "helpful", -0.5),
        ({"helpful": [2], "harmless": [4]}, ["1..5"], "", None),
        ({"toxicity": [5]}, ["5..1"], "", -1),
        ({"topic": ["sports"], "rating": [4]}, ["1..5"], "", 0.5),
    ],
)
def test_the_rating_that_is_the_verdict(
    values: dict[str, list[object]], given: list[str], main: str, score: float | None
) -> None:
    scales = Scales.of(values, parse_scales(given), {}, main)
    row = {name: found[0] for name, found in values.items()}
    assert scales.score(row) == score
    assert bool(scales.problems) == (score is None or "topic" in values)


def test_what_the_option_says_must_fit() -> None:
    with pytest.raises(UsageError, match="not on the scale 1 to 5, so without a score: 7"):
        Scales.of({"rating": [1, 7]}, parse_scales(["1..5"]), {})
    with pytest.raises(UsageError, match=r"no rating 'stars' .*ratings there: rating"):
        Scales.of({"rating": [1]}, parse_scales(["stars=1..5"]), {})
    with pytest.raises(UsageError, match="given twice"):
        parse_scales(["1..5", "1..7"])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((4, 4), ("4", 4), (" 4.50 ", 4.5), ("0,5", 0.5), (",5", 0.5), ("−1", -1), ("３", 3), ("1E-05", 1e-05)),
        *(("4,5 stars", 4.5), ("4 – good", 4), ("★★★☆☆", 3), ("1,000", None), ("1,000 points", None)),
        *((True, None), ("nan", None), (float("inf"), None), ("1e999", None), (None, None), ("4/5", None)),
    ],
)
def test_a_number_as_people_write_it(value: object, number: float | None) -> None:
    assert number_of(value) == number


def test_verdicts() -> None:
    assert [verdict(word) for word in ("GOOD", "yes", 1, "thumbs  up")] == [1, None, None, 1]
