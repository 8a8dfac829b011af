"""Compare our GRPO loss with TRL 1.16's on the same random tensors.

TRL need not be installed, only importable: the methods of its trainers that compute a loss are
called unbound, with a stand-in that holds the settings they read.

    pip install --no-deps --target /somewhere/trl trl==1.16.0
    python benchmarks/trl_losses.py --trl /somewhere/trl [--cases 50]

The last line of stdout is one JSON object: the largest absolute difference over all cases, in
float64, of each loss and of its gradient with respect to the model's outputs (log-probabilities,
scores); for GRPO also with truncated answers masked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from text2grad.rl import advantage as adv
from text2grad.rl import loss as losses

CLIP, CLIP_HIGH, GROUP, BETA = 0.2, 0.28, 8, 0.1


class Pair(NamedTuple):
    """Our loss, TRL's, and what both are a function of."""

    ours: Tensor
    theirs: Tensor
    inputs: Tensor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, help="a folder that holds TRL 1.16, if it is not installed")
    parser.add_argument("--cases", type=int, default=50)
    arguments = parser.parse_args()
    if arguments.trl:
        sys.path.append(str(arguments.trl))
    import trl

    worst: dict[str, float] = defaultdict(float)
    for seed in range(arguments.cases):
        for name, (ours, theirs) in compare(seed).items():
            worst[name] = max(worst[name], float((ours - theirs).detach().abs().max()))
    print(json.dumps({"max_abs_difference": worst, "cases": arguments.cases, "trl": trl.__version__}))
    return 0


def compare(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Ours and TRL's of every quantity."""
    losses_of = {
        "grpo": grpo(seed, masked=False),
        "grpo_truncated": grpo(seed, masked=True),
    }
    results = {}
    for name, (ours, theirs, inputs) in losses_of.items():
        (ours_gradient,), (other,) = (torch.autograd.grad(each, inputs) for each in (ours, theirs))
        results |= {f"{name}_loss": (ours, theirs), f"{name}_gradient": (ours_gradient, other)}
    return results


def grpo(seed: int, masked: bool) -> Pair:
    """24 answers to three prompts, scored at random."""
    generator = torch.Generator().manual_seed(seed)
    old, move = torch.randn(2, 24, 16, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 17, (24, 1), generator=generator)
    scores = torch.randint(-1, 2, (24,), generator=generator).double()
    mask = torch.arange(16) < lengths
    logp = (old + 0.3 * move).requires_grad_()
    gained = adv.group_advantages(scores, torch.zeros_like(old), mask, GROUP)
    selected = mask & (torch.rand(24, 1, generator=generator) > 0.3) if masked else mask
    per_token, _ = losses.policy_loss(logp, old, gained, selected, CLIP, CLIP_HIGH)
    ours = losses.average(per_token, selected, float(selected.sum()))
    return Pair(ours, trl_grpo(logp, old, gained[:, 0], selected), logp)


def trl_grpo(logp: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return TRL's loss for these log-probabilities, with the token mean of DAPO."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        args=SimpleNamespace(delta=None, steps_per_generation=1),
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        loss_type="dapo",
        importance_sampling_level="token",
        epsilon_low=CLIP,
        epsilon_high=CLIP_HIGH,
        beta=0.0,
        top_entropy_quantile=1.0,
        current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)},
    )
    off = ("off_policy_mask_threshold",)
    no = ("use_vllm", "_entropy_bonus_enabled", "aux_loss_enabled")
    vars(trainer).update(dict.fromkeys(off), **dict.fromkeys(no, False))
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs: dict[str, Any] = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "num_items_in_batch": mask.sum(),
    }
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


if __name__ == "__main__":
    sys.exit(main())
