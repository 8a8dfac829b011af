"""Compare our arithmetic with TRL 0.11.4's, its last release with token rewards and a value head.

TRL 0.11.4 needs an old transformers, so the first run makes a virtual environment for it (about 1.5
GB, minutes). This script then starts itself there: `text2grad.rl` needs only torch. Methods of
TRL's PPOTrainer are called unbound, with a stand-in that holds the settings they read.

    python benchmarks/trl_equality.py [--python PATH_TO_AN_INTERPRETER_WITH_TRL] \\
        [--folder WHERE] [--cases 50]

The last line of stdout is one JSON object: the largest absolute difference per quantity over all
cases, in float64 and in float32 (as in training). Equal formulas differ only by rounding; in
float64 the variance, and values whitened by it, differ by 1e-7, because TRL's Bessel factor is a
quotient of integers in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = [
    "torch==2.13.0",
    "trl==0.11.4",
    "transformers>=4.45,<4.46",
    "accelerate>=1.0,<1.1",
    "datasets>=3.0,<3.1",
    "rich",
]
CLIP, GAMMA, LAM, KL_COEFFICIENT = 0.2, 0.97, 0.9, 0.2

Pairs = Iterator[tuple[str, Any, Any]]
"""Name of a quantity, ours, TRL's."""


def main() -> int:
    arguments = parse_arguments()
    if arguments.inside:
        print(json.dumps(compare(arguments.cases)))
        return 0
    python = arguments.python or environment(arguments.folder)
    command = [str(python), __file__, "--inside", "--cases", str(arguments.cases)]
    path = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env={**os.environ, **path}).returncode


def parse_arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="an interpreter that has TRL 0.11.4")
    parser.add_argument("--folder", type=Path, default=cache / "text2grad" / "trl-0.11.4")
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def environment(folder: Path, requirements: Sequence[str] = REQUIREMENTS) -> Path:
    """The interpreter of the virtual environment in `folder`, which is made if it is not there."""
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"making {folder} with {', '.join(requirements)}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *requirements]
        if subprocess.run(install, stdout=sys.stderr).returncode:
            sys.exit(f"pip could not install {', '.join(requirements)} in {folder}")
        ready.touch()
    return python


# From here on everything runs in TRL's environment ------------------------------------------------


class Case(NamedTuple):
    """A random update batch: logits (B, T, V), the rest (B, T) or (B,); responses are
    right-padded."""

    logits: Tensor
    ref_logits: Tensor
    old_logp: Tensor
    ids: Tensor
    scores: Tensor
    values: Tensor
    old_values: Tensor
    mask: Tensor


def compare(cases: int) -> dict[str, Any]:
    """The largest absolute difference per quantity over `cases` random batches."""
    import torch
    import trl

    largest: dict[str, dict[str, float]] = {"float64": {}, "float32": {}}
    for dtype, worst in largest.items():
        for seed in range(cases):
            for name, ours, theirs in quantities(draw(seed, getattr(torch, dtype))):
                pair = (torch.as_tensor(side, dtype=torch.float64) for side in (ours, theirs))
                worst[name] = max(worst.get(name, 0.0), torch.sub(*pair).abs().max().item())
    return {
        "max_abs_difference": largest["float64"],
        "max_abs_difference_float32": largest["float32"],
        "cases": cases,
        "trl": trl.__version__,
        "torch": torch.__version__,
    }


