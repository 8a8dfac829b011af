"""The geometry of charts."""

from __future__ import annotations

import json
from itertools import pairwise

from text2grad.page.curves import (
    Line,
    chart,
    metric_points,
    pick_style,
    spread_out,
    thinned,
    ticks,
)
from text2grad.page.render import number

NAN = float("nan")


def test_a_straight_curve_runs_from_corner_to_corner() -> None:
    drawn = chart("kl", [Line("text2grad", ((0, 0.0), (10, 1.0)))], ["text2grad"])
    assert drawn is not None
    assert drawn.paths[0].data == "M46 157.6L276 18.4"  # 6 % of the height is left free at both ends
    assert [tick.at for tick in drawn.x_ticks] == [46, 92, 138, 184, 230, 276]
    assert [tick.text for tick in drawn.x_ticks] == ["0", "2", "4", "6", "8", "10"]
    assert [tick.text for tick in drawn.y_ticks] == ["0", "0.5", "1"]
    assert drawn.labels == ()  # one curve needs no name
    assert drawn.last == "step 10: text2grad 1"


def test_a_gap_breaks_the_line_and_a_lone_point_is_a_dot() -> None:
    values = (1.0, 2.0, NAN, 3.0, NAN, 1.0, 1.0)
    drawn = chart("kl", [Line("text2grad", tuple(enumerate(values)))], ["text2grad"])
    assert drawn is not None and drawn.not_finite == 2
    assert drawn.paths[0].data.count("M") == 2 and len(drawn.paths[0].dots) == 1


def test_any_finite_point_can_be_drawn() -> None:
    for points in (((0, 0.0),), ((3, 0.0),), ((0, 5.0), (1, 5.0)), ((0, 1e-9), (1, 1e-9))):
        drawn = chart("kl", [Line("a", points)], ["a"])
        assert drawn is not None and drawn.x_ticks and drawn.y_ticks
    assert chart("kl", [Line("text2grad", ((0, NAN),))], ["text2grad"]) is None and chart("kl", [], []) is None
    lines = [Line("a", ((0, 0.123456), (9, 2.0))), Line("b", ((0, 1.0), (4, 3.0)))]
    drawn = chart("kl", lines, ["a", "b"])
    assert drawn is not None and drawn.last == "at the end: a 2 (step 9) · b 3 (step 4)"
    curve = {"name": "a", "steps": [0, 9], "values": [0.1235, 2.0], "x": [46, 276]}
    assert json.loads(drawn.hover)["curves"][0] == curve


def test_runs_of_different_lengths_each_fill_the_chart() -> None:
    lines = [Line("short", ((0, 0.0), (8, 1.0))), Line("long", ((0, 0.0), (64, 1.0)))]
    drawn = chart("kl", lines, ["short", "long"], {"short": 8, "long": 64})
    assert drawn is not None
    assert [path.data for path in drawn.paths] == ["M46 157.6L276 18.4"] * 2
    assert [tick.text for tick in drawn.x_ticks][-1] == "100 %"


def test_labels_of_curves_that_end_together_do_not_overlap() -> None:
    names = ["a", "b", "c"]
    drawn = chart("kl", [Line(name, ((0, 0.0), (1, 1.0 + i / 1000))) for i, name in enumerate(names)], names)
    assert drawn is not None
    heights = sorted(label.y for label in drawn.labels)
    assert all(high - low >= 13 for low, high in pairwise(heights))
    assert spread_out([5.0, 5.0, 90.0], 10, 0, 100) == [5.0, 15.0, 90.0]
    assert spread_out([99.0, 99.0], 10, 0, 100) == [90.0, 100.0]


def test_ticks_are_round() -> None:
    cases = {(0, 1): [0, 0.2, 0.4, 0.6, 0.8, 1], (-0.3, 0.31): [-0.2, 0, 0.2], (0, 39): [0, 10, 20, 30]}
    assert {ends: ticks(*ends) for ends in cases} == cases


def test_a_thinned_curve_keeps_its_ends_and_its_spike() -> None:
    points = [(float(step), 9.0 if step == 5_432 else 0.1 * (step % 2)) for step in range(10_000)]
    kept = thinned(points)
    assert len(kept) <= 402 and kept == sorted(kept)
    assert {points[0], points[-1], (5432.0, 9.0)} <= set(kept)


def test_numbers_are_short_and_absent_ones_are_passed_over() -> None:
    values = {0.0: "0", -0.5: "−0.5", 0.12345: "0.123", 12345.6: "12,346", 2e-5: "2.0e−5", -1.39e-17: "0"}
    assert {value: number(value) for value in values} == values
    assert number(None) == number(NAN) == "–"
    rows = [{"step": 0, "kl": 1.0}, {"step": 1}, {"step": 2, "kl": None}, {"step": 3, "kl": 2}]
    assert metric_points(rows, "kl") == ((0.0, 1.0), (3.0, 2.0))
    assert [pick_style(name, ["x", "text2grad", "y"]) for name in ("text2grad", "x", "y")] == ["m0", "m2", "m3"]
