"""Batches of prompt and response ids, padded to one rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Prompts padded on the left and responses on the right, so that responses are aligned.

    Attributes:
        input_ids: (B, P+T).
        attention_mask: (B, P+T).
        position_ids: (B, P+T).
        response_ids: (B, T).
        mask: (B, T), True on tokens of the policy. Tokens of others between its turns are attended
            to but not scored.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    response_ids: Tensor
    mask: Tensor

    @property
    def width(self) -> int:
        """The padded response length T."""
        return int(self.mask.shape[1])

    @property
    def lengths(self) -> Tensor:
        """The lengths (B,) of the responses, including tokens of others."""
        return self.attention_mask[:, self.attention_mask.shape[1] - self.width :].sum(dim=1)

    def rows(self, index: Tensor | slice) -> TokenBatch:
        """Return the batch restricted to some rows."""
        return TokenBatch(*(column[index] for column in vars(self).values()))

    def trimmed(self) -> TokenBatch:
        """Return the batch without the columns that are padding in all rows."""
        width = int(self.lengths.max())
        end = int(self.input_ids.shape[1]) - (self.width - width)
        first = int((self.attention_mask[:, :end] == 0).all(dim=0).int().argmin())
        return TokenBatch(
            self.input_ids[:, first:end],
            self.attention_mask[:, first:end],
            self.position_ids[:, first:end],
            self.response_ids[:, :width],
            self.mask[:, :width],
        )

    def passes(self, index: Tensor, size: int, grouped: bool = False) -> tuple[Tensor, ...]:
        """Split the rows `index` (n,) into groups of at most `size`, each of similar lengths.

        With `grouped`, answers to the same prompt stay together (see `policy.forward.prefix`).
        """
        lengths = self.attention_mask[index].sum(dim=1)  # (n,), prompt and response
        index = index[lengths.argsort(stable=True)]
        if grouped:
            prompts = (self.input_ids * self.attention_mask)[index, : -self.width]  # (n, P)
            # Stable sorts: by prompt, then by prompt length, which keeps equal prompts together.
            index = index[torch.unique(prompts, dim=0, return_inverse=True)[1].argsort(stable=True)]
            answers = self.lengths[index]
            index = index[(self.attention_mask[index].sum(dim=1) - answers).argsort(stable=True)]
        return torch.split(index, size)


def pack(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    pad: int,
    device: Any,
    masks: Sequence[Sequence[bool] | None] | None = None,
) -> TokenBatch:
    """Pad a batch of prompt and response ids to one rectangle.

    The padding id `pad` is neither attended to nor scored. `masks` are True at the ids of each
    response that the policy sampled; None: at all of them.
    """
    prompt_width = max(len(ids) for ids in prompts)  # P
    width = max(len(ids) for ids in responses)  # T
    rows, attention, mask = [], [], []
    response_masks = [None] * len(responses) if masks is None else masks
    for prompt, response, response_mask in zip(prompts, responses, response_masks, strict=True):
        before, after = prompt_width - len(prompt), width - len(response)
        rows.append([pad] * before + list(prompt) + list(response) + [pad] * after)
        attention.append([0] * before + [1] * (len(prompt) + len(response)) + [0] * after)
        sampled = [True] * len(response) if response_mask is None else list(response_mask)
        mask.append(sampled + [False] * after)
    input_ids = torch.tensor(rows, device=device)
    attention_mask = torch.tensor(attention, device=device)
    return TokenBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        # Attended tokens are counted: padding on the left does not shift the positions of a prompt.
        position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        response_ids=input_ids[:, prompt_width:],
        mask=torch.tensor(mask, dtype=torch.bool, device=device),
    )
