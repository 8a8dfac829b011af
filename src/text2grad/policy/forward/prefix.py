"""Read a prompt once for several answers.

A row holds a prompt and all its answers. The mask hides the answers from each other, and the
positions of each answer continue from the end of the prompt, so every token sees what it would see
in a separate row. In sampling, different prompts may share prefixes (`share_prefixes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.forward.cache import GrowingLayer, make_cache

MAX_SHARE = 0.9
"""The largest share of a batch's tokens that may remain for sharing to be worthwhile."""
IMPLEMENTATIONS = ("sdpa", "eager")
"""Implementations of attention that accept a four-dimensional mask."""
MAX_ERROR = 0.25
"""The largest error of shared prompts in a test, relative to the error of a wrong mask."""
PROBES = (([3, 1, 4, 1, 5, 9, 2, 6], [[5, 3, 5, 8, 9], [7, 9, 3], [2, 3, 8, 4]]), ([2, 7, 1, 8], [[2, 8], [1, 8]]))
"""Prompts and answers that test whether a model can share, in tenths of its vocabulary.

The lowest ids are often special tokens, for which half precision is too coarse.
"""


class Packed(NamedTuple):
    """G rows of L tokens with a prompt and its answers each.

    Attributes:
        inputs: the inputs of a trunk, with a mask (G, 1, L, L) that is added to attention scores.
        state_indices: (B, T+1), the indices in the flattened rows of the states before and after
            each response token.
    """

    inputs: dict[str, Tensor]
    state_indices: Tensor


def share_prompts(batch: TokenBatch, dtype: torch.dtype, max_share: float = MAX_SHARE) -> Packed | None:
    """Return the batch with each distinct prompt once; None if that saves too little."""
    columns = batch.input_ids.shape[1] - batch.width  # P
    attended = batch.attention_mask[:, :columns].bool()  # (B, P)
    prompts = [tuple(ids[mask].tolist()) for ids, mask in zip(batch.input_ids[:, :columns], attended, strict=True)]
    lengths = batch.lengths.tolist()  # of B answers
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(row)
    longest = max(len(prompt) + sum(lengths[row] for row in rows) for prompt, rows in groups.items())
    if len(groups) * longest > max_share * batch.input_ids.numel():
        return None
    return _pack_rows(batch, groups, lengths, longest, dtype)


def _pack_rows(
    batch: TokenBatch,
    groups: dict[tuple[int, ...], list[int]],
    lengths: list[int],
    longest: int,
    dtype: torch.dtype,
) -> Packed:
    """Build the rows on the CPU, and the mask, their largest part, on the device."""
    # owner (G, L): 0 for the prompt, n for its n-th answer, -1 for padding
    ids = torch.zeros(len(groups), longest, dtype=torch.long)
    positions, owner = torch.zeros_like(ids), torch.full_like(ids, -1)
    state_indices = torch.zeros(len(lengths), batch.width + 1, dtype=torch.long)  # (B, T+1)
    responses = batch.response_ids.cpu()
    for line, (prompt, rows) in enumerate(groups.items()):
        end = len(prompt)
        ids[line, :end] = torch.tensor(prompt)
        positions[line, :end] = torch.arange(end)
        owner[line, :end] = 0
        for number, row in enumerate(rows, start=1):
            length = lengths[row]
            columns = slice(end, end + length)
            ids[line, columns] = responses[row, :length]
            positions[line, columns] = torch.arange(len(prompt), len(prompt) + length)
            owner[line, columns] = number
            # All answers share the state before their first token, that of the prompt's last one.
            state_indices[row, 1 : length + 1] = torch.arange(end, end + length)
            state_indices[row, 0] = len(prompt) - 1
            state_indices[row, length + 1 :] = state_indices[row, length]  # padding, never read
            state_indices[row] += line * longest  # index in the flattened rows
            end += length
    device = batch.input_ids.device
    inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": _mask(owner.to(device), dtype)}
    return Packed({name: tensor.to(device) for name, tensor in inputs.items()}, state_indices.to(device))


