"""Whether a model says the same with a cache and without: tried on a few tokens before it is sampled from."""

from __future__ import annotations

import torch
from torch import Tensor

from text2grad.errors import UserError
from text2grad.policy.cache import make_cache
from text2grad.policy.model import Policy

PROMPTS, ANSWERS = [[3, 1, 4, 1], [2, 7]], [[5, 9], [1, 8]]
"""Token ids on which a model is tried; the second prompt is padded."""
NEAR = 16
"""Distance allowed between two orders of computation, in roundings of the largest logit."""


def refuse_uncached(policy: Policy) -> None:
    """Refuse a model whose cached steps do not see what came before them, as state-space models' do here.

    Sampling hands over the keys and values of earlier tokens as `past_key_values`. A model that ignores them
    continues the last token alone, without an error. Two cached steps are compared with one pass over the whole.

    Raises:
        UserError: the model ignores the cache, or takes none.
    """
    kind = getattr(policy.model.config, "model_type", type(policy.model).__name__)
    cure = "take a model with attention, such as Llama, Qwen, Gemma or Mistral"
    try:
        with policy.evaluating():
            sees = _sees_its_past(policy)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"a model of type {kind!r} cannot be sampled with a cache: {reason}", cure) from error
    if not sees:
        raise UserError(f"a model of type {kind!r} ignores the cache, and would be sampled without context", cure)


def _sees_its_past(policy: Policy) -> bool:
    found, whole = _cached(policy), _whole(policy)
    noise = max(1e-3, NEAR * torch.finfo(policy.model.dtype).eps) * whole.abs().max()
    if not whole.isfinite().all() or (found - whole).abs().max() <= noise:
        return True
    # In half precision a right model may exceed that; then it is still nearer to the whole than to the last token.
    ids = torch.tensor(ANSWERS, device=policy.device).reshape(-1, 1)
    blind = policy.model(input_ids=ids, use_cache=False).logits[:, -1].float().reshape(whole.shape)
    return bool((found - whole).norm() < 0.5 * (blind - whole).norm())


def _cached(policy: Policy) -> Tensor:
    """(B, 2, V): the logits of two steps behind the prompts, by a cache, as `generate` takes them."""
    batch = policy.pack(PROMPTS, ANSWERS)
    cache = make_cache(policy.model)
    first, last = batch.input_ids.shape[1] - batch.width, batch.input_ids.shape[1]
    found = []
    for start, end in ((0, first), (first, last - 1), (last - 1, last)):
        logits = policy.model(
            input_ids=batch.input_ids[:, start:end],
            attention_mask=batch.attention_mask[:, :end],
            position_ids=batch.position_ids[:, start:end],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        found.append(logits[:, -1].float())
    return torch.stack(found[1:], dim=1)


def _whole(policy: Policy) -> Tensor:
    """(B, 2, V): the same logits, each sequence read whole and alone."""
    rows = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    ids = [torch.tensor([row], device=policy.device) for row in rows]
    return torch.cat([policy.model(input_ids=row, use_cache=False).logits[:, -2:].float() for row in ids])
