"""Tinker's client against SkyRL's own server, on a CPU: one step moves each token the way it was
paid."""

from __future__ import annotations

import pytest
import torch
from skyrl_server import Step, make_model, serving, steps
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> list[Step]:
    place = tmp_path_factory.mktemp("skyrl")
    make_model(place / "model", tokenizer)
    with serving(place / "model", place) as client:
        return steps(client, place / "model", tokenizer)


def test_paid_tokens_move_with_their_sign(taken: list[Step]) -> None:
    """All but a few, for the tokens of a datum share the adapter; fewer if each is held to its
    neighbour's pay."""
    moved, beside = ([each for step in taken for each in step.moved(shift)] for shift in (0, 1))
    assert len(taken) == 7 and len(moved) > 60
    assert sum(moved) > 0.9 * len(moved) > sum(beside), [step.moved() for step in taken]
    assert all(((step.after - step.before) * step.advantages).sum() > 0 for step in taken)


def test_what_is_not_paid_is_in_no_loss(taken: list[Step]) -> None:
    """The first ratio is 1, so a token's loss is minus its advantage: 0 for the prompt's and the
    tools'."""
    for step in taken:
        unpaid = step.advantages == 0
        assert unpaid.any() and (step.losses[unpaid] == 0).all()
        losses, expected = map(torch.as_tensor, (step.losses, -step.advantages))
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4, check_dtype=False)
