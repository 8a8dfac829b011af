"""What a mistake costs: one line that names the cure, the documented exit code, and nothing that
was there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from commands import TOY, Command, Ended

FAILED, USAGE = 1, 2
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


@pytest.mark.parametrize("words", ["sft", "train", "train --offline none.jsonl", "train-reward", "annotate"])
def test_several_processes_of_a_command_that_is_one_are_refused(
    words: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = command(*words.split(), "--run.folder", tmp_path / "run", "--config", "demo")
    one_line(ended, USAGE, "2 processes", "--engine trl")
    assert not (tmp_path / "run").exists()


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


# Beside a run. golden/test_messages.py has the mistakes that need none.


FILES = {
    "rows.jsonl": "".join(f'{{"prompt": "ask {n}", "response": "say {n}"}}\n' for n in range(13)),
    "questions.jsonl": "".join(f'{{"prompt": "question {number}"}}\n' for number in range(13)),
    "keys.jsonl": '{"q": "a"}\n',
    "empty.jsonl": "",
}
MISTAKES = [
    ("train --critic.kind program --task.name qa --task.data rows.jsonl", FAILED, "no prompt has tests"),
    ("annotate --annotate.critic program --task.name qa --task.data rows.jsonl", FAILED, "has tests"),
    ("train --critic.kind reference --task.name qa --task.data questions.jsonl", FAILED, "reference answer"),
    ("sft TOY", FAILED, "--restart"),
    ("evaluate sft TOY --policy.device cuda:99", FAILED, "cuda:99"),
    ("evaluate ok.jsonl", FAILED, "choose sft, text2grad"),
    ("evaluate nosuch TOY", FAILED, "'nosuch'"),
    ("evaluate --answers nosuch.jsonl --task summarization", FAILED, "nosuch.jsonl"),
    ("evaluate --answers a.jsonl --task reward-model", USAGE, "exclude each other"),
    ("evaluate --marks a.jsonl", USAGE, "--marks"),
    ("evaluate --answers a.jsonl --against b.jsonl", USAGE, "--evaluate.judge"),
    ("evaluate sft --evaluate.judge m --judge.prompt code_e2", USAGE, "--against"),
    ("evaluate --answers a.jsonl --judge.prompt=code_e2", USAGE, "--against"),
    ("merge nosuch --out o", FAILED, "'nosuch'"),
    ("sample hi --with nosuch", FAILED, "choose sft"),
    ("sample --prompts keys.jsonl", FAILED, "no 'prompt'"),
    ("sample --prompts empty.jsonl", FAILED, "empty.jsonl"),
    ("sample hi --critique --critic.kind program", FAILED, "no prompt has tests"),
    ("train --critic.kind program TOY --generation.max_new_tokens 2040", FAILED, "2048"),
    ("annotate TOY --generation.max_new_tokens 2040", FAILED, "2048"),
    ("evaluate sft TOY --generation.max_new_tokens 2040", FAILED, "2048"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a beginner, which is the current one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mistake_beside_a_run_is_one_line_and_writes_nothing(
    command: Command, finished: Path, place: Path
) -> None:
    before = contents(place), contents(finished)
    for line, code, word in MISTAKES:
        words = [part for word in line.split() for part in (TOY if word == "TOY" else [word])]
        ended = command(*words, "--run.folder", finished)
        one_line(ended, code, word)
        assert len(ended.err.splitlines()) == 1, line
    assert (contents(place), contents(finished)) == before


def test_a_stage_before_its_turn_names_the_one_before(command: Command, tmp_path: Path, run: Path) -> None:
    new = tmp_path / "new"
    for stage in ("train", "annotate"):
        ended = command(stage, "--run.folder", new, *TOY)
        one_line(ended, FAILED, "no policy in", f"text2grad sft --run.folder {new}")
    assert not new.exists()
    shutil.rmtree(run / "reward_model")
    one_line(command("train", "--run.folder", run, *TOY), FAILED, "no reward model in", "text2grad train-reward")


# Records.


def damaged(**changes: Any) -> str:
    return json.dumps({key: value for key, value in {**RECORD, **changes}.items() if value is not None})


DAMAGED = {
    "{not json": ["not JSON"],
    "[1, 2]": ["line 2"],
    damaged(response=None): ["response: Field required", "fix or remove line 2"],
    damaged(spans=[{"start": 0, "end": 2, "label": 1, "text": "is"}]): ["the text 'is'", "has 'it' there"],
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
        place = f"{file}: line 2 " if (stage, line) == ("import", "[1, 2]") else f"{file}:2: "
        one_line(command(stage, *words, "--run.folder", run, *TOY), FAILED, place, *said)
        assert contents(run) == before


def test_a_feedback_file_that_is_no_text_or_empty(command: Command, run: Path) -> None:
    file = run / "feedback.jsonl"
    file.write_bytes(b'{"id": "\xff"}\n')
    one_line(command("train-reward", "--run.folder", run, *TOY), FAILED, str(file), "not UTF-8")
    file.write_text("")
    one_line(command("train-reward", "--run.folder", run, *TOY), FAILED, "has no records", "text2grad annotate")


# Models.


def test_a_model_folder_without_a_part(command: Command, finished: Path, tmp_path: Path) -> None:
    parts = {
        "tokenizer.json tokenizer_config.json": ["no tokenizer in", "tokenizer.json"],
        "chat_template.jinja": ["no chat template", "--policy.chat_template"],
        "model.safetensors": ["no model in"],
    }
    for number, (names, said) in enumerate(parts.items()):
        model = Path(shutil.copytree(finished / "sft" / "policy", tmp_path / str(number)))
        for name in (*names.split(), "manifest.json"):  # somebody else's model has no manifest
            (model / name).unlink()
        words = ("sft", "--run.folder", tmp_path / "run", *TOY, "--policy.model", model)
        one_line(command(*words), FAILED, str(model), *said)
        assert not (tmp_path / "run").exists()


def test_a_model_whose_weights_are_no_numbers(command: Command, run: Path) -> None:
    weights = safetensors.torch.load_file(run / "sft" / "policy" / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    safetensors.torch.save_file(weights, run / "sft" / "policy" / "model.safetensors", metadata={"format": "pt"})
    (run / "feedback.jsonl").unlink()
    ended = command("evaluate", "sft", "--run.folder", run, *TOY)
    one_line(ended, FAILED, "model.safetensors", "is damaged", "manifest.json")
    (run / "sft" / "policy" / "manifest.json").unlink()
    for words in (["annotate"], ["evaluate", "sft"], ["train", "--name", "y"]):
        ended = command(*words, "--run.folder", run, *TOY)
        one_line(ended, FAILED, "model.norm.weight", "not finite", "an earlier checkpoint")
    assert not (run / "feedback.jsonl").exists()


def test_a_mistyped_model_without_a_network_is_told_at_once(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    words = ("sft", "--run.folder", "new", "--policy.model")
    one_line(command(*words, "owner/no-such-model"), FAILED, "'owner/no-such-model'", "no network to")
    one_line(command(*words, "smolm2"), FAILED, "did you mean 'smollm2'?")
    assert not Path("new").exists()


# Earlier results.


def test_a_folder_nothing_can_be_written_to(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file" / "run", tmp_path / "file"):
        one_line(command("sft", "--run.folder", folder, *TOY), FAILED, "cannot write", "--run.folder")
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