def draw(seed: int, dtype: Any) -> Case:
    """A batch of 6 responses of 2 to 24 tokens over 50 words; the old policy lies a little beside
    the new."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    batch, length, words = 6, 24, 50
    lengths = torch.randint(2, length + 1, (batch, 1), generator=generator)
    logits = 2 * normal(batch, length, words)
    ids = torch.randint(0, words, (batch, length), generator=generator)
    logp = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    values = normal(batch, length)
    return Case(
        logits,
        logits + 0.3 * normal(batch, length, words),
        logp + 0.3 * normal(batch, length),
        ids,
        normal(batch),
        values,
        values + 0.3 * normal(batch, length),
        torch.arange(length) < lengths,
    )


def quantities(case: Case) -> Pairs:
    """Every quantity both sides compute."""
    yield from statistics(case)
    yield from log_probabilities(case)
    yield from rewards_and_advantages(case)
    yield from losses(case)


def statistics(case: Case) -> Pairs:
    from trl.core import masked_mean, masked_var, masked_whiten
    from trl.trainer.utils import AdaptiveKLController

    from text2grad.rl import advantage

    x, mask = case.values, case.mask
    yield "masked_mean", advantage.masked_mean(x, mask), masked_mean(x, mask)
    yield "masked_var", advantage.masked_var(x, mask), masked_var(x, mask)
    yield "whiten", advantage.normalise(x, mask, "whiten"), masked_whiten(x, mask) * mask
    controller = AdaptiveKLController(KL_COEFFICIENT, 6.0, 10_000)
    ours = KL_COEFFICIENT
    for observed in (6 + 3 * case.scores).tolist():
        controller.update(observed, 64)
        ours = advantage.adaptive_kl(ours, observed, 6.0, 10_000, 64)
        yield "kl_coefficient", ours, controller.value


def log_probabilities(case: Case) -> Pairs:
    from trl.core import entropy_from_logits, logprobs_from_logits

    from text2grad.rl import advantage

    yield "logp", advantage.token_logps(case.logits, case.ids), logprobs_from_logits(case.logits, case.ids)
    yield "entropy", advantage.entropy(case.logits), entropy_from_logits(case.logits)


def trainer(kl_penalty: str = "full") -> Any:
    """Return a stand-in with the attributes that PPOTrainer's methods read."""
    from trl import PPOTrainer

    config = SimpleNamespace(
        kl_penalty=kl_penalty,
        whiten_rewards=False,
        gamma=GAMMA,
        lam=LAM,
        cliprange=CLIP,
        cliprange_value=CLIP,
        vf_coef=0.1,
        ratio_threshold=1e9,
    )
    stand_in = SimpleNamespace(config=config, kl_ctl=SimpleNamespace(value=KL_COEFFICIENT))
    for name in ("_kl_penalty", "compute_rewards", "compute_advantages", "loss"):
        setattr(stand_in, name, partial(getattr(PPOTrainer, name), stand_in))
    return stand_in


def rewards_and_advantages(case: Case) -> Pairs:
    """Scalar PPO: the score on the last token, minus the KL; `full` and `k1`."""
    import torch

    from text2grad.rl import advantage

    mask, zeros = case.mask, torch.zeros_like(case.scores)
    log_p, log_ref = case.logits.log_softmax(-1), case.ref_logits.log_softmax(-1)
    logp, ref_logp = (advantage.token_logps(logits, case.ids) for logits in (case.logits, case.ref_logits))
    last = mask.sum(1, keepdim=True) - 1
    delta = torch.zeros_like(case.values).scatter(1, last, case.scores[:, None])
    for name, kl, theirs in (
        ("kl_full", advantage.kl_full(case.logits, case.ref_logits), (log_p, log_ref)),
        ("kl_k1", advantage.kl_k1(logp, ref_logp), (logp, ref_logp)),
    ):
        trl = trainer("full" if name == "kl_full" else "kl")
        their_rewards, _, their_kl = trl.compute_rewards(case.scores, *theirs, mask)
        rewards = advantage.token_rewards(delta, kl, KL_COEFFICIENT, mask)
        yield name, kl, their_kl
        yield "rewards", rewards, their_rewards * mask
        _, their_advantages, their_returns = trl.compute_advantages(case.values, their_rewards, mask)
        advantages, returns = advantage.gae(rewards, case.values, mask, GAMMA, LAM, zeros)
        yield "advantages", advantage.normalise(advantages, mask, "whiten"), their_advantages * mask
        yield "returns", returns, their_returns * mask


def losses(case: Case) -> Pairs:
    """The clipped losses, the clip fraction, and the gradients by log-probability and by value."""
    import torch

    from text2grad.rl import advantage, loss

    logp = advantage.token_logps(case.logits, case.ids).requires_grad_()
    values, mask = case.values.clone().requires_grad_(), case.mask
    advantages, returns = case.ref_logits[..., 0], case.ref_logits[..., 1]
    count = float(mask.sum())
    per_token, clipped = loss.policy_loss(logp, case.old_logp, advantages, mask, CLIP)
    policy = loss.average(per_token, mask, count)
    value = loss.average(loss.value_loss(values, case.old_values, returns, CLIP), mask, count)
    their_policy, their_scaled_value, stats = trainer().loss(
        case.old_logp, case.old_values, case.logits, values, logp, mask, advantages, returns
    )
    yield "policy_loss", policy.detach(), their_policy.detach()
    yield "value_loss", value.detach(), stats["loss/value"]
    yield "clip_fraction", advantage.masked_mean(clipped.float(), mask), stats["policy/clipfrac"]
    yield "mean_entropy", advantage.masked_mean(advantage.entropy(case.logits), mask), stats["policy/entropy"]
    ours = torch.autograd.grad(policy + 0.1 * value, [logp, values])
    theirs = torch.autograd.grad(their_policy + their_scaled_value, [logp, values])
    yield "policy_gradient", ours[0], theirs[0]
    yield "value_gradient", ours[1], theirs[1]


if __name__ == "__main__":
    sys.exit(main())
