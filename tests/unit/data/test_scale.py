"""Ratings: on a declared scale a score; without one none, and a line that names the cure."""

from __future__ import annotations

from typing import Any

import pytest

from text2grad.data.scale import RatingReader, Scale, Scales, parse_number, parse_scale, parse_scales
from text2grad.errors import UsageError

SCALES: dict[str, dict[Any, float | None]] = {
    "1..5": {1: -1, 3: 0, 4: 0.5, 5: 1, "4.0": 0.5, 3.5: 0.25, "4/5": 0.5, "4/10": None, 0: None, "many": None},
    "0..1": {0: -1, 1: 1, 0.5: 0, -1: None},
    "-1..1": {-1: -1, 0: 0, 0.25: 0.25, 1: 1},
    "6..1": {6: -1, 1: 1, 3.5: 0},
    "0 .. 100": {0: -1, 80: 0.6, 100: 1},
    "poor, fair ,good": {"Poor": -1, "fair": 0, " GOOD ": 1, "meh": None, 1: None},
    "F,D,C,B,A": {"f": -1, "C": 0, "A": 1, "E": None},
}


def test_a_scale_from_its_worst_to_its_best() -> None:
    for text, scores in SCALES.items():
        scale = parse_scale(text)
        assert {value: scale.score(value) for value in scores} == scores, text
    for text in ("", "5", "1..1", "1..many", "1-5", "good", "a,,b", "a,a", "1..2..3", "nan..5"):
        with pytest.raises(UsageError, match=r"is not a scale .*--scale 1\.\.5"):
            parse_scale(text)


WITHOUT_A_SCALE: list[tuple[str, list[Any], list[float | None]]] = [
    ("rating", [1, 2, 3, "4.0", 5], [None] * 5),
    ("rating", [-0.5, 0.25], [None] * 2),
    ("quality", ["Good", "bad", "Neutral"], [1, -1, 0]),
    ("quality", ["Thumbs-Up", "thumbs_down", "thumbs  up", "👍"], [1, -1, 1, 1]),
    ("thumbs", ["down", "Up"], [-1, 1]),
    ("quality", ["down", "Up"], [None] * 2),
    ("quality", ["poor", "fair", "Good", "excellent"], [None] * 4),
    ("quality", ["4/5", "80 %", "9 of 10"], [0.6, 0.6, 0.8]),
    ("is_correct", [True, False, "no", "yes"], [None] * 4),
    ("topic", ["sports"], [None]),
    ("toxicity", ["4/5"], [None]),
]


def test_values_without_a_scale() -> None:
    for name, values, scores in WITHOUT_A_SCALE:
        reading = RatingReader(name, values)
        assert [reading.score(value) for value in values] == scores
        assert bool(reading.problem) == ("--scale " in reading.problem) == (None in scores)
        assert bool(reading.line) == any(score is not None for score in scores)


def test_a_scale_of_the_file_is_not_taken_where_more_may_not_be_better() -> None:
    for name in ("toxicity", "factualErrors", "confidence", "no_errors", "error-free", "not helpful"):
        assert RatingReader(name, [1, 5], Scale(1, 5)).score(5) is None
        assert RatingReader(name, [1, 5], parse_scale("5..1")).score(5) == -1


MAIN: list[tuple[dict[str, list[object]], list[str], str, float | None]] = [
    ({"stars": [4]}, ["1..5"], "", 0.5),
    ({"stars": [4]}, ["stars=1..10"], "", -0.333333),
    ({"helpful": [2], "overall": [4]}, ["1..5"], "", 0.5),
    ({"helpful": [2], "harmless": [4]}, ["1..5"], "helpful", -0.5),
    ({"helpful": [2], "harmless": [4]}, ["1..5"], "", None),
    ({"toxicity": [5]}, ["5..1"], "", -1),
    ({"topic": ["sports"], "rating": [4]}, ["1..5"], "", 0.5),
]


def test_the_rating_that_is_the_verdict() -> None:
    for values, given, main, score in MAIN:
        scales = Scales.of(values, parse_scales(given), {}, main)
        assert scales.score({name: found[0] for name, found in values.items()}) == score
        assert bool(scales.problems) == (score is None or "topic" in values)


def test_what_is_not_on_the_scale_is_left_out_and_named_or_refused() -> None:
    reading = RatingReader("rating", [0, 5], Scale(1, 5))
    assert (reading.score(0), reading.score(5)) == (None, 1)
    assert reading.problem == "rating: not on the scale 1 to 5, so without a score: 0 (1 of 2)"
    for values, given, words in (
        ({"rating": [1, 7]}, ["1..5"], "not on the scale 1 to 5, .*: 7"),
        ({"rating": [1]}, ["stars=1..5"], r"no rating 'stars' .*its ratings: rating"),
        ({"rating": [1]}, ["1..5", "1..7"], "given twice"),
    ):
        with pytest.raises(UsageError, match=words):
            Scales.of(values, parse_scales(given), {})


NUMBERS: tuple[tuple[object, float | None], ...] = (
    *((4, 4), ("4", 4), (" 4.50 ", 4.5), ("0,5", 0.5), (",5", 0.5), ("−1", -1), ("３", 3), ("1E-05", 1e-05)),
    *(("4,5 stars", 4.5), ("4 – good", 4), ("★★★☆☆", 3), ("1,000", None), ("1,000 points", None)),
    *((True, None), ("nan", None), (float("inf"), None), ("1e999", None), (None, None), ("4/5", None)),
)


def test_a_number_as_people_write_it() -> None:
    assert [(value, parse_number(value)) for value, _ in NUMBERS] == list(NUMBERS)
