"""What a mistake costs: one line that names the cure, the documented exit code, and nothing that was there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from commands import TOY, Command, Ended

FAILED = 1
RECORD: dict[str, Any] = {
    "id": "a",
    "prompt": [{"role": "user", "content": "Say it."}],
    "response": "it is",
    "critique": "fine",
    "spans": [{"start": 0, "end": 2, "label": 1, "text": "it"}],
    "source": {"kind": "human"},
}


def one_line(ended: Ended, code: int, *words: str) -> None:
    """The command failed with `code`, and its only error line has all the words."""
    assert ended.code == code, ended.err
    said = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert ended.err.splitlines()[-1] == said[0]
    assert "Traceback" not in ended.err
    assert ended.out == ""
    for word in words:
        assert word in said[0]


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder and the hash of what it holds."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_real_program_says_the_same_on_stderr_alone(tmp_path: Path) -> None:
    words = ["train", "--run.folder", str(tmp_path / "run"), "--config", "demo"]
    process = subprocess.run(
        [sys.executable, "-m", "text2grad.cli", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    one_line(Ended(process.returncode, process.stdout, process.stderr), FAILED, "no policy in", "text2grad sft")
    assert len(process.stderr.splitlines()) == 1


# The order of the stages.


def test_a_stage_before_its_turn_names_the_one_before(command: Command, tmp_path: Path, run: Path) -> None:
    empty = ("--run.folder", tmp_path / "new", *TOY)
    for stage in ("train", "annotate"):
        one_line(command(stage, *empty), FAILED, "no policy in", f"text2grad sft --run.folder {tmp_path / 'new'}")
    one_line(command("train-reward", *empty), FAILED, "no feedback in", "text2grad annotate")
    one_line(command("evaluate", "sft", *empty), FAILED, "no policy 'sft'")
    assert not (tmp_path / "new").exists()
    shutil.rmtree(run / "reward_model")
    one_line(command("train", "--run.folder", run, *TOY), FAILED, "no reward model in", "text2grad train-reward")
    one_line(command("evaluate", "nosuch", "--run.folder", run, *TOY), FAILED, "'nosuch'", "sft, text2grad")


# Records.


def damaged(**changes: Any) -> str:
    return json.dumps({key: value for key, value in {**RECORD, **changes}.items() if value is not None})


DAMAGED = {
    "{not json": ["not JSON", "one JSON object per line"],
    "[1, 2]": ["fix or remove line 2"],
    damaged(response=None): ["response: Field required", "fix or remove line 2"],
    damaged(spans=[{"start": 0, "end": 2, "label": 1, "text": "is"}]): ["says 'is'", "has 'it' there"],
    damaged(spans=[{"start": 2, "end": 2, "label": 1, "text": ""}]): ["empty span"],
    damaged(spans=[{"start": 0, "end": 2, "label": 2, "text": "it"}]): ["spans.0.label"],
    damaged(score=3): ["score"],
    damaged(prompt=[]): ["prompt"],
    damaged(surprise=1): ["surprise"],
}


@pytest.mark.parametrize("stage", ["train-reward", "import"])
def test_a_damaged_record_names_its_line(command: Command, run: Path, tmp_path: Path, stage: str) -> None:
    file = run / "feedback.jsonl" if stage == "train-reward" else tmp_path / "mine.jsonl"
    words = [] if stage == "train-reward" else [str(file), "--kind", "feedback", "--config", "demo"]
    for line, said in DAMAGED.items():
        file.write_text(f"{damaged()}\n{line}\n{damaged(id='c')}\n", encoding="utf-8")
        before = contents(run)
        one_line(command(stage, *words, "--run.folder", run, *TOY), FAILED, f"{file}:2: ", *said)
        assert contents(run) == before


def test_a_feedback_file_that_is_no_text_or_empty(command: Command, run: Path) -> None:
    file = run / "feedback.jsonl"
    file.write_bytes(b'{"id": "\xff"}\n')
    one_line(command("train-reward", "--run.folder", run, *TOY), FAILED, str(file), "not UTF-8")
    file.write_text("")
    one_line(command("train-reward", "--run.folder", run, *TOY), FAILED, "holds no records", "text2grad annotate")
    file.unlink()
    one_line(command("train-reward", "--run.folder", run, *TOY), FAILED, "no feedback in", "text2grad annotate")


def test_an_empty_data_set(command: Command, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("")
    words = ("sft", "--run.folder", tmp_path / "run", *TOY, "--task.name", "code", "--task.data", data)
    one_line(command(*words), FAILED, "data.jsonl")
    assert not (tmp_path / "run").exists()


# Models.


def test_a_model_folder_without_a_part(command: Command, finished: Path, tmp_path: Path) -> None:
    parts = {
        "tokenizer.json tokenizer_config.json": ["no tokenizer in", "tokenizer.json"],
        "chat_template.jinja": ["no chat template", "--policy.chat_template"],
        "model.safetensors": ["no model in"],
    }
    for number, (names, said) in enumerate(parts.items()):
        model = Path(shutil.copytree(finished / "sft" / "policy", tmp_path / str(number)))
        for name in names.split():
            (model / name).unlink()
        words = ("sft", "--run.folder", tmp_path / "run", *TOY, "--policy.model", model)
        one_line(command(*words), FAILED, str(model), *said)
        assert not (tmp_path / "run").exists()


def test_a_model_whose_weights_are_no_numbers(command: Command, run: Path) -> None:
    weights = safetensors.torch.load_file(run / "sft" / "policy" / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    safetensors.torch.save_file(weights, run / "sft" / "policy" / "model.safetensors", metadata={"format": "pt"})
    (run / "feedback.jsonl").unlink()
    for words in (["annotate"], ["evaluate", "sft"], ["train", "--name", "y"]):
        ended = command(*words, "--run.folder", run, *TOY)
        one_line(ended, FAILED, "model.norm.weight", "not finite", "an earlier checkpoint")
    assert not (run / "feedback.jsonl").exists()


def test_a_model_folder_that_is_not_there(command: Command, tmp_path: Path) -> None:
    words = ("sft", "--run.folder", tmp_path / "run", *TOY, "--policy.model", tmp_path / "typo")
    one_line(command(*words), FAILED, "no model folder", "check policy.model")


def test_a_prompt_longer_than_the_model(command: Command, run: Path) -> None:
    before = contents(run)
    long = ("--run.folder", run, *TOY, "--generation.max_new_tokens", "500")
    for words in (["train", "--critic.kind", "program"], ["annotate"], ["evaluate", "sft"]):
        one_line(command(*words, *long), FAILED, "prompts are too long", "the model's 512", "max_new_tokens")
    assert contents(run) == before


def test_a_device_that_is_not_there(command: Command, run: Path) -> None:
    one_line(command("train", "--run.folder", run, *TOY, "--policy.device", "cuda:99"), FAILED, "cuda:99", "auto")


# Earlier results.


def test_a_folder_nothing_can_be_written_to(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    one_line(
        command("sft", "--run.folder", tmp_path / "file" / "run", *TOY), FAILED, "cannot write", "--run.folder"
    )
    one_line(command("sft", "--run.folder", tmp_path / "file", *TOY), FAILED, "cannot write", "--run.folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_that_fails_leaves_earlier_results_as_they_were(command: Command, run: Path) -> None:
    failing = {
        "train --reward_model.max_new_tokens 1": "critiques failed",
        "train --generation.temperature 0": "temperature above 0",
        "sft --restart --sft.lr 1e30": "not finite",
        "train-reward --reward_model.training.lr 1e30": "not finite",
        "annotate --task.name nosuch": "unknown task",
        "evaluate sft --task.heldout_share 0 --task.name demo --task.limit 8": "held-out",
    }
    before = contents(run)
    for line, said in failing.items():
        stage, *words = line.split()
        one_line(command(stage, "--run.folder", run, *TOY, "--ppo.max_failed", "0.5", *words), FAILED, said)
        after = contents(run)
        assert {name: after[name] for name in before} == before
        new = set(after) - set(before)
        assert all(name.endswith((".partial", "diverged.jsonl")) for name in new), new


def test_a_demo_that_cannot_be_measured_does_not_start(command: Command, tmp_path: Path) -> None:
    words = ("demo", "--run.folder", tmp_path / "run")
    one_line(command(*words, "--task.heldout_share", "0"), FAILED, "held-out", "task.heldout_share")
    assert not (tmp_path / "run").exists()
