"""The main job through the command line: every file, the promised figures, and a reward that goes
up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from commands import TOY, Command

SMALL = (
    *("--task.limit", "64", "--task.name", "toy_task:SmallDemo"),
    *("--sft.epochs", "2", "--annotate.prompts", "24", "--annotate.samples_per_prompt", "1"),
    *("--reward_model.training.epochs", "1", "--reward_model.max_new_tokens", "24"),
    *("--ppo.steps", "2", "--ppo.rollouts", "8", "--ppo.max_failed", "1"),
    *("--generation.max_new_tokens", "32", "--evaluate.limit", "8", "--evaluate.samples", "2"),
    *("--critic.reward_model.gate", "false"),
)
POLICIES = ("sft", "scalar_ppo", "text2grad")
REWARD_MODEL = {"good_precision", "good_recall", "poor_precision", "poor_recall", "unmatched", "unreadable"}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "text2grad.cli", "demo", "--json", "--run.folder", str(folder), *SMALL, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment.get("PYTHONPATH", "")])
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo") / "run"
    return folder, demo(folder)


Done = tuple[Path, subprocess.CompletedProcess[str]]


def test_the_last_line_of_stdout_is_the_promised_object(done: Done) -> None:
    _, process = done
    assert process.returncode == 0, process.stderr
    figures = json.loads(process.stdout.splitlines()[-1])
    assert set(figures) == {*POLICIES, "reward_model", "seconds", "peak_rss_mb"}
    for name in POLICIES:
        assert set(figures[name]) == {"greedy", "sampled"}
        assert all(0.0 <= value <= 1.0 for value in figures[name].values())
    assert set(figures["reward_model"]) == REWARD_MODEL
    assert all(value is None or 0.0 <= value <= 1.0 for value in figures["reward_model"].values())
    assert figures["seconds"] > 0
    assert 100 < figures["peak_rss_mb"] < 4096


def test_progress_and_the_table_are_on_stderr(done: Done) -> None:
    _, process = done
    assert len(process.stdout.splitlines()) == 1
    for word in ("sft: 1/", "reward model: 1/", "text2grad: 2/2", "scalar_ppo: 2/2", "scalar PPO", "report: "):
        assert word in process.stderr
    assert "Traceback" not in process.stderr
    assert "Warning" not in process.stderr


def test_the_run_folder_is_whole(done: Done) -> None:
    folder, _ = done
    files = ("config.yaml", "feedback.jsonl", "report.html", "before_after.jsonl")
    assert all((folder / name).stat().st_size > 0 for name in files)
    assert len(lines(folder / "feedback.jsonl")) == 24
    assert len(lines(folder / "before_after.jsonl")) == 8
    assert [answer["name"] for answer in lines(folder / "before_after.jsonl")[0]["answers"]] == [
        "SFT",
        "scalar PPO",
        "text2grad",
    ]
    for name in ("text2grad", "scalar_ppo"):
        assert [row["step"] for row in lines(folder / "ppo" / name / "metrics.jsonl")] == [0, 1]
        assert (folder / "ppo" / name / "policy" / "model.safetensors").is_file()
    assert not [path for path in folder.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".partial")]


def test_the_arms_differ_in_the_credit_alone(done: Done) -> None:
    folder, _ = done
    first = {name: lines(folder / "ppo" / name / "metrics.jsonl")[0] for name in ("text2grad", "scalar_ppo")}
    for key in ("kl", "response_length", "entropy", "critic_failed"):  # the same rollouts, the same reward model
        assert first["text2grad"][key] == first["scalar_ppo"][key]
    assert first["text2grad"].get("score") == first["scalar_ppo"].get("score")  # none, if it can read no critique
    scalar = lines(folder / "ppo" / "scalar_ppo" / "samples.jsonl")
    assert all(value == 0 for sample in scalar for value in sample["delta"][:-1])


def test_every_list_of_a_sample_has_one_entry_per_token(done: Done) -> None:
    folder, _ = done
    samples = lines(folder / "ppo" / "text2grad" / "samples.jsonl")
    assert {sample["step"] for sample in samples} == {0, 1}
    for sample in samples:
        names = ["ids", "tokens", "starts", "ends", "delta", "kl", "reward", "logp", "logp_change", "entropy"]
        names += [] if sample.get("probe") else ["advantage", "learned"]
        names += ["ratio"] if "ratio" in sample else []  # not where no optimizer step was taken
        assert len({len(sample[name]) for name in names}) == 1
        assert sample["value"] == []  # the demo has no value function
        places = list(zip(sample["starts"], sample["ends"], strict=True))
        assert sample["tokens"] == [sample["response"][start:end] for start, end in places]
        assert {at for start, end in places for at in range(start, end)} == set(range(len(sample["response"])))
        assert all(span["text"] == sample["response"][span["start"] : span["end"]] for span in sample["spans"])


LEARN = (
    *("--critic.kind", "program", "--ppo.steps", "16", "--ppo.rollouts", "64", "--ppo.samples_per_prompt", "2"),
    *("--ppo.lr", "3e-4"),
)


@pytest.mark.parametrize(
    "recipe",
    [(), pytest.param(("--config", "scalar"), marks=pytest.mark.nightly)],
    ids=["text2grad", "scalar"],
)
def test_the_reward_goes_up_against_the_tests(run: Path, command: Command, recipe: tuple[str, ...]) -> None:
    layers = ("--config", "demo", *recipe)
    ended = command("train", "--run.folder", run, *layers, *TOY, *LEARN, "--name", "oracle")
    assert ended.code == 0, ended.err
    rows = lines(run / "ppo" / "oracle" / "metrics.jsonl")
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-5)  # the first step samples the policy of SFT
    assert rows[-1]["kl"] > 0.01
    for key in ("score", "delta_sum"):
        before, after = mean(row[key] for row in rows[:2]), mean(row[key] for row in rows[-3:])
        assert after > before + 0.3


def test_equal_settings_and_seeds_give_equal_runs(run: Path, command: Command) -> None:
    first, again, other = (
        without_seconds(command, run, name, seed) for name, seed in (("first", "3"), ("again", "3"), ("other", "4"))
    )
    assert first == again
    assert first != other
    samples = [(run / "ppo" / name / "samples.jsonl").read_bytes() for name in ("first", "again")]
    assert samples[0] == samples[1]


def without_seconds(command: Command, run: Path, name: str, seed: str) -> list[dict[str, Any]]:
    ended = command("train", "--run.folder", run, *TOY, "--name", name, "--run.seed", seed)
    assert ended.code == 0, ended.err
    rows = lines(run / "ppo" / name / "metrics.jsonl")
    return [{key: value for key, value in row.items() if not key.startswith("seconds_")} for row in rows]
