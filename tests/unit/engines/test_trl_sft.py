"""`sft --engine trl`: the steps of the local loop by TRL's trainer, its folder, resuming, and what
is refused."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="pip install 'text2grad[trl]'")

import vowels
from both_engines import lines
from safetensors.torch import load_file
from test_trl_processes import LAUNCH, started

from text2grad import cli
from text2grad.config import PRESETS, load_config
from text2grad.durable.run import RunOptions
from text2grad.durable.settings import CourseSettings
from text2grad.engines.trl.supervised import SFT, SFTRun, plan_sft_passes, train_sft_trl
from text2grad.errors import EXIT_FAILED, EXIT_TERMINATED, EXIT_USAGE
from text2grad.feedback import Message, Transcript
from text2grad.policy.load import load_policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.train.pairs import Pair
from text2grad.train.settings import SFTSettings
from text2grad.train.supervised import train_supervised
from tiny_runs import TEXTS, tiny_model

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
PAIRS = [
    Pair(f"p{n}", (Message(role="user", content=text),), " ".join(TEXTS[: n + 1])[: 9 * n + 2])
    for n, text in enumerate(TEXTS[1:] + TEXTS)
]
PAIRS.append(
    Pair(
        "two turns", PAIRS[0].prompt, Transcript.of([([], "write"), ([Message(role="tool", content="rain")], "ok")])
    )
)
ADAMW = SFTSettings(epochs=2, batch_size=4, micro_batch_size=2, lr=1e-3)
"""Batches of 4, 4 and 1 pairs, in passes of 2 rows."""
SGD = ADAMW.model_copy(update={"optimizer": f"{__name__}:sgd", "lr": 0.5})


def sgd(model: Any, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.SGD(weights, lr=lr, weight_decay=weight_decay)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def left_by(engine: str, model: Path, folder: Path, settings: SFTSettings, lora: LoraSettings | None) -> Any:
    """The weights and metrics that SFT leaves."""
    torch.manual_seed(0)
    policy = load_policy(PolicySettings(model=str(model), lora=lora))
    course = CourseSettings(schedule="cosine", warmup=0.4, weight_decay=0.1)
    options = RunOptions(folder, "sft", course=course)
    if engine == "local":
        train_supervised(policy, PAIRS, settings, options)
    else:
        train_sft_trl(policy, PAIRS, settings, options, fields={"use_vllm": True})
    return load_file(next((folder / "policy").glob("*model.safetensors"))), lines(folder / "metrics.jsonl")


def apart(one: Any, other: Any) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("settings", "lora", "most"),
    [
        (SGD, None, 1e-6),
        (SGD, LoraSettings(r=2, dropout=0.0), 1e-6),
        (ADAMW, None, 1e-5),
    ],  # AdamW enlarges rounding
)
def test_it_trains_what_the_local_loop_does(
    settings: SFTSettings, lora: LoraSettings | None, most: float, model: Path, tmp_path: Path
) -> None:
    weights, metrics = left_by("local", model, tmp_path / "local", settings, lora)
    others, told = left_by("trl", model, tmp_path / "trl", settings, lora)
    assert apart(weights, others) < most
    assert len(metrics) == len(told) > 3
    for mine, theirs in zip(metrics, told, strict=True):
        assert mine.keys() == theirs.keys() >= {"loss", "lr", "grad_norm", "step"}
        assert list(theirs.values()) == pytest.approx(list(mine.values()), abs=1e-5)


def test_every_process_has_as_many_rows() -> None:
    settings = SFTSettings(batch_size=12, micro_batch_size=4)
    assert [plan_sft_passes(settings, count) for count in (1, 2, 5, 16)] == [(4, 3), (3, 2), (3, 1), (1, 1)]


def words(model: Path, folder: Path, *more: str) -> list[str]:
    sft = ("--sft.epochs", "4", "--sft.batch_size", "2", "--sft.lr", "1e-2", "--sft.least_loss", "null")
    return [*vowels.WORDS, "--run.folder", str(folder), "--policy.model", str(model), *sft, *more]


def ended(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    return left.value.code


def test_every_command_reads_the_folder(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("sft", "--engine", "trl", "--json", *words(model, tmp_path)) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = lines(tmp_path / "sft" / "metrics.jsonl")
    assert len(rows) == 8 and rows[-1]["loss"] < rows[0]["loss"] == pytest.approx(math.log(300), abs=0.5)
    assert summary["loss"] == rows[-1]["loss"] and summary["examples"] == 4
    assert not (tmp_path / "sft" / "checkpoints").exists()
    config = load_config(tmp_path / "config.yaml")
    assert config.engine.name == "trl"
    assert "greedy_vowels" in run_evaluate(config, "sft").as_dict()


def test_a_low_loss_ends_it(model: Path, tmp_path: Path) -> None:
    assert ended("sft", "--engine", "trl", *words(model, tmp_path, "--sft.least_loss", "100")) == 0
    assert len(lines(tmp_path / "sft" / "metrics.jsonl")) == 1
    assert (tmp_path / "sft" / "policy").is_dir()


def test_a_stopped_run_goes_on_where_it_was(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert ended("sft", "--engine", "trl", *words(model, whole)) == 0
    finish = SFTRun.on_step_end

    def killed(self: SFTRun, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.done == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        finish(self, args, state, control, **others)

    with monkeypatch.context() as patch:
        patch.setattr(SFTRun, "on_step_end", killed)
        assert ended("sft", "--engine", "trl", *words(model, cut)) == EXIT_TERMINATED
    assert len(lines(cut / "sft" / "metrics.jsonl")) == 3
    assert ended("sft", "--engine", "trl", *words(model, cut, "--sft.lr", "1e-3")) == EXIT_FAILED
    assert "sft.lr" in capsys.readouterr().err
    assert ended("sft", *words(model, cut)) == EXIT_FAILED
    assert "by the engine trl" in capsys.readouterr().err
    assert ended("sft", "--engine", "trl", *words(model, cut)) == 0
    assert lines(cut / "sft" / "metrics.jsonl") == lines(whole / "sft" / "metrics.jsonl")
    policies = [load_file(each / "sft" / "policy" / "model.safetensors") for each in (whole, cut)]
    assert apart(*policies) < 1e-6


def test_numbers_that_are_not_finite_change_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SFT, "compute_loss", lambda self, model, inputs, **_: not_finite(self, model))
    assert ended("sft", "--engine", "trl", *words(model, tmp_path)) == EXIT_FAILED
    assert "sft: step 1 of 8" in (told := capsys.readouterr().err) and "lower sft.lr" in told


def not_finite(trainer: SFT, model: Any) -> Any:
    loss = sum(weight.sum() for weight in model.parameters()) * math.nan
    trainer.shares.append(loss.detach())
    return loss


REFUSED = [
    ("learning_rate", "1", "sft.lr"),
    ("weight_decay", "1", "training.weight_decay"),
    ("optim", "sgd", "sft.optimizer"),
    ("loss_type", "dft", "change the objective"),
    ("packing", "true", "not a field"),
]


@pytest.mark.parametrize(("field", "value", "named"), REFUSED)
def test_a_field_that_is_not_to_be_passed_on(
    field: str, value: str, named: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words(model, tmp_path, f"--engine.trl.{field}", value)
    assert ended("sft", "--engine", "trl", *given) == EXIT_USAGE
    assert named in capsys.readouterr().err
    assert not (tmp_path / "sft").exists()


def test_verl_has_no_sft(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("sft", "--engine", "verl", *words(model, tmp_path)) == EXIT_USAGE
    assert "--engine local or trl" in capsys.readouterr().err
    assert load_config(PRESETS / "demo.yaml", ["--engine.name", "verl"]).engine.name == "verl"


@pytest.mark.nightly
def test_two_processes_train_what_one_does(model: Path, tmp_path: Path) -> None:
    alone, two = tmp_path / "alone", tmp_path / "two"
    assert ended("sft", "--engine", "trl", *words(model, alone, "--sft.batch_size", "3", "--sft.lr", "1e-3")) == 0
    command = (*LAUNCH, "-m", "text2grad.cli", "sft", "--engine", "trl", "--json")
    done = started(*command, *words(model, two, "--sft.batch_size", "3", "--sft.lr", "1e-3"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    for mine, theirs in zip(*(lines(each / "sft" / "metrics.jsonl") for each in (alone, two)), strict=True):
        assert list(theirs.values()) == pytest.approx(list(mine.values()), abs=1e-5)
    policies = [load_file(each / "sft" / "policy" / "model.safetensors") for each in (alone, two)]
    assert apart(*policies) < 1e-5
