"""A causal language model in two halves: a trunk that returns hidden states, a head that returns
logits.

The head is the model's own forward with its trunk replaced by given hidden states, so that
everything a model does to its logits (a soft cap, a scale, adapters on the head) is done here too.
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

TRIED = ((3, 1, 4, 1, 5), (2, 7, 1, 8, 2))
"""Token ids on which it is tested whether a model splits."""
ROUNDINGS = 2
"""Roundings by which a logit of the two halves may differ from the whole's."""


class Reading(NamedTuple):
    """The states that a model computes for a batch, response-aligned.

    `hidden` (B, T+1, H): the states before and after every response token. `view`: the input of its
    head. `layers` (B, P+T, H): the embeddings and what each layer writes, if asked for.
    """

    hidden: Tensor
    view: LazyLogits
    layers: tuple[Tensor, ...]


class Reader:
    """Runs a model, or copies of it, on batches: in two halves where it splits, else by its own
    forward.

    In half precision (`half`) equal prompts of a batch are read once if the model allows it
    (`shares`), and the weights of a plain linear head are part of the view. In float32 results are
    bit for bit those of the model.
    """

    def __init__(self, model: Any) -> None:
        self.in_halves = splits(model)
        self.half = self.in_halves and model.dtype in (torch.float16, torch.bfloat16)
        self.shares = self.half and can_share(model, partial(hidden_states, model))
        self.linear = self.half and _head_is_linear(model)
        self._vocabulary = int(model.get_output_embeddings().weight.shape[0])

    def __call__(self, model: Any, batch: TokenBatch, every: bool = False) -> Reading:
        """Read a batch in one pass; with `every` also return the states of all tokens in all
        layers."""
        keep = batch.width + 1  # the last state of the prompt, and T of the response
        inputs = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "position_ids": batch.position_ids,
        }
        if not self.in_halves:
            whole = model(**inputs, output_hidden_states=True, logits_to_keep=keep, use_cache=False)
            # Its logits are those of tokens already: the view has them as states, and a head that
            # does nothing.
            view = LazyLogits(lambda logits: logits, whole.logits[:, -keep:-1][batch.mask], self._vocabulary)
            return Reading(whole.hidden_states[-1][:, -keep:], view, whole.hidden_states)
        layers: tuple[Tensor, ...] = ()
        packed = share_prompts(batch, model.dtype) if self.shares and not every else None
        if packed:
            states = hidden_states(model, packed.inputs).flatten(0, 1)  # (G * L, H)
            hidden = states.index_select(0, packed.places.flatten()).view(*packed.places.shape, -1)  # (B, T+1, H)
        else:
            read = _trunk(_unwrapped(model))(**inputs, use_cache=False, output_hidden_states=every)
            hidden, layers = read.last_hidden_state[:, -keep:], read.hidden_states if every else ()
        head = partial(logits_of, model)
        weight = model.get_output_embeddings().weight if self.linear else None  # (V, H)
        return Reading(hidden, LazyLogits(head, hidden[:, :-1][batch.mask], self._vocabulary, weight), layers)

    @contextmanager
    def sharing(self, model: Any) -> Iterator[None]:
        """Read equal prompts once in float32 too, where the last bits of a figure do not matter."""
        before = self.shares
        self.shares = before or (self.in_halves and can_share(model, partial(hidden_states, model)))
        try:
            yield
        finally:
            self.shares = before


def hidden_states(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Return the input of the head (B, L, H): the trunk's last hidden states, after its last
    norm."""
    states: Tensor = _trunk(_unwrapped(model))(**inputs, use_cache=False).last_hidden_state
    return states


def logits_of(model: Any, states: Tensor) -> Tensor:
    """Return the logits (n, V) that the model makes of hidden states (n, H)."""
    inner = _unwrapped(model)
    with _recalling(inner):
        logits: Tensor = inner(inputs_embeds=states[None], use_cache=False).logits
    return logits[0]


def _head_is_linear(model: Any) -> bool:
    """True if logits are the head's weights times the states and nothing else, tested on large
    states."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return False
    with torch.no_grad():
        states = 100 * head.weight[: len(TRIED[0])]
        return torch.equal(logits_of(model, states), nn.functional.linear(states, head.weight))


def splits(model: Any) -> bool:
    """True if the two halves give the logits of the whole, tested on a few tokens."""
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
    if halves.shape != expected.shape:
        return False
    # The states are the same. What may differ is the order of the head's sums, in float32, and
    # their rounding: so a # logit must be as near as its own size rounds, and not that of the
    # largest.
    rounded = ROUNDINGS * torch.finfo(model.dtype).eps * (expected.abs() + expected.pow(2).mean().sqrt())
    summed = 100 * torch.finfo(torch.float32).eps * expected.abs().max()
    return bool(((halves - expected).abs() <= rounded + summed).all())


def _unwrapped(model: Any) -> Any:
    """Return the model without the wrapper of its adapters, which live inside its layers."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _trunk(model: Any) -> Any:
    return getattr(model, model.base_model_prefix)


class _Recalled(nn.Module):
    """A trunk that returns the hidden states that it is given as embeddings."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds)


class _Output:
    """The output of a trunk of any class: the last hidden states, and None for everything else."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _recalling(model: Any) -> Iterator[None]:
    trunk = _trunk(model)
    setattr(model, model.base_model_prefix, _Recalled())
    try:
        yield
    finally:
        setattr(model, model.base_model_prefix, trunk)
