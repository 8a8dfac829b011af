"""Responses of a policy: the ids that were sampled, and the text read off them."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.align import TokenTable
from text2grad.durable.progress import counting
from text2grad.feedback import Example
from text2grad.policy.encode import encode_prompts
from text2grad.policy.generate import generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings

TOKEN_IDS = "token_ids"


def sample(
    policy: Policy, examples: Sequence[Example], generation: GenerationSettings
) -> list[tuple[list[int], str]]:
    """One response per example: the sampled ids, and the text read off them. What takes long says how far it is."""
    table = TokenTable(policy.tokenizer)
    prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
    sampled = generate(policy, prompts, generation, told=counting("sampling")(len(prompts)))
    return [(item.ids, table.align(item.ids).text) for item in sampled]
