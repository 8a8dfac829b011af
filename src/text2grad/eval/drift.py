"""Entropy, KL and perplexity of a trained policy against another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from text2grad.errors import UserError
from text2grad.policy.model import Policy
from text2grad.rl.vocabulary import score_tokens


def drift(
    policy: Policy,
    reference: Policy,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    temperature: float,
    batch_size: int,
    progress: Callable[[float], None] = lambda count: None,
) -> dict[str, float]:
    """Two policies on the answers of the first, given as ids; `batch_size` answers a pass; means over tokens.

    Returns:
        `entropy`: of the policy at `temperature`, nats; `kl`: from the reference at `temperature`, over the whole
        vocabulary, nats; `reference_perplexity`: exp of the mean -log p of the tokens under the reference, at
        temperature 1.

    Raises:
        UserError: the reference has another vocabulary.
    """
    if policy.tokenizer.get_vocab() != reference.tokenizer.get_vocab():
        raise UserError(
            "the reference has another vocabulary", "evaluate.reference: what the policy was trained from"
        )
    batch = policy.pack(prompts, answers)
    sums = torch.zeros(3, dtype=torch.float64)
    with policy.evaluating(), reference.evaluating():
        for rows in batch.passes(torch.arange(len(answers), device=policy.device), batch_size):
            part = batch.rows(rows).trimmed()
            ids = part.response_ids[part.mask]
            own, other = (each.reader(each.model, part).view for each in (policy, reference))
            scores = score_tokens(own, ids, temperature, entropy=True, reference=other)
            columns = (scores.entropy, scores.kl, score_tokens(other, ids).logp)
            progress(float(rows[-1]) + 1)
            sums += torch.stack([column.double().sum().cpu() for column in columns if column is not None])
    entropy, kl, logp = (sums / max(1, int(batch.mask.sum()))).tolist()
    return {"entropy": entropy, "kl": kl, "reference_perplexity": math.exp(-logp)}
