"""The demo's commands and their order; a failure ends it; the measure and the memory that it
reports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import sleep

import pytest

from text2grad import demo
from text2grad.config import Config, find_config, load_config
from text2grad.errors import UsageError, UserError


def config_of(preset: str, folder: Path) -> Config:
    return load_config([find_config(preset)], ["--run.folder", str(folder), "--run.threads", "3"])


@pytest.mark.parametrize(
    ("preset", "policies"),
    [
        ("demo", ["sft", "scalar_ppo", "text2grad"]),
        ("function_summaries", ["base", "sft", "scalar_ppo", "grpo", "text2grad"]),
    ],
)
def test_the_commands_of_a_demo(preset: str, policies: list[str], tmp_path: Path) -> None:
    config = config_of(preset, tmp_path)
    chains = demo.training(config)
    commands = [command for chain in chains for command in chain]
    assert demo.policy_names(config) == policies
    assert [command.name for command in demo.preparation(config)] == ["sft", "annotate", "reward model"]
    assert {command.config.run.threads for command in demo.preparation(config)} == {3}
    assert {command.config.run.threads for command in commands} == {1}
    assert chains[0][0].name == "text2grad", "the longest starts first"
    assert sorted(chain[-1].name for chain in chains) == sorted(f"evaluate {name}" for name in policies)


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


OWN_TASK = """
class Own:
    name = critic_prompt = "qa"

    def __init__(self, settings):
        pass

    def examples(self, split):
        from text2grad.feedback import Example, Message

        turn = Message(role="user", content="Where?")
        return [Example(id=str(n), prompt=(turn,), reference="there" * REFERENCES) for n in range(2)]

    def scores(self, example, response):
        return SCORES
"""


@pytest.fixture
def own_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """A configuration of a task of one's own with such scores, and with or without references."""

    def written(scores: str, references: bool = True) -> Config:
        name = f"own_{abs(hash((scores, references)))}"
        text = OWN_TASK.replace("SCORES", scores).replace("REFERENCES", str(int(references)))
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        words = ["--task.name", f"{name}:Own", "--policy.model", "tiny", "--run.folder", str(tmp_path / "run")]
        return load_config(None, words)

    monkeypatch.syspath_prepend(tmp_path)
    return written


MEASURES = {
    "{'named': 1.0}": "named",
    "{'zeal': 1.0, 'accuracy': 0.5}": "zeal",
    "{'accuracy': 0.5, 'rouge_l': 1.0}": "rouge_l",
    "{'length': 3.0, 'pass': 1.0}": "pass",
    "{'named': 1.0} if example.id == '1' else {}": "named",
}


def test_a_user_task_is_compared_by_its_own_measure(own_task: Callable[..., Config]) -> None:
    for scores, measure in MEASURES.items():
        for config in (own_task(scores, True), own_task(scores, False)):
            assert demo.measure_of(config) == demo.measure_of(config, measure) == measure
            with pytest.raises(UsageError, match=rf"no measure 'speed' \(--measure .*{measure}"):
                demo.measure_of(config, "speed")
    for requested in (None, "rouge_l"):
        with pytest.raises(UserError, match="no tests, references or scores"):
            demo.measure_of(own_task("{}"), requested)


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the system does not say what a process holds")
def test_peak_memory_excludes_the_parent_process(tmp_path: Path) -> None:
    held = b"x" * (300 << 20)  # what this process holds, and what `ru_maxrss` of its children begins with
    code, small = demo.run_command([sys.executable, "-c", "import time; time.sleep(0.6)"])
    _, large = demo.run_command([sys.executable, "-c", "import time; x = b'x' * (200 << 20); time.sleep(0.6)"])
    assert len(held) >> 20 == 300 and code == 0
    assert 2 < small < 60 and 200 < large < 260
    program = "import os; print(os.getcwd()); raise SystemExit(7)"
    code, _ = demo.run_command([sys.executable, "-c", program], tmp_path / "it.log", tmp_path)
    assert code == 7 and (tmp_path / "it.log").read_text(encoding="utf-8").strip() == str(tmp_path)
