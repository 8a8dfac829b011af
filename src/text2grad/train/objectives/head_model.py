"""A scalar reward model: which of two answers is better, read off a head (paper, appendix N).

A supervised run (`train.supervised`) of a policy with a head, read at the last token of an answer. The scores have
the loss of Bradley and Terry, and batches count pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from text2grad.durable.run import RunOptions
from text2grad.feedback import Preference
from text2grad.policy.heads.model import read_scores
from text2grad.policy.model import Policy
from text2grad.train.objectives.preference import EncodedPreference, Rewards, train_on_pairs
from text2grad.train.settings import SupervisedSettings

SECTION = "scalar_model.training"
"""Where the user finds the settings."""


def train_scalar_model(
    policy: Policy, pairs: Sequence[Preference], settings: SupervisedSettings, options: RunOptions
) -> dict[str, float]:
    """Make `policy` a scalar reward model, in place: a head on the state of an answer's last token.

    Otherwise as `train.objectives.preference.train_dpo`.
    """
    head = policy.add_head("score_head")
    return train_on_pairs(policy, pairs, partial(scored, policy), settings, options, SECTION, [head])


def scored(policy: Policy, items: Sequence[EncodedPreference]) -> Rewards:
    """The scores of a scalar reward model, (N,) of the chosen answers and (N,) of the rejected ones."""
    answers = [item.chosen for item in items] + [item.rejected for item in items]
    chosen, rejected = read_scores(policy, [item.prompt for item in items] * 2, answers).chunk(2)
    return chosen, rejected
