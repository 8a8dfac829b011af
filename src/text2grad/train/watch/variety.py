"""Whether the answers to a prompt differ, so that there is something to compare."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep
from text2grad.errors import UserError
from text2grad.train.ppo_settings import PPOSettings

LEAST_ENTROPY = 0.05
"""Nats a token below which a policy whose answers to a prompt are all the same will hardly ever write another."""


def variety_watched(settings: PPOSettings, ranks: Ranks) -> OnStep:
    """What looks at the answers of the first step: where those to a prompt are all the same, nothing is compared.

    Raises:
        UserError: they are the same because the policy is sure of every token, so that no step would change it.
    """

    def look(step: int, metrics: dict[str, float]) -> None:
        words = says_one_thing(metrics, settings.samples_per_prompt) if step == 0 else ""
        if words and metrics["entropy"] < LEAST_ENTROPY:
            cure = "text2grad sft --restart --sft.least_loss 0.3 ends earlier, or keep the policy that there is"
            raise UserError(f"{words}: there is nothing to compare, and training would change nothing", cure)
        if words and ranks.first:
            print(f"{words}: there is little to compare (--generation.temperature)", file=sys.stderr)

    return look


def says_one_thing(metrics: Mapping[str, float], answers: int) -> str:
    """That all answers to each prompt of a step are the same, or, with one to each, that the policy is sure of it.

    Empty where neither is so.
    """
    entropy = f"entropy {metrics['entropy']:.3f} nats a token"
    if "same_answers" not in metrics:
        sure = metrics["entropy"] < LEAST_ENTROPY / 5
        return f"the policy has one answer to each prompt ({entropy})" if sure else ""
    same = metrics["same_answers"] == 1
    return f"all {answers} answers to each prompt are the same ({entropy})" if same else ""
