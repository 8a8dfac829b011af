"""Prompts shared by several answers are read once.

A row holds a prompt and then all its answers. The mask hides the answers from each other, and the
positions of each continue from the end of the prompt, so that every token sees what it would see in
a row of its own. In sampling, different prompts may share their beginnings (`share_beginnings`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.forward.cache import GrowingLayer, make_cache

WORTH = 0.9
"""Prompts are shared where that leaves no more than this share of a batch's tokens."""
IMPLEMENTATIONS = ("sdpa", "eager")
"""Implementations of attention that take a mask of four axes."""
MISSED = 0.25
"""The error of shared prompts on a few tokens, as a share of that with a wrong mask or wrong
positions."""
TRIED = (([3, 1, 4, 1, 5, 9, 2, 6], [[5, 3, 5, 8, 9], [7, 9, 3], [2, 3, 8, 4]]), ([2, 7, 1, 8], [[2, 8], [1, 8]]))
"""Prompts and answers for testing whether a model can share, in tenths of its vocabulary: on the
lowest ids, which are often special tokens, half precision is too coarse."""


class Packed(NamedTuple):
    """G rows of L tokens: `inputs` for a trunk, with a mask (G, 1, L, L) that is added to attention
    scores.

    `places` (B, T+1): the index in the flattened rows of the state before and after each response
    token.
    """

    inputs: dict[str, Tensor]
    places: Tensor


def share_prompts(batch: TokenBatch, dtype: torch.dtype, worth: float = WORTH) -> Packed | None:
    """The batch with equal prompts once; None where that saves too little."""
    columns = batch.input_ids.shape[1] - batch.width  # P
    attended = batch.attention_mask[:, :columns].bool()
    prompts = [tuple(ids[here].tolist()) for ids, here in zip(batch.input_ids[:, :columns], attended, strict=True)]
    lengths = batch.lengths.tolist()  # of the B answers
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(row)
    longest = max(len(prompt) + sum(lengths[row] for row in rows) for prompt, rows in groups.items())
    if len(groups) * longest > worth * batch.input_ids.numel():
        return None
    return _packed(batch, groups, lengths, longest, dtype)


def _packed(
    batch: TokenBatch,
    groups: dict[tuple[int, ...], list[int]],
    lengths: list[int],
    longest: int,
    dtype: torch.dtype,
) -> Packed:
    """The rows, made on the CPU. `owner` (G, L) is 0 for the prompt, n for its n-th answer, -1 for
    padding."""
    ids = torch.zeros(len(groups), longest, dtype=torch.long)
    positions, owner = torch.zeros_like(ids), torch.full_like(ids, -1)
    places = torch.zeros(len(lengths), batch.width + 1, dtype=torch.long)  # (B, T+1)
    responses = batch.response_ids.cpu()
    for line, (prompt, rows) in enumerate(groups.items()):
        end = len(prompt)
        ids[line, :end] = torch.tensor(prompt)
        positions[line, :end] = torch.arange(end)
        owner[line, :end] = 0
        for number, row in enumerate(rows, start=1):
            length = lengths[row]
            here = slice(end, end + length)
            ids[line, here] = responses[row, :length]
            positions[line, here] = torch.arange(len(prompt), len(prompt) + length)  # as if it stood alone
            owner[line, here] = number
            # The state before an answer's first token is that of the prompt's last one, which all
            # answers share.
            places[row, 1 : length + 1] = torch.arange(end, end + length)
            places[row, 0] = len(prompt) - 1
            places[row, length + 1 :] = places[row, length]  # padding repeats the last state, unread
            places[row] += line * longest  # rows are flattened
            end += length
    device = batch.input_ids.device
    inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": _mask(owner, dtype)}
    return Packed({name: tensor.to(device) for name, tensor in inputs.items()}, places.to(device))


