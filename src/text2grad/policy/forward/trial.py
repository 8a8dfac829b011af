"""Whether a model gives the same logits with a cache and without, tested before it is sampled from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from text2grad.errors import UserError
from text2grad.policy.forward.cache import make_cache
from text2grad.policy.model import Policy

PROMPTS, ANSWERS = ("When is the report due?", "Name a colour."), ("It is due on Friday.", "Blue is one.")
"""What a model is tested on: on ids that are no text, half precision is too coarse."""
LONGEST = 12
"""Tokens of a prompt; two of each answer are read by the cache."""
NEAR = 16
"""Distance allowed between two orders of computation, in roundings of the largest logit."""


class Trial(NamedTuple):
    """Token ids of two prompts, of which the second is padded, and two of each answer."""

    prompts: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]


def refuse_uncached(policy: Policy) -> None:
    """Refuse a model that ignores the cache, as state-space models do here.

    Sampling passes the keys and values of earlier tokens as `past_key_values`. A model that ignores them continues
    from the last token alone, without an error. Two cached steps are compared with one pass over the whole.

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


def _trial(policy: Policy) -> Trial:
    known = policy.model.get_input_embeddings().weight.shape[0]
    room = min(LONGEST, (policy.context or LONGEST + 2) - 2)

    def read(text: str) -> list[int]:
        ids = [int(i) for i in policy.tokenizer(text, add_special_tokens=False)["input_ids"] if i < known]
        return ids or [0]

    first, second = (read(text)[:room] for text in PROMPTS)
    return Trial((first, second[: max(1, len(first) - 1)]), [(read(text) * 2)[:2] for text in ANSWERS])


def _sees_its_past(policy: Policy) -> bool:
    """Two orders of computation agree; where half precision is too coarse to tell, in float32."""
    trial, dtype = _trial(policy), policy.model.dtype
    if _agree(policy, trial, torch.finfo(dtype).eps):
        return True
    if dtype == torch.float32:
        return False
    with _in_float32(policy.model, dtype):
        return _agree(policy, trial, torch.finfo(torch.float32).eps)


def _agree(policy: Policy, trial: Trial, eps: float) -> bool:
    found, whole = _cached(policy, trial), _whole(policy, trial)
    noise = max(1e-3, NEAR * eps) * whole.abs().max()
    return not whole.isfinite().all() or bool((found - whole).abs().max() <= noise)


@contextmanager
def _in_float32(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Run a model in half precision in float32; the weights of a layer are widened only while it runs."""

    def cast(module: nn.Module, wanted: torch.dtype) -> None:
        for weight in module.parameters():
            weight.data = weight.data.to(wanted) if weight.is_floating_point() else weight.data

    def widen(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        cast(module, torch.float32)
        return tuple(x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)

    layers, hooks = set(getattr(model, "_no_split_modules", None) or ()), []
    inside: set[nn.Module] = set()
    for module in model.modules():
        whole = type(module).__name__ in layers
        if module not in inside and (whole or next(module.parameters(recurse=False), None) is not None):
            inside.update(module.modules())
            hooks.append(module.register_forward_pre_hook(widen))
            hooks.append(module.register_forward_hook(lambda module, _, __: cast(module, dtype), always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _cached(policy: Policy, trial: Trial) -> Tensor:
    """(B, 2, V): the logits of two steps behind the prompts, by a cache, as `generate` takes them."""
    batch = policy.pack(*trial)
    cache = make_cache(policy.model)
    first, last = batch.input_ids.shape[1] - batch.width, batch.input_ids.shape[1]  # P and P + 2
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


def _whole(policy: Policy, trial: Trial) -> Tensor:
    """(B, 2, V): the same logits, each sequence read whole and alone."""
    rows = [[*prompt, *answer] for prompt, answer in zip(*trial, strict=True)]
    ids = [torch.tensor([row], device=policy.device) for row in rows]
    return torch.cat([policy.model(input_ids=row, use_cache=False).logits[:, -2:].float() for row in ids])
