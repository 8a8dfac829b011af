"""The same steps by the local loop and by TRL's trainer: canned samples, plain SGD, and what each
left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from text2grad.align import CreditSettings
from text2grad.durable.run import RunOptions
from text2grad.engines.trl import run as trl_run
from text2grad.engines.trl.trainer import RecipeTrainer
from text2grad.feedback import Critic, Example, Failure, Judgement, Message
from text2grad.policy.generate import Sample
from text2grad.policy.load import load_policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.train import ppo
from text2grad.train.learner import Learner
from text2grad.train.optimizers import Optimizers
from text2grad.train.ppo_settings import PPOSettings
from tiny_runs import TEXTS, Halves

TOKENS = 12
EXAMPLES = [Example(id=f"p{n}", prompt=(Message(role="user", content=text),)) for n, text in enumerate(TEXTS)]


class FailsSometimes(Halves):
    """As `Halves`, but has no critique of every third text."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        lost = Failure(kind="invalid", message="unreadable")
        return [lost if len(text) % 3 == 0 else self.judge(text) for text in responses]


@dataclass
class Left:
    """What a run has left: advantages of its steps (B, T), weights, metrics, and token strips."""

    advantages: list[Tensor]
    weights: dict[str, Tensor]
    metrics: list[dict[str, Any]]
    strips: list[dict[str, Any]]


def canned(vocabulary: int, stop: int, rollouts: int, steps: int) -> list[list[Sample]]:
    """Samples of some steps: half of them end by themselves, the others are cut."""
    rng = np.random.default_rng(5)
    batches = []
    for _ in range(steps):
        lengths = rng.integers(2, TOKENS, rollouts)
        ids = [rng.integers(4, vocabulary, length).tolist() for length in lengths]
        batches.append(
            [Sample([*each, stop], False) if n % 2 else Sample(each, True) for n, each in enumerate(ids)]
        )
    return batches


def sgd(policy: Any, settings: PPOSettings) -> Optimizers:
    trunk = torch.optim.SGD(policy.policy_parameters(), lr=settings.lr)
    head = torch.optim.SGD(policy.value_parameters(), lr=settings.lr)
    return Optimizers(trunk, head, torch.optim.lr_scheduler.LambdaLR(trunk, lambda _: 1.0))


def with_sgd(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        config = make(*args, **kwargs)
        config.optim = "sgd"
        return config

    return made


@contextmanager
def canned_steps(batches: Sequence[Sequence[Sample]], advantages: list[Tensor]) -> Iterator[None]:
    """Both loops take these samples, make the same mini-batches, step by SGD, and tell their
    advantages."""

    steps = iter(batches)

    def local_sample(learner: Learner, examples: Any, prompts: Any) -> list[Sample]:
        learner.batch = None
        return list(next(steps))

    def trl_sample(trainer: RecipeTrainer, examples: Any, prompts: Any) -> tuple[list[Sample], None]:
        step = trainer.state.global_step // trainer.updates
        rows, process = len(prompts), trainer.accelerator.process_index
        return list(batches[step][rows * process : rows * (process + 1)]), None

    def told(score: Callable[..., Any]) -> Callable[..., Any]:
        def scored(*args: Any) -> Any:
            rollout = score(*args)
            advantages.append(rollout.advantages.clone())
            return rollout

        return scored

    orders = iter(range(10**6))

    def permuted(count: int, **_: Any) -> Tensor:
        place = next(orders)
        return torch.from_numpy(np.random.default_rng([0, *divmod(place, permuted.epochs)]).permutation(count))  # type: ignore[attr-defined]

    permuted.epochs = canned_steps.epochs  # type: ignore[attr-defined]
    scored = told(ppo.build_rollout)
    with (
        mock.patch.object(Learner, "sample", local_sample),
        mock.patch.object(RecipeTrainer, "_sample", trl_sample),
        mock.patch("text2grad.train.update.torch.randperm", permuted),
        mock.patch.object(ppo, "make_optimizers", sgd),
        mock.patch.object(trl_run, "make_args", with_sgd(trl_run.make_args)),
        mock.patch("text2grad.train.ppo.build_rollout", scored),
        mock.patch("text2grad.engines.trl.trainer.build_rollout", scored),
    ):
        yield


def left_by(
    engine: str,
    model: Path,
    folder: Path,
    settings: PPOSettings,
    critic: Critic | None = None,
    lora: LoraSettings | None = None,
    fields: dict[str, Any] | None = None,
) -> Left:
    """Run the steps of `settings` on canned samples with the engine `local` or `trl`."""
    torch.manual_seed(0)
    policy = load_policy(PolicySettings(model=str(model), lora=lora))
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    generation = GenerationSettings(max_new_tokens=TOKENS)
    batches = canned(len(policy.tokenizer), policy.stop_ids[0], settings.rollouts, settings.steps)
    how = settings, CreditSettings(), generation
    advantages: list[Tensor] = []
    canned_steps.epochs = settings.epochs  # type: ignore[attr-defined]
    with canned_steps(batches, advantages), mock.patch("text2grad.train.ppo.Probes.answers", lambda *_: ([], {})):
        options = RunOptions(folder, "equal")
        arguments = policy, EXAMPLES, critic or Halves(), *how, options
        if engine == "local":
            ppo.train_ppo(*arguments)
        else:
            trl_run.train_trl(*arguments, fields=fields or {})
    weights = load_file(next((folder / "policy").glob("*model.safetensors")))
    return Left(advantages, weights, lines(folder / "metrics.jsonl"), lines(folder / "samples.jsonl"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def differences(one: Left, other: Left) -> tuple[float, float]:
    """The largest difference of an advantage, and of a weight."""
    pairs = zip(one.advantages, other.advantages, strict=True)
    assert one.weights.keys() == other.weights.keys()
    return (
        max(float((a - b).abs().max()) for a, b in pairs),
        max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights),
    )
