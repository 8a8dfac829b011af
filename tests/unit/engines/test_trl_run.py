"""`train --engine trl` through the command line: what it learns, leaves, resumes and refuses."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl", reason="pip install 'text2grad[trl]'")

import vowels
from safetensors.torch import load_file

from text2grad import cli
from text2grad.config import PRESETS, Config, load_config
from text2grad.durable.run import CHECKPOINTS, RunOptions
from text2grad.engines.trl import STATE
from text2grad.engines.trl.fields import plan_passes
from text2grad.engines.trl.run import PPORun, newest_checkpoint, refuse_rounded_steps, refuse_sharded
from text2grad.engines.trl.trainer import RecipeTrainer
from text2grad.errors import EXIT_FAILED, EXIT_TERMINATED, UsageError, UserError
from text2grad.page.report import build_report
from text2grad.policy.generate import Sample
from text2grad.policy.load import load_policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.stages.train import run_train
from text2grad.train.ppo_settings import PPOSettings
from tiny_runs import Talker, tiny_model

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def words(model: Path, folder: Path, steps: int, *more: str) -> list[str]:
    given = ("--run.folder", str(folder), "--policy.model", str(model), "--ppo.steps", str(steps))
    return [*vowels.WORDS, *given, *more]


def config_of(model: Path, folder: Path, steps: int, *more: str) -> Config:
    return load_config(PRESETS / "demo.yaml", words(model, folder, steps, "--engine.name", "trl", *more))


def left(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    return left.value.code


def rows(folder: Path) -> list[dict[str, Any]]:
    file = folder / "ppo" / "text2grad" / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_the_reward_rises_and_every_command_reads_the_folder(model: Path, tmp_path: Path) -> None:
    assert left("train", "--engine", "trl", "--json", *words(model, tmp_path, 12, "--ppo.heldout_every", "6")) == 0
    metrics = rows(tmp_path)
    assert metrics[-1]["score"] > metrics[0]["score"] + 0.3
    assert [row["step"] for row in metrics if "heldout_greedy_vowels" in row] == [5, 11]
    place = tmp_path / "ppo" / "text2grad"
    assert {each.name for each in place.iterdir()} >= {"policy", "samples.jsonl", "config.yaml", "metrics.jsonl"}
    assert not (place / "checkpoints").exists()
    config = load_config(place / "config.yaml")
    assert config.engine.name == "trl"
    assert run_evaluate(config, "text2grad").as_dict()["greedy_vowels"] == metrics[-1]["heldout_greedy_vowels"]
    assert left("merge", str(place / "policy"), "--out", str(tmp_path / "merged")) == 0
    assert load_file(tmp_path / "merged" / "model.safetensors").keys()
    assert "wrong_sign_rate" in build_report(tmp_path).read_text(encoding="utf-8")


def test_a_stopped_run_goes_on_where_it_was(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--ppo.kl_target", "0.5", "--ppo.kl_coefficient", "0.1")
    run_train(config_of(model, tmp_path / "whole", 4, *more), "text2grad")
    finish, count = PPORun.on_step_end, [0]

    def killed(self: PPORun, args: Any, state: Any, control: Any, **others: Any) -> None:
        count[0] += 1
        if count[0] == 3:  # the first update of the second step
            os.kill(os.getpid(), signal.SIGTERM)
        finish(self, args, state, control, **others)

    with monkeypatch.context() as patch:
        patch.setattr(PPORun, "on_step_end", killed)
        assert left("train", "--engine", "trl", *words(model, tmp_path / "cut", 4, *more)) == EXIT_TERMINATED
    assert len(rows(tmp_path / "cut")) == 2
    changed = words(model, tmp_path / "cut", 4, *more, "--ppo.lr", "1e-3")
    assert left("train", "--engine", "trl", *changed) == EXIT_FAILED
    assert "ppo.lr" in capsys.readouterr().err
    run_train(config_of(model, tmp_path / "cut", 4, *more), "text2grad")
    whole, cut = (tmp_path / name / "ppo" / "text2grad" for name in ("whole", "cut"))
    for mine, others in zip(rows(tmp_path / "whole"), rows(tmp_path / "cut"), strict=True):
        same = [name for name in mine if not name.startswith("seconds")]
        assert [mine[name] for name in same] == pytest.approx([others[name] for name in same], abs=1e-5)
    assert (whole / "samples.jsonl").read_text() == (cut / "samples.jsonl").read_text()
    weights = [load_file(place / "policy" / "model.safetensors") for place in (whole, cut)]
    assert all(float((weights[0][name] - weights[1][name]).abs().max()) < 1e-6 for name in weights[0])


@pytest.mark.parametrize("content", [b"", b'{"identity": {}\xff'])
def test_a_damaged_checkpoint_is_skipped(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        checkpoint = tmp_path / CHECKPOINTS / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / STATE).write_text('{"identity": {}}')
    (checkpoint / STATE).write_bytes(content)
    newest = newest_checkpoint(RunOptions(tmp_path, "ppo"), {})
    assert newest is not None and newest.name == "checkpoint-1"
    assert f"skipped the damaged checkpoint {checkpoint}" in capsys.readouterr().err


def test_adapters_are_trained_and_resumed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = ("--policy.lora", "{r: 4}", "--ppo.lr", "3e-2")
    monkeypatch.setattr("text2grad.engines.trl.run.CHECKPOINT_EVERY", 2)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="gone"):
        patch.setattr(PPORun, "_write", fails_at(3, PPORun._write))
        run_train(config_of(model, tmp_path, 4, *lora), "text2grad")
    assert len(rows(tmp_path)) == 3
    run_train(config_of(model, tmp_path, 4, *lora), "text2grad")
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3]
    adapter = load_file(tmp_path / "ppo" / "text2grad" / "policy" / "adapter_model.safetensors")
    assert any(weight.abs().max() > 0 for name, weight in adapter.items() if "lora_B" in name)


def fails_at(step: int, write: Any) -> Any:
    def writes(self: PPORun, number: int, metrics: dict[str, float]) -> None:
        if number == step:
            raise OSError("gone")
        write(self, number, metrics)

    return writes


REFUSED = [
    ("beta", 0.1, "ppo.kl_coefficient"),
    ("num_generations", 4, "ppo.samples_per_prompt"),
    ("per_device_train_batch_size", 4, "ppo.micro_batch_size"),
    ("learning_rate", 1e-4, "ppo.lr"),
    ("loss_type", "grpo", "loss_type"),
    ("top_p", 0.9, "top_p"),
    ("loss_typ", "grpo", "not a field of TRL's GRPOConfig$"),
    ("use_vlm", True, "did you mean 'use_vllm'"),
    ("use_vllm", "server", "use_vllm"),
    ("use_vllm", True, "vLLM"),
    ("auto_find_batch_size", True, "ppo.micro_batch_size"),
    ("pad_to_multiple_of", "seven", "seven"),
]


@pytest.mark.parametrize(("field", "value", "named"), REFUSED)
def test_a_field_that_is_not_to_be_passed_on(
    field: str, value: Any, named: str, model: Path, tmp_path: Path
) -> None:
    config = config_of(model, tmp_path, 1, f"--engine.trl.{field}", str(value).lower())
    with pytest.raises(UsageError, match=named):
        run_train(config, "text2grad")
    assert not (tmp_path / "ppo" / "text2grad" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("setting", "value", "instead"),
    [
        ("ppo.advantage", "gae", "returns"),
        ("ppo.kl", "full", "k1"),
        ("ppo.rollouts", "3", "--ppo.rollouts 2"),
        ("policy.dtype", "bfloat16", "policy.lora"),
        ("generation.temperature", "0", "generation.temperature"),
    ],
)
def test_a_setting_that_it_cannot_honour(
    setting: str, value: str, instead: str, model: Path, tmp_path: Path
) -> None:
    config = config_of(model, tmp_path, 1, "--ppo.mini_batches", "2", f"--{setting}", value)
    with pytest.raises(UserError, match=instead):
        run_train(config, "text2grad")


def test_another_version_and_a_lost_launch(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(model, tmp_path, 1)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="torchrun"):
        patch.setenv("MASTER_PORT", "29500")
        run_train(config, "text2grad")
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"trl 1\.12"):
        patch.setattr("text2grad.plugins.credit.version", lambda package: "1.12.0")
        run_train(config, "text2grad")
    monkeypatch.setattr("text2grad.plugins.credit.version", missing)
    with pytest.raises(UserError, match=r"text2grad\[trl\]"):
        run_train(config, "text2grad")


def missing(package: str) -> str:
    raise metadata.PackageNotFoundError(package)


def test_every_pass_has_as_many_rows() -> None:
    settings = PPOSettings(rollouts=48, mini_batches=2, micro_batch_size=10)
    assert [plan_passes(settings, count) for count in (1, 2, 4)] == [(8, 3), (6, 2), (6, 1)]
    with pytest.raises(UserError, match=r"--ppo\.rollouts 40"):
        plan_passes(settings, 5)


def test_episodes_are_played(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vowels.Vowels, "environment", Talker, raising=False)
    config = config_of(model, tmp_path, 2, "--generation.max_turns", "2")
    with monkeypatch.context() as patch:
        patch.setattr(RecipeTrainer, "_as_samples", cut_at(3))
        run_train(config, "text2grad")
    assert [row["turns"] for row in rows(tmp_path)] == [2, 2]
    file = tmp_path / "ppo" / "text2grad" / "samples.jsonl"
    strips = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert all(len(strip["ids"]) == len(strip["advantage"]) == 6 for strip in strips)
    spoken = [[message["role"] for message in strip["response"]][:3] for strip in strips]
    assert spoken == [["assistant", "tool", "assistant"]] * len(strips)


def cut_at(length: int) -> Any:
    """Turns of so many tokens, which end by themselves."""

    def samples(self: RecipeTrainer, sampled: Any) -> list[Sample]:
        return [Sample([*ids[: length - 1], self.eos_token_ids[0]], truncated=False) for ids in sampled]

    return samples


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_continuous_batching_may_not_turn_the_trained_weights_into_a_half_type(model: Path, half: str) -> None:
    policy = load_policy(PolicySettings(model=str(model), lora=LoraSettings(), device="cpu"))
    asked = {"use_transformers_continuous_batching": True, "bf16": False, "fp16": False, "deepspeed_plugin": None}
    refuse_rounded_steps(policy, SimpleNamespace(**asked))
    with pytest.raises(UserError, match="continuous_batching"):
        refuse_rounded_steps(policy, SimpleNamespace(**{**asked, half: True}))


@pytest.mark.parametrize(
    ("overlap", "split", "refused"), [("never", True, True), ("never", False, False), ("helps", True, False)]
)
def test_a_critic_on_the_policys_weights_needs_them_unsharded(overlap: str, split: bool, refused: bool) -> None:
    """Each process judges its own answers, in as many passes as these need."""
    recipe = SimpleNamespace(settings=PPOSettings(), environment=None, critic=SimpleNamespace(overlap=overlap))
    trainer: Any = SimpleNamespace(recipe=recipe, split=split, use_vllm=False)
    with pytest.raises(UserError, match="needs them unsharded") if refused else nullcontext():
        refuse_sharded(trainer)