def _mask(owner: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (G, 1, L, L): tokens attend to the prompt and their own answer."""
    causal = torch.ones(owner.shape[1], owner.shape[1], dtype=torch.bool, device=owner.device).tril()  # (L, L)
    visible = causal & ((owner[:, None, :] == 0) | (owner[:, None, :] == owner[:, :, None]))
    hidden = torch.finfo(dtype).min
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, hidden)[:, None]


class SharedPrefixes(NamedTuple):
    """Prompts in two parts: prompt i is `prefixes[prefix_of_prompt[i]]` and `suffixes[i]`."""

    prefixes: list[tuple[int, ...]]
    suffixes: list[tuple[int, ...]]
    prefix_of_prompt: list[int]


def share_prefixes(prompts: Sequence[tuple[int, ...]]) -> SharedPrefixes | None:
    """Split prompts into shared prefixes and suffixes; return None if that saves too little.

    A prompt shares a prefix of at least half its length with others, as several questions about one
    answer do. A suffix has at least one token.
    """
    prefixes: list[tuple[int, ...]] = []
    prefix_of_prompt = [0] * len(prompts)
    for index in sorted(range(len(prompts)), key=prompts.__getitem__):  # similar prompts are neighbours
        prompt = prompts[index]
        pairs = zip(prefixes[-1] if prefixes else (), prompt[:-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not prefixes or 2 * common < len(prompt):
            prefixes.append(prompt[:-1])
        else:
            prefixes[-1] = prompt[:common]
        prefix_of_prompt[index] = len(prefixes) - 1
    suffixes = [prompt[len(prefixes[n]) :] for prompt, n in zip(prompts, prefix_of_prompt, strict=True)]
    longest_prefix, longest_suffix, longest = (max(map(len, part)) for part in (prefixes, suffixes, prompts))
    size = len(prefixes) * longest_prefix + len(prompts) * longest_suffix  # including padding
    if not all(prefixes) or size > MAX_SHARE * len(prompts) * longest:
        return None
    return SharedPrefixes(prefixes, suffixes, prefix_of_prompt)


def can_share(model: Any, states_of: Callable[[dict[str, Any]], Tensor]) -> bool:
    """Return True if a model reads shared prompts like separate ones, tested on a few tokens.

    If the model ignores the mask or the positions, the error is as large as with wrong ones. Models
    with attention windows never share, because they need other masks.

    `states_of` returns the last hidden states (B, L, H) for the inputs of the model's trunk.
    """
    config = model.config.get_text_config()
    layers = make_cache(model).layers
    if config._attn_implementation not in IMPLEMENTATIONS:
        return False
    if not layers or not all(isinstance(layer, GrowingLayer) for layer in layers):
        return False
    tenth = config.vocab_size // 10
    prompts = [[tenth * i for i in prompt] for prompt, answers in PROBES for _ in answers]
    responses = [[tenth * i for i in answer] for _, answers in PROBES for answer in answers]
    batch = pack(prompts, responses, 0, model.device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _agree(model, batch, states_of)
    except (TypeError, ValueError, RuntimeError):  # the trunk does not support the mask
        return False
    finally:
        model.train(was_training)


def _agree(model: Any, batch: TokenBatch, states_of: Callable[[dict[str, Any]], Tensor]) -> bool:
    separate = {name: getattr(batch, name) for name in ("input_ids", "attention_mask", "position_ids")}
    expected = states_of(separate)[:, -batch.width - 1 :][:, 1:][batch.mask].float()
    packed = share_prompts(batch, model.dtype, max_share=1.0)
    assert packed is not None
    inputs = packed.inputs

    def error(**changes: Any) -> float:
        states = states_of({**inputs, **changes}).flatten(0, 1)[packed.state_indices]
        return float((states[:, 1:][batch.mask].float() - expected).norm())

    ids = inputs["input_ids"]
    wrong_positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    wrong_mask = _mask(torch.zeros_like(ids), model.dtype)
    return error() < MAX_ERROR * min(error(position_ids=wrong_positions), error(attention_mask=wrong_mask))
