"""Token ids of prompts and responses as one rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Prompts padded on the left, responses on the right, so that all responses start at one
    column.

    `input_ids`, `attention_mask`, `position_ids`: (B, P+T). `response_ids`, `mask`: (B, T). The
    mask is True on tokens of the policy; between its turns a response also has tokens of others,
    which are attended to.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    response_ids: Tensor
    mask: Tensor

    @property
    def width(self) -> int:
        """T, the padded response length."""
        return int(self.mask.shape[1])

    @property
    def lengths(self) -> Tensor:
        """(B,), the length of each response, with the tokens of others."""
        return self.attention_mask[:, self.attention_mask.shape[1] - self.width :].sum(dim=1)

    def rows(self, index: Tensor | slice) -> TokenBatch:
        """The same batch restricted to some rows."""
        return TokenBatch(*(column[index] for column in vars(self).values()))

    def trimmed(self) -> TokenBatch:
        """Without the columns that are padding in all rows: on the left of the prompts, right of
        the responses."""
        width = int(self.lengths.max())  # the longest response
        whole = int(self.input_ids.shape[1]) - (self.width - width)  # columns without padding on the right
        first = int((self.attention_mask[:, :whole] == 0).all(dim=0).int().argmin())
        return TokenBatch(
            self.input_ids[:, first:whole],
            self.attention_mask[:, first:whole],
            self.position_ids[:, first:whole],
            self.response_ids[:, :width],
            self.mask[:, :width],
        )

    def passes(self, index: Tensor, size: int, grouped: bool = False) -> tuple[Tensor, ...]:
        """The rows `index` in groups of at most `size` of similar length, so that little of a pass
        is padding.

        `grouped`: answers to one prompt stand together, and prompts are of similar length
        (see `policy.forward.prefix`).
        """
        lengths = self.attention_mask[index].sum(dim=1)  # (n,), prompt and response
        index = index[lengths.argsort(stable=True)]
        if grouped:
            prompts = (self.input_ids * self.attention_mask)[index, : -self.width]
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
    """Pad a batch of prompt and response ids into one rectangle.

    `masks`: of each response, which of its ids the policy sampled; None: all of them. What stands
    under `pad` is never attended to nor scored.
    """
    prompt_width = max(len(ids) for ids in prompts)  # P
    width = max(len(ids) for ids in responses)  # T
    rows, attention, mask = [], [], []
    own = [None] * len(responses) if masks is None else masks
    for prompt, response, each in zip(prompts, responses, own, strict=True):
        left, right = prompt_width - len(prompt), width - len(response)
        rows.append([pad] * left + list(prompt) + list(response) + [pad] * right)
        attention.append([0] * left + [1] * (len(prompt) + len(response)) + [0] * right)
        mask.append([*([True] * len(response) if each is None else each)] + [False] * right)
    input_ids = torch.tensor(rows, device=device)
    attention_mask = torch.tensor(attention, device=device)
    return TokenBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        response_ids=input_ids[:, prompt_width:],
        mask=torch.tensor(mask, dtype=torch.bool, device=device),
    )
