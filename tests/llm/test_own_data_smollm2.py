"""docs/feedback.md, "Your own data", with the real model: `--config own` as "A real model" says.

Sizes are changed, to what a test can wait for, and the gate is off, which refuses four rows;
tests/e2e/test_readme.py follows the rest of the page.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from blocks import FEEDBACK, commands_in, fenced, in_code, section
from text2grad.cli import main

OWN_DATA = section(FEEDBACK.read_text("utf-8"), "Your own data")
SMALL = (
    *("--generation.max_new_tokens", "8", "--reward_model.max_new_tokens", "48"),
    *("--sft.epochs", "2", "--reward_model.training.epochs", "2", "--reward_model.damaged", "0"),
    *("--ppo.steps", "1", "--ppo.rollouts", "8", "--critic.reward_model.gate", "false"),
    *("--ppo.max_failed", "1"),
)


def run(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """What a command says, on both outputs; it must end well."""
    with pytest.raises(SystemExit) as left:
        main(words)
    said = "".join(capfd.readouterr())
    assert not left.value.code, said
    return said


def test_the_path_with_a_real_model(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [table], [block] = fenced(OWN_DATA, "csv"), fenced(OWN_DATA, "bash")
    Path("feedback.csv").write_text(table, "utf-8")
    [(preset, small)] = re.findall(r"`--config (\w+)` in place of\s+`(\w+)`", OWN_DATA)
    path = [words[1:] for words in commands_in(block) if words[0] == "text2grad"]
    assert [words[0] for words in path] == ["import", "sft", "train", "train-reward", "train"]
    for words in path:
        assert small in words
        run([preset if word == small else word for word in words] + [*SMALL], capfd)
    for stage in ("sft", "reward_model", "ppo/offline", "ppo/text2grad"):
        adapter = json.loads(Path(f"runs/mine/{stage}/policy/adapter_config.json").read_text("utf-8"))
        assert adapter["base_model_name_or_path"] == "smollm2"
    [ask] = in_code(OWN_DATA, r'text2grad sample "When.*')
    answers = run([*shlex.split(ask)[1:], *SMALL[:2]], capfd)
    assert all(policy in answers for policy in ("base", "sft", "offline", "text2grad"))
