"""How far steps of verl's own trainer are from the local loop's: the same samples, plain SGD.

In verl's environment: `python tests/engines/verl_equality.py`; the last line is one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
import verl_recipe
from safetensors.torch import load_file
from torch import Tensor

from text2grad.align import CreditSettings
from text2grad.durable.run import RunOptions
from text2grad.feedback import Example
from text2grad.policy.generate import Sample
from text2grad.policy.load import load_policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.train import ppo
from text2grad.train.learner import Learner
from text2grad.train.optimizers import Optimizers
from text2grad.train.ppo_settings import PPOSettings

Steps = list[list[dict[str, Any]]]
SGD = {"actor_rollout_ref.actor.optim.optimizer": "SGD", "trainer.save_freq": 1}


def kept(folder: Path, *steps: int) -> Steps:
    """What `verl_kept.Kept` wrote of some steps."""
    place = folder / "run" / "ppo" / "mine" / "verl"
    return [json.loads((place / f"kept_{step}.json").read_text(encoding="utf-8")) for step in steps]


def sgd(policy: Any, settings: PPOSettings) -> Optimizers:
    trunk = torch.optim.SGD(policy.policy_parameters(), lr=settings.lr)
    head = torch.optim.SGD(policy.value_parameters(), lr=settings.lr)
    return Optimizers(trunk, head, torch.optim.lr_scheduler.LambdaLR(trunk, lambda _: 1.0))


def local(folder: Path, steps: Steps, settings: PPOSettings) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The local loop on what verl sampled: the advantages of its steps, and the weights that it
    left."""
    samples = [[Sample(row["responses"], row["judged"]["truncated"]) for row in rows] for rows in steps]
    asked = [[Example.model_validate(row["judged"]["example"]) for row in rows] for rows in steps]
    batches = iter(zip(asked, samples, strict=True))
    advantages: list[Tensor] = []

    def sampled(learner: Learner, examples: Sequence[Example], prompts: Any) -> list[Sample]:
        learner.batch = None
        expected, answers = next(batches)
        assert list(examples) == expected, "verl took other prompts than the local loop"
        return answers

    def scored(score: Any, *args: Any) -> Any:
        rollout = score(*args)
        advantages.append(rollout.advantages)
        return rollout

    policy = load_policy(PolicySettings(model=str(folder / "start")))
    examples = verl_recipe.Words(None).examples("train")
    how = settings, CreditSettings(), GenerationSettings(max_new_tokens=verl_recipe.TURN)
    with (
        mock.patch.object(Learner, "sample", sampled),
        mock.patch.object(ppo, "make_optimizers", sgd),
        mock.patch.object(ppo, "build_rollout", partial(scored, ppo.build_rollout)),
        mock.patch("text2grad.train.ppo.Probes.answers", lambda *_: ([], {})),
    ):
        ppo.train_ppo(policy, examples, verl_recipe.Vowels(), *how, RunOptions(folder / "local", "local"))
    return advantages, load_file(folder / "local" / "policy" / "model.safetensors")


def differences(folder: Path, **settings: Any) -> tuple[float, float]:
    """The largest difference of an advantage of the trainer's own batch, and of a weight after two
    steps."""
    common = {"ppo.steps": 2, "ppo.rollouts": 16, "ppo.lr": 0.5, "ppo.kl_coefficient": 0.4, **settings}
    words = [word for key, value in common.items() for word in (f"--{key}", str(value))]
    verl_recipe.train(folder, *words, more=SGD)
    steps = kept(folder, 1, 2)
    config = verl_recipe.recipe(folder, *words, more=SGD)
    advantages, weights = local(folder, steps, config.ppo)
    far = 0.0
    for rows, mine in zip(steps, advantages, strict=True):
        theirs = torch.zeros(mine.shape)
        for number, row in enumerate(rows):
            theirs[number, : len(row["advantages"])] = torch.tensor(row["advantages"])
        assert float(mine.abs().max()) > 0.5, "nothing was to be learned"
        far = max(far, float((mine - theirs).abs().max()))
    theirs_after = load_file(config.run.folder / "ppo" / "mine" / "policy" / "model.safetensors")
    start = load_file(folder / "start" / "model.safetensors")
    assert theirs_after.keys() == weights.keys()
    assert max(float((weights[name] - start[name]).abs().max()) for name in weights) > 1e-3, "no step was taken"
    return far, max(float((weights[name] - theirs_after[name]).abs().max()) for name in weights)


if __name__ == "__main__":
    sys.path.insert(0, str(verl_recipe.ROOT / "tests"))
    with TemporaryDirectory() as place:
        print(
            json.dumps(
                dict(zip(("advantage_difference", "weight_difference"), differences(Path(place)), strict=True))
            )
        )
