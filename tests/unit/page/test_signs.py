"""Signs that a run goes wrong: at their thresholds, never where a figure is unknown, never on noise
or learning."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from text2grad.page import signs


def test_each_sign_begins_at_its_threshold() -> None:
    people = [{"accuracy": accuracy, "interval": [0.5, 0.7], "count": 20} for accuracy in (0.749, 0.75)]
    assert [bool(list(signs.human_warnings({"spans": marks}))) for marks in people] == [True, False]
    assert list(signs.human_warnings({})) == []
    warned = [bool(list(signs.quote_warnings(share, "in training"))) for share in (None, 0.0, 0.05, 0.0501)]
    assert warned == [False, False, False, True]
    warned = [bool(list(signs.scalar_warnings("a", "b", 0.1, (low, 0.2)))) for low in (0.01, 0.0, -0.3)]
    assert warned == [True, False, False]


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


def test_rewards_that_oscillate() -> None:
    waves = [(period, 100) for period in (2, 3, 4, 8, 16, 25)]
    waves += [(period, 40) for period in (2, 4, 8, 10)] + [(40, 400), (100, 400)]
    squares = [(length, seed) for length in (4, 10) for seed in (1, 2)]
    assert [case for case in waves if not signs.oscillates(wave(*case))] == []
    assert [(length, seed) for length, seed in squares if not signs.oscillates(square(length, 120, seed))] == []
    assert signs.oscillates(wave(20, 200, noise=0.6))
    assert signs.oscillates([1.0, -1.0] * 10) and not signs.oscillates([1.0, -1.0] * 9)  # 20 steps are enough


@pytest.mark.parametrize("count", [20, 30, 100, 400])
def test_noise_and_learning_do_not_oscillate(count: int) -> None:
    for seed in range(20):
        noise = wave(0, count, seed=seed)
        shapes = {
            "noise": noise,
            "rise": [3 * n / count + value for n, value in enumerate(noise)],
            "fall": [-3 * n / count + value for n, value in enumerate(noise)],
            "rise and fall": [5 - abs(10 * n / count - 5) + 0.5 * value for n, value in enumerate(noise)],
            "plateau": [4 - 4 * math.exp(-6 * n / count) + 0.3 * value for n, value in enumerate(noise)],
            "constant": [0.5] * count,
            "wobbly rise": wave(count / 5, count, rise=12, seed=seed),
        }
        assert [name for name, values in shapes.items() if signs.oscillates(values)] == [], seed
    assert not signs.oscillates([]) and not signs.oscillates([math.pi])


RECORDED = (
    "13.3 15.09 15.02 15.94 16.02 16.72 19.12 19.48 18.12 18.31 19.42 19.64 19.58 19.47 19.47 19.59"
    " 19.92 19.19 20.23 20.69 18.98 19.75 20.7 19.27 20.77 18.92 19.88 20.06 20.55 20.05",
    "-0.0625 0.0625 -0.0625 -0.125 0.09375 0.2188 0.3438 0.25 0.1719 0.625 0.5312 0.5938 0.125 0.3281"
    " 0.4531 0.4844 0.4062 0.4688 0.3438 0.7188 0.5625 0.6875 0.6875 0.4688 0.7188 0.5625 0.7188 0.6875 0.75"
    " 0.6562",
)
"""`delta_sum` of every step of the demo (2026-11-25): text2grad, scalar PPO."""


def test_the_warnings_of_a_run_are_read_off_its_metrics() -> None:
    for words in RECORDED:
        values = [float(word) for word in words.split()]
        assert len(values) == 30
        assert signs.metric_warnings([{"delta_sum": value, "unmatched_share": 0.0} for value in values]) == []
    rows = [{"step": n, "delta_sum": value, "unmatched_share": 0.1} for n, value in enumerate(wave(4, 40))]
    assert len(signs.metric_warnings(rows)) == 2
    assert signs.metric_warnings([]) == signs.metric_warnings([{"step": 0, "loss": 1.0}]) == []


def scores(values: list[float], kl: float = 0.01) -> list[dict[str, float]]:
    return [{"score": value, "kl_token": kl} for value in values]


WAVERING = [0.3 if n % 2 else -0.3 for n in range(20)]
EFFECTS: list[tuple[list[dict[str, Any]], str]] = [
    (scores([-0.5 + 0.05 * n for n in range(20)]), "+0.43: better."),
    (scores([0.5 - 0.05 * n for n in range(20)]), "worse."),
    (scores([*WAVERING, -0.2, 0.5]), "within its noise: try more steps"),
    (scores([-0.22, -0.9, -0.1, -0.86]), "from -0.22 to -0.86, within its noise."),
    (scores([0.25]), "within its noise"),
    (scores([-1.39e-17, 0.2]), "from +0.00 to +0.20"),
    ([{"score": 0.25}, {"kl_token": 0.01}, {"score": 0.5}], "from +0.25 to +0.50"),
    ([{"delta_sum": 0.1 * n} for n in range(20)], "The reward of an answer went from +0.05 to +1.85"),
    ([{"delta_sum": 0.1 * n, "score": 0.0} for n in range(20)], "(all scores are equal)"),
    ([{"score": 0.5, "delta_sum": 1.5}] * 20, "Every answer had the same reward"),
    ([{"loss": 2.0}, {"loss": 1.0}], "The loss went from 2 to 1."),
    ([{"loss": 2.0}], "The loss before the only update was 2."),
    ([{"loss": 1.0}, {"loss": 1.0}], "nothing was learned"),
    ([{"kl_token": -0.004}] * 3, "less than 0.001 nats"),
    ([{"kl_token": 0.5}], "0.500 nats per token from its start."),
    ([{"kl_token": 1.5}], "read its answers"),
]


def test_the_effect_of_a_training() -> None:
    said = [signs.describe_training(rows)[0] for rows, _ in EFFECTS]
    assert [(part, line) for (_, part), line in zip(EFFECTS, said, strict=True) if part not in line] == []
    assert signs.describe_training([]) == []


def test_the_verdict_on_a_reward_model() -> None:
    figures = {
        **{"f1": 0.713, "f1_low": 0.6, "f1_high": 0.8, "heldout": 9, "random_f1": 0.21, "neutral_f1": 0.0},
        **{"fresh": 16, "fresh_paid": 0.5, "spoiled": 15, "spoiled_paid": 0.8},
        **{"corrected": 16, "corrected_faulted": 15 / 16},
    }
    verdict: dict[str, Any] = {"fit": False, "reasons": ["it praises"], "cautions": ["few"], "figures": figures}
    lines = "\n".join(signs.describe_gate(verdict))
    for part in ("0.71 (0.60 to 0.80)", "50 % of 16", "80 % of 15", "15 of 16", "Not fit", "- it praises", "few"):
        assert part in lines, part
    unmeasured = {**figures, "f1": None, "corrected": 0}
    fit = signs.describe_gate({**verdict, "fit": True, "cautions": [], "figures": unmeasured})
    assert fit[1:] == ["Fit to train against."]
    rates = dict.fromkeys(("good_recall", "good_precision", "poor_recall", "poor_precision", "poor_f1"), 0.5)
    for wrong, meaning in ((0.05, "few enough"), (0.3, "too many")):
        assert meaning in signs.describe_reward_model({**rates, "wrong_sign_rate": wrong})[1]
    assert signs.describe_reward_model({"records": 3}) == []
