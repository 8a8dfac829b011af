"""Signs that a run goes wrong: at their thresholds, never where a figure is unknown, never on noise or learning."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest

from text2grad.compare.figures import signs_of
from text2grad.report import signs
from text2grad.report.viewer import build_report


@pytest.mark.parametrize(
    ("accuracy", "said"), [(0.0, True), (0.6, True), (0.749, True), (0.75, False), (0.94, False), (1.0, False)]
)
@pytest.mark.parametrize("aspect", ["critique", "spans"])
def test_people_who_find_fewer_than_three_quarters_correct(accuracy: float, aspect: str, said: bool) -> None:
    lines = list(signs.of_marks({aspect: {"accuracy": accuracy, "interval": [0.5, 0.7], "critiques": 20}}))
    assert len(lines) == said
    assert all("below 75%" in line and "50% to 70%" in line and "\n" not in line for line in lines)


def test_where_nobody_marked_nothing_is_said() -> None:
    assert list(signs.of_marks({})) == []


@pytest.mark.parametrize(("share", "said"), [(None, 0), (0.0, 0), (0.05, 0), (0.0501, 1), (0.4, 1)])
def test_quotes_that_are_not_in_the_answer(share: float | None, said: int) -> None:
    lines = list(signs.of_quotes(share, "in training"))
    assert len(lines) == said and all("above 5%" in line for line in lines)


@pytest.mark.parametrize(
    ("interval", "said"), [((0.01, 0.2), 1), ((0.0, 0.2), 0), ((-0.1, 0.3), 0), ((-0.3, -0.1), 0)]
)
def test_below_scalar_ppo_beyond_chance(interval: tuple[float, float], said: int) -> None:
    lines = list(signs.of_scalar("text2grad", "scalar PPO", 0.1, interval))
    assert len(lines) == said and all("text2grad is below scalar PPO by 0.100" in line for line in lines)


def wave(period: float, count: int, noise: float = 0.2, rise: float = 0.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [
        math.cos(2 * math.pi * n / period) + rise * n / count + draw.gauss(0, noise) if period else draw.gauss(0, 1)
        for n in range(count)
    ]


def square(length: int, count: int, seed: int = 0) -> list[float]:
    """Up for some steps, down for some, with runs of unequal length."""
    draw, values = random.Random(seed), []
    while len(values) < count:
        level = -values[-1] / abs(values[-1]) if values else 1.0
        values += [level * draw.uniform(0.8, 1.2) for _ in range(draw.randint(length, 2 * length))]
    return values[:count]


@pytest.mark.parametrize(
    "values",
    [
        *(wave(period, 100) for period in (2, 3, 4, 8, 16, 25)),
        *(wave(period, 40) for period in (2, 4, 8, 10)),
        *(wave(period, 400) for period in (40, 100)),
        *(square(length, 120, seed) for length in (4, 10) for seed in (1, 2)),
        wave(20, 200, noise=0.6),
    ],
)
def test_rewards_that_swing(values: list[float]) -> None:
    assert signs.oscillates(values)
    (line,) = signs.of_rewards(values)
    assert "gets nowhere" in line and "\n" not in line


@pytest.mark.parametrize("count", [20, 30, 100, 400])
@pytest.mark.parametrize("shape", ["noise", "rise", "fall", "rise and fall", "plateau", "constant", "wobbly rise"])
def test_noise_and_learning_are_no_swings(shape: str, count: int) -> None:
    for seed in range(20):
        noise = wave(0, count, seed=seed)
        values = {
            "noise": noise,
            "rise": [3 * n / count + each for n, each in enumerate(noise)],
            "fall": [-3 * n / count + each for n, each in enumerate(noise)],
            "rise and fall": [5 - abs(10 * n / count - 5) + 0.5 * each for n, each in enumerate(noise)],
            "plateau": [4 - 4 * math.exp(-6 * n / count) + 0.3 * each for n, each in enumerate(noise)],
            "constant": [0.5] * count,
            "wobbly rise": wave(count / 5, count, rise=12, seed=seed),
        }[shape]
        assert not signs.oscillates(values), seed


RECORDED = {
    "text2grad": "13.3 15.09 15.02 15.94 16.02 16.72 19.12 19.48 18.12 18.31 19.42 19.64 19.58 19.47 19.47 19.59"
    " 19.92 19.19 20.23 20.69 18.98 19.75 20.7 19.27 20.77 18.92 19.88 20.06 20.55 20.05",
    "scalar PPO": "-0.0625 0.0625 -0.0625 -0.125 0.09375 0.2188 0.3438 0.25 0.1719 0.625 0.5312 0.5938 0.125 0.3281"
    " 0.4531 0.4844 0.4062 0.4688 0.3438 0.7188 0.5625 0.6875 0.6875 0.4688 0.7188 0.5625 0.7188 0.6875 0.75"
    " 0.6562",
}
"""`delta_sum` of every step of the demo (2026-11-25)."""


@pytest.mark.parametrize("name", RECORDED)
def test_the_demo_raises_no_false_alarm(name: str) -> None:
    values = [float(word) for word in RECORDED[name].split()]
    assert (
        len(values) == 30
        and signs.of_metrics([{"delta_sum": value, "unmatched_share": 0.0} for value in values]) == []
    )


def test_few_steps_say_nothing() -> None:
    assert not signs.oscillates([1.0, -1.0] * 9) and signs.oscillates([1.0, -1.0] * 10)
    assert not signs.oscillates([]) and not signs.oscillates([math.pi])


def test_the_signs_of_a_run_are_read_off_its_metrics(tmp_path: Path) -> None:
    rows = [{"step": n, "delta_sum": value, "unmatched_share": 0.1} for n, value in enumerate(wave(4, 40))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    first, second = signs.of_run(tmp_path)
    assert first.startswith("10.0% of the quotes in training") and "swings between" in second
    assert signs.of_run(tmp_path / "nothing") == []
    assert signs.of_metrics([{"step": 0, "loss": 1.0}]) == []


def test_the_page_of_a_run_begins_with_its_signs_and_has_seconds_a_step(tmp_path: Path) -> None:
    run, place = tmp_path / "ppo" / "mine", tmp_path / "evaluation" / "demo"
    run.mkdir(parents=True)
    place.mkdir(parents=True)
    seconds = {f"seconds_{phase}": 0.5 for phase in ("generate", "critique", "score", "update")}
    rows = [{"step": n, "delta_sum": value, **seconds} for n, value in enumerate(wave(4, 40))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    figures = {"greedy_pass": 0.5, "signs": ["mine is below scalar by <b>"]}
    (place / "mine.json").write_text(json.dumps(figures), encoding="utf-8")
    (tmp_path / "evaluation" / "reward_model.json").write_text('{"unmatched": 0.2}', encoding="utf-8")
    page = build_report(tmp_path).read_text(encoding="utf-8")
    warnings = re.findall(r'class="warning">▲ (.*?)</p>', page)
    assert [line.split(":")[0] for line in warnings[1:]] == ["mine", "mine is below scalar by &lt;b&gt;"]
    assert warnings[0].startswith("20.0% of the quotes of the reward model")
    assert "seconds a step" in page and ">2.00<" in page and "[&#39;mine" not in page


def test_compare_names_text2grad_below_scalar_ppo() -> None:
    def row(low: float, high: float) -> dict[str, object]:
        return {"difference": (low + high) / 2, "difference_interval": [low, high]}

    rows = {"sft": row(0.1, 0.2), "scalar": row(0.1, 0.3), "scalar_rm": row(-0.1, 0.3), "text2grad": {}}
    (line,) = signs_of(rows)
    assert line.startswith("text2grad is below scalar PPO by 0.200 (0.100 to 0.300)")
    assert list(signs_of({"scalar": {}})) == []
