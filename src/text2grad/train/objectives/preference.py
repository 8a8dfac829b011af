"""Learning from pairs of answers (paper, appendix N): DPO, and a scalar reward model.

Both are supervised runs (`train.supervised`) with the loss of Bradley and Terry: on the rewards that the policy
implies beside its reference, or on the scores of a linear head. Dropout is off, so that both answers and the
reference are read by one model. Batches count pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from text2grad.durable.identity import digest_of_reference, digest_of_texts, flatten
from text2grad.durable.run import RunOptions
from text2grad.feedback import Message, Preference, record_json
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import check_lengths, encode_prompt, encode_target, rendering_of
from text2grad.policy.model import Policy
from text2grad.rl.preference import implicit_rewards, pair_accuracy, pair_loss
from text2grad.train.pairs import plan_batches
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import DPOSettings, SupervisedSettings
from text2grad.train.supervised import Objective, descend, longest, refuse_muon, refuse_nothing

DPO, SCALAR_MODEL = "dpo.training", "scalar_model.training"
"""Where the user finds the settings of the two loops."""

Rewards = tuple[Tensor, Tensor]
"""Of the chosen answers and of the rejected ones, (N,) each."""


@dataclass(frozen=True)
class EncodedPreference:
    """A pair as token ids; both answers end with the end of their turn."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]

    @property
    def longer(self) -> list[int]:
        """The longer of the two sequences."""
        return [*self.prompt, *max(self.chosen, self.rejected, key=len)]

    @property
    def tokens(self) -> int:
        """Of both sequences."""
        return 2 * len(self.prompt) + len(self.chosen) + len(self.rejected)


RewardsOf = Callable[[Sequence[EncodedPreference]], Rewards]
PairObjective = Objective[EncodedPreference]


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
    objective = PairObjective(
        identity=identity_of(policy, pairs, settings.training, DPO) | {"dpo.beta": str(settings.beta)},
        gradient=partial(accumulate_gradient, policy, partial(implied_rewards, policy, beta=settings.beta)),
        described=partial(_described, policy, partial(implied_rewards, policy, beta=settings.beta)),
        dropout=False,
    )
    metrics = _descend(policy, pairs, objective, settings.training, options, DPO)
    policy.continued = True
    return metrics


def train_scalar_model(
    policy: Policy, pairs: Sequence[Preference], settings: SupervisedSettings, options: RunOptions
) -> dict[str, float]:
    """Make `policy` a scalar reward model, in place: a linear head on the state of an answer's last token.

    Otherwise as `train_dpo`.
    """
    refuse_muon(settings, options, SCALAR_MODEL)
    objective = PairObjective(
        identity=identity_of(policy, pairs, settings, SCALAR_MODEL),
        gradient=partial(accumulate_gradient, policy, partial(scored, policy)),
        described=partial(_described, policy, partial(scored, policy)),
        dropout=False,
        heads=[policy.add_score_head()],
    )
    return _descend(policy, pairs, objective, settings, options, SCALAR_MODEL)


def _descend(
    policy: Policy,
    pairs: Sequence[Preference],
    objective: PairObjective,
    settings: SupervisedSettings,
    options: RunOptions,
    section: str,
) -> dict[str, float]:
    refuse_nothing(pairs, options)
    encoded = encode_preferences(policy, pairs)
    limit = longest(policy, settings)
    check_lengths([(pair.id, item.longer) for pair, item in zip(pairs, encoded, strict=True)], limit, 0)
    batches = list(plan_batches(encoded, settings, options.seed))
    return descend(policy, batches, objective, settings, options, section)


def identity_of(
    policy: Policy, pairs: Sequence[Preference], settings: SupervisedSettings, section: str
) -> dict[str, str]:
    """What a run depends on, by name; large things as digests."""
    answers = (Message(role="assistant", content=text) for pair in pairs for text in (pair.chosen, pair.rejected))
    asked = itertools.chain.from_iterable(pair.prompt for pair in pairs)
    said = rendering_of(policy.tokenizer, itertools.chain(asked, answers))
    return {
        **flatten({f"{section}.checkpoint_every"}, **{section: settings}),
        "the starting model": digest_of_reference(policy),
        "the preference pairs": digest_of_texts([*map(record_json, pairs), *said]),
    }


def encode_preferences(policy: Policy, pairs: Sequence[Preference]) -> list[EncodedPreference]:
    """Token ids of all pairs; nothing is cut."""
    tokenizer = policy.tokenizer
    return [
        EncodedPreference(
            encode_prompt(tokenizer, pair.prompt),
            encode_target(tokenizer, pair.chosen),
            encode_target(tokenizer, pair.rejected),
        )
        for pair in pairs
    ]


def implied_rewards(policy: Policy, items: Sequence[EncodedPreference], beta: float) -> Rewards:
    """beta times the log-ratio of each answer to its frozen reference."""
    batch = _packed(policy, items)
    out = policy(batch, kl="k1", valued=False)
    assert out.kl is not None  # log pi - log pi_ref of each token
    chosen, rejected = implicit_rewards(out.kl, batch.mask, beta).chunk(2)
    return chosen, rejected


def scored(policy: Policy, items: Sequence[EncodedPreference]) -> Rewards:
    """The scores of a scalar reward model."""
    chosen, rejected = policy.scores(_packed(policy, items)).chunk(2)
    return chosen, rejected


def _packed(policy: Policy, items: Sequence[EncodedPreference]) -> TokenBatch:
    """All chosen answers, then all rejected ones."""
    prompts = [item.prompt for item in items]
    return policy.pack(prompts * 2, [item.chosen for item in items] + [item.rejected for item in items])


def accumulate_gradient(
    policy: Policy, rewards: RewardsOf, batch: Sequence[EncodedPreference], size: PassSize
) -> dict[str, float]:
    """Add the gradient of the mean loss of a batch of pairs; returns its metrics. Similar lengths share a pass."""

    def terms(items: Sequence[EncodedPreference]) -> tuple[Tensor, dict[str, Tensor]]:
        chosen, rejected = rewards(items)
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


def _described(
    policy: Policy, rewards: RewardsOf, step: int, batch: Sequence[EncodedPreference]
) -> Iterator[dict[str, Any]]:
    """Each pair of a batch in words, with its loss under the present weights; None: it is not finite."""
    decode = policy.tokenizer.decode
    for item in batch:
        with policy.evaluating():
            loss = float(pair_loss(*rewards([item])))
        words = {"prompt": item.prompt, "chosen": item.chosen, "rejected": item.rejected}
        texts = {name: decode(ids) for name, ids in words.items()}
        yield {"step": step, "loss": loss if math.isfinite(loss) else None, **texts}


def read_preferences(policy: Policy, encoded: Sequence[EncodedPreference], beta: float, size: int) -> PairReading:
    """What a policy trained by `train_dpo` makes of pairs, `size` at a time, without training."""
    chosen: list[float] = []
    rejected: list[float] = []
    kl, tokens = 0.0, 0
    with policy.evaluating():
        for start in range(0, len(encoded), size):
            items = encoded[start : start + size]
            for kept, found in zip((chosen, rejected), implied_rewards(policy, items, beta), strict=True):
                kept += found.tolist()
            batch = _packed(policy, items)
            out = policy(batch, kl="full", valued=False)
            assert out.kl is not None
            kl += float(out.kl.sum())
            tokens += int(batch.mask.sum())
    return PairReading(chosen, rejected, kl / max(tokens, 1))
