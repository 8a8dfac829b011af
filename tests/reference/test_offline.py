"""`rl.offline` against literal numbers, a softmax's gradient written out, and finite differences.

No test here takes an argument: test_faults.py runs every one of them against faulty copies of the
module.
"""

from __future__ import annotations

import math

import pytest
import torch

from text2grad.rl import offline


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def test_the_loss_by_hand() -> None:
    """Good: -w log pi. Poor: -|w| (1 - pi_0) / pi_0 log(1 - pi), whose slope by log pi is |w| odds
    / odds_0."""
    chance = torch.tensor([[0.25, 0.5, 0.2, 0.9, 0.9, 0.5, 0.5]], dtype=torch.float64)
    start = torch.tensor([[0.5, 0.8, 0.5, 0.9, 0.9, 0.05, 0.5]], dtype=torch.float64)
    weights = torch.tensor([[2.0, -1.0, -0.5, -3.0, 0.0, -1.0, -9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, True, True, False]])
    logp = chance.log().requires_grad_()
    loss = offline.offline_loss(logp, start.log(), weights, mask, 10.0)
    expected = torch.tensor([[2.772589, 0.173287, 0.111572, 0.767528, 0.0, 6.931472, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(loss.detach(), expected, rtol=0, atol=2e-5)  # 0.693147 x 10, and not x 19
    loss.sum().backward()
    slope = torch.tensor([[-2.0, 0.25, 0.125, 3.0, 0.0, 10.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(logp.grad, slope, rtol=0, atol=5e-5)


def test_the_gradient_by_the_logits_is_that_of_the_softmax_written_out() -> None:
    """Good: w (p - e_y). Poor: |w| min(limit, (1 - q) / q) p_y (e_y - p) / (1 - p_y), with q the
    start's p_y."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 7, (3, 5), generator=generator)
    weights = torch.randint(-2, 3, (3, 5), generator=generator).double()
    mask = torch.arange(5) < torch.tensor([[5], [2], [4]])
    log_p = logits.log_softmax(-1)
    logp = log_p.gather(-1, ids[..., None]).squeeze(-1)
    start = -0.05 - 3 * torch.rand(3, 5, generator=generator, dtype=torch.float64)
    offline.offline_loss(logp, start, weights, mask, 6.0).sum().backward()
    expected, p, limited = torch.zeros_like(logits), log_p.detach().exp(), 0
    for b, t in mask.nonzero().tolist():
        y, w = ids[b, t].item(), weights[b, t].item()
        chosen = torch.nn.functional.one_hot(ids[b, t], 7).double()
        chance, q = p[b, t, y].item(), math.exp(start[b, t].item())
        if w > 0:
            expected[b, t] = w * (p[b, t] - chosen)
        else:
            limited += w < 0 and (1 - q) / q > 6
            expected[b, t] = -w * min(6.0, (1 - q) / q) * chance * (chosen - p[b, t]) / (1 - chance)
    assert 0 < limited < (mask & (weights < 0)).sum()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, expected.detach(), rtol=1e-4, atol=1e-5)


def test_at_the_start_its_gradient_is_that_of_definition_1_whatever_the_sign() -> None:
    logp = torch.tensor([[-0.2, -1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[-1.0, -0.5, 2.0]], dtype=torch.float64)
    offline.offline_loss(logp, logp.detach(), weights, ones(1, 3), 10.0).sum().backward()
    torch.testing.assert_close(logp.grad, -weights, rtol=1e-5, atol=1e-5)


def test_a_token_that_is_certain_or_gone_keeps_every_number_finite() -> None:
    logp = torch.tensor([[0.0, -200.0, -200.0, 0.0]], requires_grad=True)
    start = torch.tensor([[-1.0, -0.7, -0.7, 0.0]])
    weights = torch.tensor([[-1.0, -1.0, 1.0, -1.0]])
    loss = offline.offline_loss(logp, start, weights, ones(1, 4), 10.0)
    expected = torch.tensor([[13.8155 * (math.e - 1), 0.0, 200.0, 0.0]])
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-2, atol=1e-4)
    loss.sum().backward()
    assert logp.grad is not None and logp.grad.isfinite().all()
    assert logp.grad[0, 0] > 0 and logp.grad[0, 1] == 0 and logp.grad[0, 3] == 0


def test_weights_and_the_start_are_constants_and_garbage_outside_the_mask_reaches_nothing() -> None:
    logp = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    start = torch.tensor([[-1.0, math.inf]], requires_grad=True)
    weights = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    loss = offline.offline_loss(logp, start, weights, torch.tensor([[True, False]]), 10.0)
    loss.sum().backward()
    assert start.grad is None and weights.grad is None
    assert logp.grad is not None and logp.grad[0, 1] == 0 and loss[0, 1] == 0


def test_half_precision_is_raised() -> None:
    logp = torch.tensor([[-0.7]], dtype=torch.bfloat16)
    assert offline.offline_loss(logp, logp, logp, ones(1, 1), 10.0).dtype == torch.float32


def test_what_is_refused() -> None:
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="limit is 0"):
        offline.offline_loss(one, one, one, ones(1, 1), 0.0)
    with pytest.raises(ValueError, match="weights is"):
        offline.offline_loss(one, one, torch.zeros(1, 2), ones(1, 1), 10.0)
