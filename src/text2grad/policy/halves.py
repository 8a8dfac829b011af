"""A causal language model in two halves: the trunk, which ends in hidden states, and the head, which makes logits.

The head is the model's own forward with hidden states put where its trunk would have returned them, so that
whatever a model does to its logits (a soft cap, a scale, adapters on the head) is done here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

TRIED = ((3, 1, 4, 1, 5), (2, 7, 1, 8, 2))
"""Token ids on which a model is asked whether it splits."""


def hidden_states(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """(B, L, H), what the head reads: the trunk's last hidden states, after its last norm."""
    states: Tensor = _trunk(_plain(model))(**inputs, use_cache=False).last_hidden_state
    return states


def layer_states(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """(B, L, H) of every layer: the embeddings, what each layer writes, and of the last what the head reads."""
    states: tuple[Tensor, ...] = _trunk(_plain(model))(
        **inputs, use_cache=False, output_hidden_states=True
    ).hidden_states
    return states


def logits_of(model: Any, states: Tensor) -> Tensor:
    """The logits (n, V) that the model makes of hidden states (n, H)."""
    plain = _plain(model)
    with _recalling(plain):
        logits: Tensor = plain(inputs_embeds=states[None], use_cache=False).logits
    return logits[0]


def splits(model: Any) -> bool:
    """Whether the two halves give what the whole gives, tried on a few tokens."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _agree(model, torch.tensor(TRIED, device=model.device))
    finally:
        model.train(was_training)


def _agree(model: Any, ids: Tensor) -> bool:
    whole = model(input_ids=ids, use_cache=False).logits.float()
    try:
        states = hidden_states(model, {"input_ids": ids})
        # Half of the tokens, backwards: the head may know nothing of a token but its state.
        halves = logits_of(model, states.flatten(0, 1).flip(0)[::2]).float()
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):  # a forward of another form
        return False
    expected = whole.flatten(0, 1).flip(0)[::2]
    near = 100 * torch.finfo(model.dtype).eps * expected.abs().max()
    return halves.shape == expected.shape and bool((halves - expected).abs().max() <= near)


def _plain(model: Any) -> Any:
    """The model without the wrapper of its adapters, which live inside its layers."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _trunk(plain: Any) -> Any:
    return getattr(plain, plain.base_model_prefix)


class _Recalled(nn.Module):
    """A trunk that has already read: it returns the hidden states it is given as embeddings."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds)


class _Output:
    """What every trunk returns, whatever its class: the last hidden states, and nothing of what else it may."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _recalling(plain: Any) -> Iterator[None]:
    trunk = _trunk(plain)
    setattr(plain, plain.base_model_prefix, _Recalled())
    try:
        yield
    finally:
        setattr(plain, plain.base_model_prefix, trunk)
