"""Random numbers that belong to a row: what probes draw, and how a token is chosen by one of
them."""

from __future__ import annotations

import pytest
import torch

from text2grad.policy.generate import _sample_tokens
from text2grad.train.rollout import random_numbers


def test_draws_belong_to_a_row_of_a_step() -> None:
    draws = random_numbers(5, 2, 6, 9)
    assert draws.shape == (6, 9) and draws.unique().numel() == 54
    assert torch.equal(draws[:3], random_numbers(5, 2, 3, 9)), "whatever the number of rows"
    assert not torch.equal(draws, random_numbers(5, 3, 6, 9))
    assert not torch.equal(draws, random_numbers(6, 2, 6, 9))


def test_a_draw_chooses_by_share() -> None:
    shares = torch.tensor([0.0, 0.25, 0.0, 0.75])
    scores = shares.log().expand(4, 4)
    draws = torch.tensor([0.0, 0.2499, 0.2501, 1 - 2**-53], dtype=torch.float64)
    assert _sample_tokens(scores, 1.0, draws).tolist() == [1, 1, 3, 3]
    many = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = _sample_tokens(scores[:1].expand(20_000, 4), 0.5, many).bincount(minlength=4) / 20_000
    assert counts.tolist() == pytest.approx([0, 0.1, 0, 0.9], abs=0.01)  # squares: temperature 0.5
    with pytest.raises(FloatingPointError, match="not finite"):
        _sample_tokens(torch.full((1, 4), float("nan")), 1.0, draws[:1])
