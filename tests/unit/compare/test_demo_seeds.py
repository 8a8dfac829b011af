"""The demo as a preset of `compare`: which commands it has, in which order, and that a failure ends it."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from time import sleep

import pytest

from text2grad import demo
from text2grad.compare import seeds as running
from text2grad.compare.methods import REWARD_MODEL
from text2grad.compare.seeds import Seed, side_by_side
from text2grad.config import Config, find_config, load_config
from text2grad.errors import UserError


def of(preset: str, folder: Path) -> Config:
    return load_config([find_config(preset)], ["--run.folder", str(folder), "--run.threads", "3"])


@pytest.mark.parametrize(
    ("preset", "policies"),
    [
        ("demo", ["sft", "scalar_ppo", "text2grad"]),
        ("function_summaries", ["base", "sft", "scalar_ppo", "grpo", "text2grad"]),
    ],
)
def test_what_is_shared_runs_alone_and_first(preset: str, policies: list[str], tmp_path: Path) -> None:
    config = of(preset, tmp_path)
    works = demo.works_of_demo(config)
    assert demo.names_of(config) == policies
    assert list(works)[:3] == ["sft", "annotate", REWARD_MODEL]
    assert [name.removeprefix("evaluate ") for name in works if name.startswith("evaluate")] == policies
    for name, work in works.items():
        assert work.threads == (3 if name in list(works)[:3] else 1)
        assert name in list(works)[:3] or REWARD_MODEL in work.after
    assert list(works)[3] == "text2grad", "the longest starts first"


def test_only_a_run_that_is_paid_for_the_verdict_goes_without_words(tmp_path: Path) -> None:
    for preset, silent in (("demo", set()), ("function_summaries", {"grpo", "scalar_ppo"})):
        config = of(preset, tmp_path)
        seed = Seed(config, 0, tmp_path, demo.works_of_demo(config), live=True)
        runs = [name for name, work in seed.works.items() if work.trains_by_sampling]
        assert {n for n in runs if not seed.settings(seed.works[n]).words_are_written} == silent


@pytest.mark.parametrize("failing", ["grpo", "sft"])
def test_after_a_failure_no_more_runs_begin(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    failed = Event()

    def run(command: list[str], log: Path | None) -> tuple[int, float]:
        assert log is None, "a demo prints on the terminal"
        words = command[3:]
        name = words[words.index("--name") + 1] if "--name" in words else words[0]
        begun.append(name)
        assert ("--restart" in words) == (words[0] in {"sft", "train", "train-reward"})
        if name == failing:
            failed.set()
            return 1, 0.0
        if name == "text2grad":
            assert failed.wait(10)
            sleep(0.2)
        return 0, 1.0

    monkeypatch.setattr(running, "run_command", run)
    config = of("function_summaries", tmp_path)
    seed = Seed(config, 0, tmp_path, demo.works_of_demo(config), live=True)
    with pytest.raises(UserError, match=rf"{failing} failed \(see the error above\)"):
        side_by_side([seed], 2)
    shared = ["sft", "annotate", "train-reward"]
    assert begun == ["sft"] if failing == "sft" else sorted(begun) == sorted([*shared, "text2grad", "grpo"])
