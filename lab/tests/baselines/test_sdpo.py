"""SDPO by TRL's trainer on answers of one and of several turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from text2grad.config import Config, find_config, load_config
from text2grad.policy.load import load_frozen
from text2grad.policy.settings import PolicySettings
from text2grad.stages.sft import run_sft
from text2grad_lab.baselines import sdpo
from text2grad_lab.baselines.sdpo import EpisodeTrainer, SDPOConfig, run_train_sdpo
from tiny_runs import tiny_model
from word_task import Words

WORDS = ("--task.limit=96", "--run.threads=1", "--policy.device=cpu", "--sft.epochs=8", "--sft.lr=2e-2")
STEPS = ("--ppo.steps=2", "--ppo.rollouts=8", "--ppo.samples_per_prompt=4", "--generation.max_turns=3")


class OneWord(Words):
    """A task as a configuration names it."""

    def __init__(self, settings: Any) -> None:
        """Take no setting."""


def weights(folder: str) -> dict[str, torch.Tensor]:
    return dict(load_frozen(PolicySettings(model=folder)).model.state_dict())


def test_episodes_train_the_policys_own_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of tools are in the context but not in the loss; failed answers have feedback."""
    config: Config = load_config(
        [find_config("text2grad_lab:lookup")], [f"--run.folder={tmp_path}", *WORDS, *STEPS]
    )
    run_sft(config)
    batches: list[dict[str, Any]] = []
    parent: Any = EpisodeTrainer.__base__
    real = parent._compute_teacher_student_logits

    def watched(self: Any, model: Any, teacher: Any, inputs: Any) -> Any:
        logits = real(self, model, teacher, inputs)
        batches.append({**inputs, "width": logits.teacher_logits.shape[1]})
        return logits

    monkeypatch.setattr(parent, "_compute_teacher_student_logits", watched)
    masked: list[torch.Tensor] = []
    ours = EpisodeTrainer._compute_teacher_student_logits

    def masks(self: Any, model: Any, teacher: Any, inputs: Any) -> Any:
        logits = ours(self, model, teacher, inputs)
        masked.append(logits.loss_mask)
        return logits

    monkeypatch.setattr(EpisodeTrainer, "_compute_teacher_student_logits", masks)
    summary = run_train_sdpo(config, "sdpo")
    assert batches, "TRL no longer calls the method that we extend"
    for inputs, mask in zip(batches, masked, strict=True):
        policy_mask, completion_mask = inputs["policy_mask"].bool(), inputs["completion_mask"].bool()
        assert (completion_mask & ~policy_mask).any() and not (policy_mask & ~completion_mask).any(), (
            "tokens of tools are attended to"
        )
        active = inputs["self_distillation_mask"].bool()[:, None]
        assert torch.equal(mask.bool(), policy_mask & active)
        length = inputs["completion_ids"].shape[1]
        assert torch.equal(inputs["teacher_input_ids"][:, -length:], inputs["completion_ids"])
        assert inputs["teacher_input_ids"].shape[1] > inputs["prompt_ids"].shape[1] + length, (
            "the teacher reads feedback"
        )
    rows = [json.loads(line) for line in (tmp_path / "ppo/sdpo/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1] and all(row["with_feedback"] > 0.5 for row in rows)
    before, after = weights(str(tmp_path / "sft/policy")), weights(summary["out"])
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_an_unset_rate_is_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of the setting, 1e-6, would teach a small model nothing."""
    rates: list[float] = []

    def config_class(**fields: Any) -> SDPOConfig:
        rates.append(fields["learning_rate"])
        return SDPOConfig(**fields)

    monkeypatch.setattr(sdpo, "SDPOConfig", config_class)
    options = [
        f"--run.folder={tmp_path / 'run'}",
        f"--policy.model={tiny_model(tmp_path / 'start')}",
        f"--task.name={__name__}:OneWord",
        "--task.data=",
        "--critic.kind=word_task:Finder",
        "--policy.lora=null",
        "--policy.dtype=float32",
        "--policy.device=cpu",
        "--run.threads=1",
        "--generation.max_new_tokens=4",
        "--ppo.steps=1",
        "--ppo.rollouts=4",
        "--ppo.micro_batch_size=4",
    ]
    run_train_sdpo(load_config([find_config("own")], options), "sdpo")
    assert rates == [3e-5]
