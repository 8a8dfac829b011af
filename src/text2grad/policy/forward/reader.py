"""Split a causal language model into a trunk (hidden states) and a head (logits).

The head is the model's own forward with its trunk replaced by given hidden states. So everything
that a model does to its logits (a soft cap, a scale, adapters on the head) is included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from torch import Tensor, nn

from text2grad.policy.batch import TokenBatch
from text2grad.policy.forward.prefix import can_share, share_prompts
from text2grad.rl.vocabulary import LazyLogits

PROBES = ((3, 1, 4, 1, 5), (2, 7, 1, 8, 2))
"""Token ids that test whether a model can be split."""
ROUNDINGS = 2
"""Rounding steps by which a logit of the split model may differ from the model's."""


class Reading(NamedTuple):
    """The response-aligned states of a model for a batch.

    Attributes:
        hidden: (B, T+1, H), the states before and after each response token.
        view: the head and its input states.
        layers: (B, P+T, H) each, the embeddings and the output of each layer, on request.
    """

    hidden: Tensor
    view: LazyLogits
    layers: tuple[Tensor, ...]


class Reader:
    """Runs a model, or copies of it, on batches: split if possible, else by its own forward.

    Equal prompts of a batch are read once if the model allows it, which changes only the rounding.
    In half precision the weights of a plain linear head are part of the view.
    """

    def __init__(self, model: Any) -> None:
        self.is_split = can_split(model)
        self.shares_prompts = self.is_split and can_share(model, partial(hidden_states, model))
        half_precision = model.dtype in (torch.float16, torch.bfloat16)
        self.linear = self.is_split and half_precision and _head_is_linear(model)
        self._vocabulary = int(model.get_output_embeddings().weight.shape[0])

    def __call__(self, model: Any, batch: TokenBatch, all_layers: bool = False) -> Reading:
        """Read a batch in one pass; return the states of all tokens and layers on request."""
        keep = batch.width + 1  # the last state of the prompt, and T of the response
        inputs = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "position_ids": batch.position_ids,
        }
        if not self.is_split:
            output = model(**inputs, output_hidden_states=True, logits_to_keep=keep, use_cache=False)
            # The logits serve as states, with the identity as head.
            view = LazyLogits(lambda logits: logits, output.logits[:, -keep:-1][batch.mask], self._vocabulary)
            return Reading(output.hidden_states[-1][:, -keep:], view, output.hidden_states)
        layers: tuple[Tensor, ...] = ()
        packed = share_prompts(batch, model.dtype) if self.shares_prompts and not all_layers else None
        if packed:
            states = hidden_states(model, packed.inputs).flatten(0, 1)  # (G * L, H)
            indices = packed.state_indices  # (B, T+1)
            hidden = states.index_select(0, indices.flatten()).view(*indices.shape, -1)  # (B, T+1, H)
        else:
            output = _trunk(_unwrapped(model))(**inputs, use_cache=False, output_hidden_states=all_layers)
            hidden, layers = output.last_hidden_state[:, -keep:], output.hidden_states if all_layers else ()
        head = partial(compute_logits, model)
        weight = model.get_output_embeddings().weight if self.linear else None  # (V, H)
        return Reading(hidden, LazyLogits(head, hidden[:, :-1][batch.mask], self._vocabulary, weight), layers)


def hidden_states(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Return the trunk's last hidden states (B, L, H) after its final norm."""
    states: Tensor = _trunk(_unwrapped(model))(**inputs, use_cache=False).last_hidden_state
    return states


def compute_logits(model: Any, states: Tensor) -> Tensor:
    """Return the model's logits (n, V) for hidden states (n, H)."""
    inner = _unwrapped(model)
    with _without_trunk(inner):
        logits: Tensor = inner(inputs_embeds=states[None], use_cache=False).logits
    return logits[0]


def _head_is_linear(model: Any) -> bool:
    """Return True if the head is a plain linear map, tested on large states (a soft cap shows)."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return False
    with torch.no_grad():
        states = 100 * head.weight[: len(PROBES[0])]
        return torch.equal(compute_logits(model, states), nn.functional.linear(states, head.weight))


def can_split(model: Any) -> bool:
    """Return True if trunk and head reproduce the model's logits, tested on a few tokens."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _agree(model, torch.tensor(PROBES, device=model.device))
    finally:
        model.train(was_training)


def _agree(model: Any, ids: Tensor) -> bool:
    logits = model(input_ids=ids, use_cache=False).logits.float()  # (B, L, V)
    try:
        states = hidden_states(model, {"input_ids": ids})
        # Every second token in reverse order: the head must depend on a token's state alone.
        actual = compute_logits(model, states.flatten(0, 1).flip(0)[::2]).float()
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):  # another form of forward
        return False
    expected = logits.flatten(0, 1).flip(0)[::2]
    if actual.shape != expected.shape:
        return False
    # Only the order of the head's sums (in float32) and their rounding may differ, so the tolerance
    # depends on the size of each logit.
    rounded = ROUNDINGS * torch.finfo(model.dtype).eps * (expected.abs() + expected.pow(2).mean().sqrt())
    summed = 100 * torch.finfo(torch.float32).eps * expected.abs().max()
    return bool(((actual - expected).abs() <= rounded + summed).all())


def _unwrapped(model: Any) -> Any:
    """Return the model without peft's wrapper; the adapters are inside its layers."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _trunk(model: Any) -> Any:
    return getattr(model, model.base_model_prefix)


class _IdentityTrunk(nn.Module):
    """A trunk that returns its input embeddings as hidden states."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds)


class _Output:
    """A trunk's output: the last hidden states, and None for every other attribute."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _without_trunk(model: Any) -> Iterator[None]:
    trunk = _trunk(model)
    setattr(model, model.base_model_prefix, _IdentityTrunk())
    try:
        yield
    finally:
        setattr(model, model.base_model_prefix, trunk)
