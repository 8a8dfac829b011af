"""Traces of verifiers with credit for words, for the trainers that read `MessageNode.advantages`
(prime-rl).

For an algorithm's `assign`, which is handed the finished rollouts of one prompt:

    outcomes = assign_credit(traces, credit)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from text2grad.align.rewards import ScoredTrajectory, TokenCredit
from text2grad.plugins.credit import advantages_apart, example_of, refuse_without_ids, require


def assign_credit(
    traces: Sequence[Any], credit: TokenCredit, *, words_weight: float = 1.0, environment_weight: float = 0.0
) -> list[ScoredTrajectory]:
    """Write the advantages of the traces that answer one prompt, and return what the critic gave
    each trace.

    `environment_weight` mixes in the environment's own reward (`trace.reward`), `words_weight`
    multiplies the rewards of words.

    The layout is verifiers' compact one, a number for each id that was sampled. A node that several
    branches share is paid once. Where the critique failed, nodes have None, which is no credit of
    0: they are not trained on. If `environment_weight` is not 0, so do those of a trace that the
    environment did not score. The critic's example is the messages before the first sampled one,
    and the task's data.

    Raises:
        UserError: verifiers is missing or of another version, a sampled node has no ids, a mask
            does not fit its ids (verifiers would pad or cut in silence), or the ids are of another
            tokenizer.
    """
    require("verifiers", "0.4", "pip install verifiers==0.4.0")
    refuse_without_ids(node.token_ids for trace in traces for node in trace.nodes if node.sampled)
    examples, pieces = [], [[(node.token_ids, node.mask) for node in trace.nodes] for trace in traces]
    for trace in traces:
        first = next((at for at, node in enumerate(trace.nodes) if node.sampled), None)
        prompt = [node.message.model_dump() for node in trace.nodes[:first]]
        examples.append(example_of(prompt, trace.task.data.model_dump()))
    rewards = [_own_reward(trace) for trace in traces] if environment_weight else None
    group = [0] * len(traces)
    outcomes, paid = advantages_apart(credit, group, examples, pieces, rewards, words_weight, environment_weight)
    for trace, each in zip(traces, paid, strict=True):
        for node, numbers in zip(trace.nodes, each, strict=True):
            own = np.asarray(node.mask, dtype=bool)
            node.advantages = None if numbers is None or not own.any() else numbers[own].tolist()
    return outcomes


def _own_reward(trace: Any) -> float | None:
    """Return the environment's reward of a trace; None where a part of it is missing."""
    parts = trace.rewards.values()
    return float(trace.reward) if parts and None not in parts else None
