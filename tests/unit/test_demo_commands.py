"""The demo's commands and their order; a failure ends it."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from time import sleep

import pytest

from text2grad import demo
from text2grad.config import Config, find_config, load_config
from text2grad.errors import UserError


def config_of(preset: str, folder: Path) -> Config:
    return load_config([find_config(preset)], ["--run.folder", str(folder), "--run.threads", "3"])


@pytest.mark.parametrize(
    ("preset", "policies", "silent"),
    [
        ("demo", ["sft", "scalar_ppo", "text2grad"], set()),
        (
            "function_summaries",
            ["base", "sft", "scalar_ppo", "grpo", "text2grad"],
            {"grpo", "scalar_ppo"},
        ),
    ],
)
def test_the_commands_of_a_demo(preset: str, policies: list[str], silent: set[str], tmp_path: Path) -> None:
    config = config_of(preset, tmp_path)
    chains = demo.training(config)
    commands = [command for chain in chains for command in chain]
    assert demo.policy_names(config) == policies
    assert [command.name for command in demo.preparation(config)] == ["sft", "annotate", "reward model"]
    assert {command.config.run.threads for command in demo.preparation(config)} == {3}
    assert {command.config.run.threads for command in commands} == {1}
    assert chains[0][0].name == "text2grad", "the longest starts first"
    assert sorted(chain[-1].name for chain in chains) == sorted(f"evaluate {name}" for name in policies)
    runs = [command for command in commands if command.words[0] == "train"]
    assert {run.name for run in runs if not run.config.words_are_written} == silent


@pytest.mark.parametrize("failing", ["grpo", "sft"])
def test_no_command_starts_after_a_failure(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    failed = Event()

    def run_command(program: list[str]) -> tuple[int, float]:
        words = program[3:]
        name = words[words.index("--name") + 1] if "--name" in words else words[0]
        started.append(name)
        assert ("--restart" in words) == (words[0] in {"sft", "train", "train-reward"})
        if name == failing:
            failed.set()
            return 1, 0.0
        if name == "text2grad":
            assert failed.wait(10)
            sleep(0.2)
        return 0, 1.0

    monkeypatch.setattr(demo, "run_command", run_command)
    monkeypatch.setattr(demo, "measure_of", lambda config: "rouge_l")
    with pytest.raises(UserError, match=failing):
        demo.run_demo(config_of("function_summaries", tmp_path))
    shared = ["sft", "annotate", "train-reward"]
    assert started == ["sft"] if failing == "sft" else sorted(started) == sorted([*shared, "text2grad", "grpo"])
