"""Add credit for words to traces of verifiers, for trainers that read `MessageNode.advantages`.

prime-rl is one. Call it in an algorithm's `assign`, which receives the rollouts of one prompt:

    outcomes = assign_credit(traces, credit)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from text2grad.align.rewards import ScoredTrajectory, TokenCredit
from text2grad.plugins.credit import make_example, piece_advantages, refuse_without_ids, require


def assign_credit(
    traces: Sequence[Any], credit: TokenCredit, *, words_weight: float = 1.0, environment_weight: float = 0.0
) -> list[ScoredTrajectory]:
    """Write the advantages of the traces that answer one prompt; return the critic's results.

    The layout is verifiers' compact one, a number for each sampled id. A node that several branches
    share is paid once. Nodes get None, which excludes them from training, where the critique failed
    or where `environment_weight` is not 0 and the environment gave no reward. The critic's example
    has the messages before the first sampled one as its prompt, and the task's data as its `meta`.

    Args:
        words_weight: factor on word rewards.
        environment_weight: factor on the environment's reward (`trace.reward`).

    Raises:
        UserError: verifiers is missing or of another version, a sampled node has no ids, a mask
            does not fit its ids (verifiers would silently pad or truncate), or the ids belong to
            another tokenizer.
    """
    require("verifiers", "0.4", "pip install verifiers==0.4.0")
    refuse_without_ids(node.token_ids for trace in traces for node in trace.nodes if node.sampled)
    examples, pieces = [], [[(node.token_ids, node.mask) for node in trace.nodes] for trace in traces]
    for trace in traces:
        first = next((at for at, node in enumerate(trace.nodes) if node.sampled), None)
        prompt = [node.message.model_dump() for node in trace.nodes[:first]]
        examples.append(make_example(prompt, trace.task.data.model_dump()))
    rewards = [_environment_reward(trace) for trace in traces] if environment_weight else None
    groups = [0] * len(traces)
    outcomes, advantages = piece_advantages(
        credit, groups, examples, pieces, rewards, words_weight, environment_weight
    )
    for trace, trace_advantages in zip(traces, advantages, strict=True):
        for node, numbers in zip(trace.nodes, trace_advantages, strict=True):
            mask = np.asarray(node.mask, dtype=bool)
            node.advantages = None if numbers is None or not mask.any() else numbers[mask].tolist()
    return outcomes


def _environment_reward(trace: Any) -> float | None:
    """Return the environment's reward of a trace; None if a part of it is missing."""
    parts = trace.rewards.values()
    return float(trace.reward) if parts and None not in parts else None
