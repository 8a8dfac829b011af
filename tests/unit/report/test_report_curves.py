"""Charts as geometry, and the results table they stand beside."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from synthetic_run import summary
from text2grad.report.curves import (
    Line,
    chart,
    mean_line,
    number,
    points_of,
    spread_out,
    style_of,
    thinned,
    ticks,
)
from text2grad.report.tables import results, reward_model_grid, reward_model_rates
from text2grad.report.viewer import SUPERVISED, _against_seconds, arranged

NAN = float("nan")


def test_a_straight_curve_runs_from_corner_to_corner() -> None:
    drawn = chart("kl", [Line("text2grad", ((0, 0.0), (10, 1.0)))], ["text2grad"])
    assert drawn is not None
    assert drawn.paths[0].data == "M46 157.6L276 18.4"  # 6 % of the height is left free at both ends
    assert [(tick.at, tick.text) for tick in drawn.x_ticks] == [
        (46, "0"),
        (92, "2"),
        (138, "4"),
        (184, "6"),
        (230, "8"),
        (276, "10"),
    ]
    assert [tick.text for tick in drawn.y_ticks] == ["0", "0.5", "1"]
    assert drawn.labels == ()  # one curve needs no name
    assert drawn.last == "step 10: text2grad 1"


def test_a_gap_breaks_the_line_and_a_lone_point_is_a_dot() -> None:
    values = (1.0, 2.0, NAN, 3.0, NAN, 1.0, 1.0)
    drawn = chart("kl", [Line("text2grad", tuple(enumerate(values)))], ["text2grad"])
    assert drawn is not None and drawn.not_finite == 2
    assert drawn.paths[0].data.count("M") == 2 and len(drawn.paths[0].dots) == 1


def test_a_metric_without_a_finite_value_has_no_chart() -> None:
    assert chart("kl", [Line("text2grad", ((0, NAN),))], ["text2grad"]) is None
    assert chart("kl", [], []) is None


def test_one_point_and_a_constant_can_be_drawn() -> None:
    for points in (((0, 0.0),), ((3, 0.0),), ((0, 5.0), (1, 5.0)), ((0, 1e-9), (1, 1e-9))):
        drawn = chart("kl", [Line("a", points)], ["a"])
        assert drawn is not None and drawn.x_ticks and drawn.y_ticks


def test_curves_that_end_apart_say_where_each_ends() -> None:
    lines = [Line("a", ((0, 1.0), (9, 2.0))), Line("b", ((0, 1.0), (4, 3.0)))]
    drawn = chart("kl", lines, ["a", "b"])
    assert drawn is not None and drawn.last == "at the end: a 2 (step 9) · b 3 (step 4)"


def test_labels_of_curves_that_end_together_do_not_overlap() -> None:
    names = ["a", "b", "c"]
    drawn = chart("kl", [Line(name, ((0, 0.0), (1, 1.0 + i / 1000))) for i, name in enumerate(names)], names)
    assert drawn is not None
    heights = sorted(label.y for label in drawn.labels)
    assert all(high - low >= 13 for low, high in pairwise(heights))
    assert spread_out([5.0, 5.0, 90.0], 10, 0, 100) == [5.0, 15.0, 90.0]
    assert spread_out([99.0, 99.0], 10, 0, 100) == [90.0, 100.0]


def test_hover_holds_the_drawn_values() -> None:
    drawn = chart("kl", [Line("a", ((0, 0.123456), (1, 2.0)))], ["a"])
    assert drawn is not None
    assert json.loads(drawn.hover)["curves"] == [{"name": "a", "steps": [0, 1], "values": [0.1235, 2.0]}]


def test_held_out_curves_against_seconds_leave_out_those_of_measuring() -> None:
    def rows(pace: float) -> list[dict[str, float]]:
        step = {"seconds_generate": pace, "seconds_update": pace, "seconds_heldout": 99.0, "kl": 1.0}
        return [
            {"step": 0, **step},
            {"step": 1, **step, "heldout_sampled_pass": 0.5},
            {"step": 2, **step, "heldout_sampled_pass": 0.75},
        ]

    ((drawn, about),) = _against_seconds({"text2grad": [rows(1.0), rows(2.0)], "dpo": [[{"step": 0, "kl": 1.0}]]})
    assert drawn.metric == "heldout_sampled_pass" and "seconds" in about.what
    hover = json.loads(drawn.hover)
    assert hover["unit"] == "second"
    assert hover["curves"] == [{"name": "text2grad", "steps": [6.0, 9.0], "values": [0.5, 0.75]}]
    assert [path.thin for path in drawn.paths] == [True, True, False]
    assert drawn.last == "second 9: text2grad 0.75"
    assert not list(_against_seconds({"text2grad": [[{"step": 0, "kl": 1.0}]]}))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-0.3, 0.31, [-0.2, 0, 0.2]), (0, 39, [0, 10, 20, 30])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


def test_a_thinned_curve_keeps_its_ends_and_its_spike() -> None:
    points = [(float(step), 9.0 if step == 5_432 else 0.1 * (step % 2)) for step in range(10_000)]
    kept = thinned(points, 400)
    assert len(kept) <= 402 and kept == sorted(kept)
    assert {points[0], points[-1], (5432.0, 9.0)} <= set(kept)


def test_the_mean_is_over_steps_all_seeds_reached() -> None:
    lines = [Line("a", ((0, 1.0), (1, 2.0), (2, 9.0)), thin=True), Line("a", ((0, 3.0), (1, 4.0)), thin=True)]
    assert mean_line("a", lines) == Line("a", ((0, 2.0), (1, 3.0)))


def test_rows_without_the_metric_are_passed_over() -> None:
    rows = [{"step": 0, "kl": 1.0}, {"step": 1}, {"step": 2, "kl": None}, {"step": 3, "kl": 2}]
    assert points_of(rows, "kl") == ((0.0, 1.0), (3.0, 2.0))


def test_a_method_keeps_its_style() -> None:
    assert style_of("text2grad", ["scalar_ppo", "text2grad"]) == "m0"
    assert [style_of(name, ["x", "text2grad", "y"]) for name in ("x", "y")] == ["m2", "m3"]


def test_the_main_metrics_come_first_in_a_fixed_order() -> None:
    first, rest = arranged(["entropy", "clip_fraction", "kl", "score", "heldout_pass@1", "kl_coefficient"])
    assert first == ["heldout_pass@1", "score", "kl", "entropy"]
    assert rest == ["clip_fraction", "kl_coefficient"]
    assert arranged(["lr", "loss"], SUPERVISED)[0] == ["loss"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.5, "−0.5"),
        (0.12345, "0.123"),
        (12345.6, "12,346"),
        (2e-5, "2.0e−5"),
        (-1.39e-17, "0"),
        (None, "–"),
        (NAN, "–"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_the_spread_is_the_standard_deviation_over_seeds() -> None:
    rows = [{"name": "SFT", "greedy": 0.4, "sampled": 0.3, "seeds": [{"sampled": x} for x in (0.2, 0.3, 0.4)]}]
    table = results({"metric": "pass@1", "rows": rows})
    assert [cell.text for cell in table.cells[0]] == ["0.400", "0.300 ± 0.100"]
    assert not results({"rows": [{**rows[0], "seeds": [{"sampled": 0.3}]}]}).has_spread
    each = [{"greedy": greedy, "sampled": 0.3} for greedy in (0.3, 0.5)]
    merged = results({"rows": [{**rows[0], "seeds": each}]})
    assert [cell.text for cell in merged.cells[0]] == ["0.400 ± 0.141", "0.300 ± 0.000"]
    assert results({}).names == []


def test_the_reward_model_has_a_grid_and_rates() -> None:
    figures = summary([0.0])["reward_model"]
    assert reward_model_grid(figures) == [
        ("good tokens", ["0.810", "0.770"]),
        ("poor tokens", ["0.690", "0.720"]),
    ]
    assert [(name, value) for name, value, _ in reward_model_rates(figures)] == [
        ("unmatched", "0.012"),
        ("unreadable", "0.004"),
    ]
    assert reward_model_grid({}) == []
