"""Perplexity of texts as answers to their prompts, under a named model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from text2grad.feedback import Example
from text2grad.policy.encode import check_lengths, encode_prompt, encode_target
from text2grad.policy.model import Policy


def perplexity(policy: Policy, examples: Sequence[Example], texts: Sequence[str], batch_size: int) -> float | None:
    """Return exp(mean -log p) over the tokens of all texts, each given its prompt in chat format.

    The end of the turn is left out, so that truncated texts are not penalised for it. The result is
    None if all texts are empty. Figures are comparable only under the same model.

    Raises:
        UserError: a prompt and its text are longer than the model's context.
    """
    pairs = [_encoded(policy, *pair) for pair in zip(examples, texts, strict=True) if pair[1]]
    names = [example.id for example, text in zip(examples, texts, strict=True) if text]
    check_lengths([(name, [*a, *b]) for name, (a, b) in zip(names, pairs, strict=True)], policy.context, 0)
    pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
    total, count = 0.0, 0
    with policy.evaluating():
        for start in range(0, len(pairs), batch_size):
            chunk = pairs[start : start + batch_size]
            batch = policy.pack([prompt for prompt, _ in chunk], [ids for _, ids in chunk])
            total += float(policy(batch, valued=False).logp.double().sum())
            count += int(batch.mask.sum())
    return perplexity_of(total, count)


def perplexity_of(logp: float, units: int) -> float | None:
    """Return exp(-logp / units) for the summed log-probability in nats; None without units.

    With words or bytes as units it is the word or byte perplexity of the evaluation harnesses.
    """
    return math.exp(-logp / units) if units else None


def _encoded(policy: Policy, example: Example, text: str) -> tuple[list[int], list[int]]:
    end = len(encode_target(policy.tokenizer, ""))
    ids = encode_target(policy.tokenizer, text)
    return encode_prompt(policy.tokenizer, example.prompt), ids[: len(ids) - end]
