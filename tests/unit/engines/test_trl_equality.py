"""TRL's trainer trains what the local loop trains: the same advantages, weights, metrics and
strips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="pip install 'text2grad[trl]'")

from both_engines import FailsSometimes, differences, left_by

from text2grad.policy.settings import LoraSettings
from text2grad.train.ppo_settings import PPOSettings
from tiny_runs import tiny_model

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
BASE: dict[str, Any] = {"steps": 2, "rollouts": 8, "epochs": 1, "lr": 0.5, "micro_batch_size": 4, "max_failed": 1}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "returns": ({}, {}),
    "epochs": ({"epochs": 3, "clip_high": 0.3}, {}),
    "mini_batches": ({"mini_batches": 2, "epochs": 2}, {}),
    "group": ({"advantage": "group", "samples_per_prompt": 4, "kl": "k3"}, {}),
    "equal_groups": ({"samples_per_prompt": 4, "drop_equal_groups": True, "lost_groups": "shared"}, {}),
    "failed": ({"mask_truncated": True, "kl_target": 0.01}, {"critic": FailsSometimes()}),
    "adapters": ({"epochs": 2}, {"lora": LoraSettings(r=2)}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("case", CASES)
def test_it_trains_what_the_local_loop_trains(case: str, model: Path, tmp_path: Path) -> None:
    changes, more = CASES[case]
    settings = PPOSettings(**{**BASE, **changes})
    local, trl = (left_by(engine, model, tmp_path / engine, settings, **more) for engine in ("local", "trl"))
    advantages, weights = differences(local, trl)
    assert advantages < 1e-5 and weights < 1e-5
    for mine, others in zip(local.metrics, trl.metrics, strict=True):
        assert mine.keys() - others.keys() <= {"seconds_sample", "seconds_critique_hidden"}
        same = {name for name in mine.keys() & others.keys() if not name.startswith("seconds")}
        assert {name: mine[name] for name in same} == pytest.approx({name: others[name] for name in same}, abs=2e-4)
    assert [strip["id"] for strip in local.strips] == [strip["id"] for strip in trl.strips]
    for mine, others in zip(local.strips, trl.strips, strict=True):
        assert mine["ids"] == others["ids"] and mine.keys() == others.keys()
        for name in ("advantage", "delta", "kl", "ratio"):
            assert mine.get(name) == pytest.approx(others.get(name), abs=2e-4)
