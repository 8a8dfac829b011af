"""Policies that are kept while a run goes on."""

from __future__ import annotations

from pathlib import Path

from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep, save_policy
from text2grad.policy.model import Policy
from text2grad.policy.shard import assembled


def kept_policies(every: int | None, policy: Policy, folder: Path, ranks: Ranks) -> OnStep | None:
    """Write the policy every so many steps (`ppo.keep_every`): `folder/<its name>-step-<steps>`, which `evaluate`
    takes as any other policy. All processes must call it; the first writes."""
    if every is None:
        return None

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if (step + 1) % every == 0:
            whole = assembled(policy, keep=ranks.first)
            with ranks.barrier():
                if whole is not None:
                    save_policy(whole, folder / f"{folder.name}-step-{step + 1}")

    return on_step
