"""Learning from pairs of answers (paper, appendix N): DPO, and what a scalar reward model has in common with it.

Both are supervised runs (`train.supervised`) with the loss of Bradley and Terry: on the rewards that the policy
implies beside its reference, or on the scores of a head (`train.objectives.head_model`). Dropout is off, so that
both answers and the reference are read by one model. Batches count pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from text2grad.durable.identity import digest_of_data
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Preference, conversation_of, record_json
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import TEMPLATE
from text2grad.policy.episode import encode_turns
from text2grad.policy.heads.head import Head
from text2grad.policy.model import Policy
from text2grad.rl.preference import implicit_rewards, pair_accuracy, pair_loss
from text2grad.train.pairs import plan_batches, refuse_long, supervised_identity
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import DPOSettings, SupervisedSettings
from text2grad.train.supervised import Objective, descend, in_words, refuse_nothing

SECTION = "dpo.training"
"""Where the user finds the settings of DPO."""

Rewards = tuple[Tensor, Tensor]
"""Of the chosen answers and of the rejected ones, (N,) each."""


@dataclass(frozen=True)
class EncodedPreference:
    """A pair as token ids; both answers end with the end of their turn.

    `masks`: which tokens of the chosen and of the rejected answer are the policy's; None: all of them.
    """

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    masks: tuple[list[bool] | None, list[bool] | None] = (None, None)

    @property
    def whole(self) -> list[int]:
        """The longer of the two sequences."""
        return [*self.prompt, *max(self.chosen, self.rejected, key=len)]

    @property
    def tokens(self) -> int:
        """Of both sequences."""
        return 2 * len(self.prompt) + len(self.chosen) + len(self.rejected)

    @property
    def parts(self) -> dict[str, list[int]]:
        """The prompt and both answers by name."""
        return {"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected}


RewardsOf = Callable[[Sequence[EncodedPreference]], Rewards]


class PairReading(NamedTuple):
    """What a trained policy makes of pairs: rewards of the answers in their order, and its distance from its start.

    `kl`: KL(policy || reference) over the whole vocabulary, mean over the tokens of all these answers.
    """

    chosen: list[float]
    rejected: list[float]
    kl: float


def train_dpo(
    policy: Policy, pairs: Sequence[Preference], settings: DPOSettings, options: RunOptions
) -> dict[str, float]:
    """Direct preference optimisation of `policy`, in place; its reference is the policy it starts from.

    Writes the policy to the run's folder, and resumes an unfinished run there, bit for bit on one CPU. Each of
    several processes calls this with the same arguments. Returns the last metrics, means over the pairs of a batch:
    `loss`, `accuracy`, and of the rewards that the policy implies `chosen_reward`, `rejected_reward` and `margin`.

    Raises:
        UserError: there is nothing to train on, a pair does not fit the context, the loss is not finite, or what
            `durable.run.Run` refuses.
    """
    policy.freeze_reference()
    rewards = partial(implied_rewards, policy, beta=settings.beta)
    beta = {"dpo.beta": str(settings.beta)}
    metrics = train_on_pairs(policy, pairs, rewards, settings.training, options, SECTION, identity=beta)
    policy.continued = True
    return metrics


def train_on_pairs(
    policy: Policy,
    pairs: Sequence[Preference],
    rewards: RewardsOf,
    settings: SupervisedSettings,
    options: RunOptions,
    section: str,
    heads: Sequence[Head] = (),
    identity: dict[str, str] | None = None,
) -> dict[str, float]:
    """Train on the loss of Bradley and Terry of some rewards, as `train_dpo` does."""
    refuse_nothing(pairs, options)
    sides = (text for pair in pairs for text in (pair.chosen, pair.rejected))
    answers = itertools.chain.from_iterable(map(conversation_of, sides))
    prompts = itertools.chain.from_iterable(pair.prompt for pair in pairs)
    data = digest_of_data(policy, map(record_json, pairs), itertools.chain(prompts, answers))
    objective = Objective[EncodedPreference](
        identity=supervised_identity(policy, settings, section, {"the preference pairs": data, **(identity or {})}),
        gradient=partial(accumulate_gradient, policy, rewards),
        described=partial(in_words, policy, lambda item: pair_loss(*rewards([item]))),
        dropout=False,
        heads=heads,
    )
    encoded = encode_preferences(policy, pairs)
    refuse_long(policy, [pair.id for pair in pairs], encoded)
    batches = list(plan_batches(encoded, settings, options.seed))
    return descend(policy, batches, objective, settings, options, section)


def encode_preferences(policy: Policy, pairs: Sequence[Preference]) -> list[EncodedPreference]:
    """Token ids of all pairs; nothing is cut.

    Raises:
        UserError: the chat template rewrites earlier turns, so that the answers follow different prompts.
    """
    found = []
    for pair in pairs:
        chosen, rejected = (
            encode_turns(policy.tokenizer, pair.prompt, text) for text in (pair.chosen, pair.rejected)
        )
        if chosen.prompt != rejected.prompt:
            raise UserError(
                f"{pair.id}: the chat template rewrites earlier turns, so its two transcripts share no prompt",
                f"{TEMPLATE}, one that leaves earlier turns as they are",
            )
        found.append(EncodedPreference(chosen.prompt, chosen.ids, rejected.ids, (chosen.mask, rejected.mask)))
    return found


def implied_rewards(policy: Policy, items: Sequence[EncodedPreference], beta: float) -> Rewards:
    """beta times the log-ratio of each answer to its frozen reference."""
    batch = _packed(policy, items)
    out = policy(batch, kl="k1", valued=False)
    assert out.kl is not None  # log pi - log pi_ref of each token
    chosen, rejected = implicit_rewards(out.kl, batch.mask, beta).chunk(2)
    return chosen, rejected


def _packed(policy: Policy, items: Sequence[EncodedPreference]) -> TokenBatch:
    """All chosen answers, then all rejected ones."""
    prompts = [item.prompt for item in items]
    answers = [item.chosen for item in items] + [item.rejected for item in items]
    masks = [item.masks[0] for item in items] + [item.masks[1] for item in items]
    return policy.pack(prompts * 2, answers, masks)


def accumulate_gradient(
    policy: Policy, rewards: RewardsOf, batch: Sequence[EncodedPreference], size: PassSize
) -> dict[str, float]:
    """Add the gradient of the mean loss of a batch of pairs; returns its metrics. Similar lengths share a pass."""

    def terms(items: Sequence[EncodedPreference]) -> tuple[Tensor, dict[str, Tensor]]:
        chosen, rejected = rewards(items)  # (N,) each
        sums = {
            "loss": pair_loss(chosen, rejected),
            "accuracy": pair_accuracy(chosen, rejected),
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "margin": chosen - rejected,
        }
        shares = {name: each.sum() / len(batch) for name, each in sums.items()}
        return shares["loss"], shares

    return accumulate(policy, sorted(batch, key=lambda item: item.tokens), terms, size)


def read_preferences(policy: Policy, encoded: Sequence[EncodedPreference], beta: float, size: int) -> PairReading:
    """What a policy trained by `train_dpo` makes of pairs, `size` at a time, without training."""
    chosen: list[float] = []
    rejected: list[float] = []
    kl, tokens = 0.0, 0
    with policy.evaluating():
        for start in range(0, len(encoded), size):
            items = encoded[start : start + size]
            for kept, rewards in zip((chosen, rejected), implied_rewards(policy, items, beta), strict=True):
                kept += rewards.tolist()
            batch = _packed(policy, items)
            # The exact KL (2n, T): k1 is an estimate only on answers that the policy sampled.
            out = policy(batch, kl="full", valued=False)
            assert out.kl is not None
            kl += float(out.kl.sum())
            tokens += int(batch.mask.sum())
    return PairReading(chosen, rejected, kl / max(tokens, 1))