def _mask(owner: Tensor, dtype: torch.dtype) -> Tensor:
    """(G, L) -> (G, 1, L, L): 0 where a token reads the prompt or its own answer so far, else the
    lowest number."""
    earlier = torch.ones(owner.shape[1], owner.shape[1], dtype=torch.bool).tril()  # (L, L), causal
    seen = earlier & ((owner[:, None, :] == 0) | (owner[:, None, :] == owner[:, :, None]))
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None]


class Beginnings(NamedTuple):
    """Prompts in two parts: prompt i is `beginnings[of_prompt[i]]` and then `rests[i]`, of one
    token at least."""

    beginnings: list[tuple[int, ...]]
    rests: list[tuple[int, ...]]
    of_prompt: list[int]


def share_beginnings(prompts: Sequence[tuple[int, ...]], worth: float = WORTH) -> Beginnings | None:
    """Split prompts into shared beginnings and own rests; None where that saves too little.

    A prompt shares a beginning that is at least half of it, as questions about answers to one
    prompt do.
    """
    found = Beginnings([], [()] * len(prompts), [0] * len(prompts))
    for place in sorted(range(len(prompts)), key=prompts.__getitem__):  # those alike are neighbours
        prompt = prompts[place]
        common = _common(found.beginnings[-1], prompt[:-1]) if found.beginnings else 0  # a rest has a token
        if not found.beginnings or 2 * common < len(prompt):
            found.beginnings.append(prompt[:-1])
        else:
            found.beginnings[-1] = prompt[:common]
        found.of_prompt[place] = len(found.beginnings) - 1
    for place, number in enumerate(found.of_prompt):
        found.rests[place] = prompts[place][len(found.beginnings[number]) :]
    longest, rest, whole = (max(map(len, each)) for each in (found.beginnings, found.rests, prompts))
    read = len(found.beginnings) * longest + len(prompts) * rest
    return found if all(found.beginnings) and read <= worth * len(prompts) * whole else None


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common beginning of two sequences."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(first), len(second)))


def can_share(model: Any, states_of: Callable[[dict[str, Any]], Tensor]) -> bool:
    """Whether a model reads shared prompts as it reads them apart, tested on a few tokens.

    `states_of` gives its last hidden states (B, L, H) for a trunk's inputs. If the model ignores
    the mask or the positions, the error is as large as with wrong ones. Models with attention
    windows never share: they need masks of their own.
    """
    config = model.config.get_text_config()
    layers = make_cache(model).layers
    if config._attn_implementation not in IMPLEMENTATIONS:
        return False
    if not layers or not all(isinstance(layer, GrowingLayer) for layer in layers):
        return False
    tenth = config.vocab_size // 10
    prompts = [[tenth * i for i in prompt] for prompt, answers in TRIED for _ in answers]
    responses = [[tenth * i for i in answer] for _, answers in TRIED for answer in answers]
    batch = pack(prompts, responses, 0, model.device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _agree(model, batch, states_of)
    except (TypeError, ValueError, RuntimeError):  # a trunk that knows no such mask
        return False
    finally:
        model.train(was_training)


def _agree(model: Any, batch: TokenBatch, states_of: Callable[[dict[str, Any]], Tensor]) -> bool:
    apart = {name: getattr(batch, name) for name in ("input_ids", "attention_mask", "position_ids")}
    expected = states_of(apart)[:, -batch.width - 1 :][:, 1:][batch.mask].float()
    packed = share_prompts(batch, model.dtype, worth=1.0)
    assert packed is not None
    inputs = packed.inputs

    def error(**instead: Any) -> float:
        states = states_of({**inputs, **instead}).flatten(0, 1)[packed.places]
        return float((states[:, 1:][batch.mask].float() - expected).norm())

    ids = inputs["input_ids"]
    wrong_positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    wrong_mask = _mask(torch.zeros_like(ids, device="cpu"), model.dtype).to(ids.device)
    return error() < MISSED * min(error(position_ids=wrong_positions), error(attention_mask=wrong_mask))
