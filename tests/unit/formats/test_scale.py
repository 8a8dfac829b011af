"""What a rating says: on a scale that is declared or that all values show, a score; else none, and a line."""

from __future__ import annotations

from typing import Any

import pytest

from text2grad.errors import UsageError
from text2grad.formats.scale import Reading, Scale, Scales, number_of, parse_scale, parse_scales, verdict


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


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0, 1, 1], "0 to 1"),
        ([1, 2, 3, 4, 5, 3.5], "1 to 5"),
        (["5", "4.0", "3", "2", "1"], "1 to 5"),
        ([-1, 1], "-1 to 1"),
        ([-0.5, 0.25], "-1 to 1"),
        (list(range(11)), "0 to 10"),
        (list(range(1, 11)), "1 to 10"),
        (list(range(1, 8)), "1 to 7"),
        ([0, 37, 100], "0 to 100"),
        ([1, 4, 5], None),
        ([1, 1], None),
        ([0, 0], None),
        ([0.5, 1], None),
        ([0, 0.5, 1], None),
        ([1, 2, 3], None),
        ([1, 2, 3, 4, 5, 6], None),
        ([-1, 2], None),
        ([1, 2, 3, 4, 4.3, 5], None),
        ([], None),
    ],
)
def test_values_alone_show_one_scale_or_none(values: list[Any], scale: str | None) -> None:
    reading = Reading("rating", values)
    assert (str(reading.scale) if reading.scale else None) == scale
    assert bool(reading.problem) == (scale is None and bool(values))
    if scale:
        assert f"ratings {scale} read as -1 to 1" in reading.line


@pytest.mark.parametrize(
    ("name", "values", "scores"),
    [
        ("quality", ["Good", "bad", "Neutral"], [1, -1, 0]),
        ("quality", ["Thumbs-Up", "thumbs_down", "👍"], [1, -1, 1]),
        ("quality", ["poor", "fair", "Good", "excellent"], [-1, -0.333333, 0.333333, 1]),
        ("is_correct", [True, False, "no"], [1, -1, -1]),
        ("has_error", ["yes", "no"], [-1, 1]),
        ("flag", ["yes", True], [None, None]),
        ("topic", ["sports"], [None]),
        ("isCorrect", ["yes", "no"], [1, -1]),
        ("hasErrors", ["yes", "no"], [-1, 1]),
        ("confident", ["yes"], [None]),
        ("no_errors", ["yes"], [None]),
        ("error-free", ["yes"], [None]),
        ("not helpful", ["no"], [None]),
        ("toxicity", [1, 2, 3, 4, 5], [None] * 5),
        ("factualErrors", [1, 2, 3, 4, 5], [None] * 5),
        ("confidence", [1, 2, 3, 4, 5], [None] * 5),
        ("harmlessness", [1, 2, 3, 4, 5], [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_words_and_names(name: str, values: list[Any], scores: list[float | None]) -> None:
    reading = Reading(name, values)
    assert [reading.score(value) for value in values] == scores
    assert bool(reading.problem) == (None in scores) and bool(reading.line) == any(s is not None for s in scores)


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
