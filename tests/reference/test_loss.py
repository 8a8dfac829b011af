"""`rl.loss` against literal numbers, explicit sums and finite differences.

No test here takes an argument: test_faults.py runs every one of them against faulty copies of the
module.
"""

from __future__ import annotations

import math

import pytest
import torch

from text2grad.rl import advantage, loss

GARBAGE = 7e4


def close(actual: torch.Tensor, expected: object, atol: float = 1e-6) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=atol)


def linear_policy(
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A softmax policy theta (D, V), features (B, T, D), sampled ids, delta in {-1, 0, 1}, a ragged
    mask."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    features = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, 7, (4, 6), generator=generator)
    delta = torch.randint(-1, 2, (4, 6), generator=generator).double()
    mask = torch.arange(6) < torch.tensor([[6], [3], [1], [5]])
    return theta, features, ids, delta, mask


def definition_1(
    theta: torch.Tensor, features: torch.Tensor, ids: torch.Tensor, delta: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The mean over responses of sum_t delta_t grad log pi(y_t), with the softmax's gradient
    written out."""
    total = torch.zeros_like(theta)
    for b, t in mask.nonzero().tolist():
        score = -(features[b, t] @ theta).softmax(-1)
        score[ids[b, t]] += 1
        total += delta[b, t] * torch.outer(features[b, t], score)
    return (total / len(ids)).detach()


# The policy


def test_policy_loss_by_hand() -> None:
    """The four corners of the clipped surrogate: only a move that already went far enough stops."""
    old_logp = torch.full((1, 6), -1.0)
    logp = (old_logp + torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.1, 9.0]]).log()).requires_grad_()
    advantages = torch.tensor([[2.0, 2.0, -2.0, -2.0, 2.0, 2.0]])
    mask = torch.tensor([[True, True, True, True, True, False]])
    per_token, clipped = loss.policy_loss(logp, old_logp, advantages, mask, 0.2)
    close(per_token, [[-2.4, -1.0, 3.0, 1.6, -2.2, 0.0]])
    assert clipped.tolist() == [[True, False, False, True, False, False]]
    per_token.sum().backward()
    close(logp.grad, [[0.0, -1.0, 3.0, 0.0, -2.2, 0.0]])


def test_policy_loss_with_an_upper_clip_of_its_own() -> None:
    """Against TRL's formula for one epsilon on each side (GRPOTrainer._compute_loss), token by
    token."""
    generator = torch.Generator().manual_seed(4)
    old_logp, move, advantages = torch.randn(3, 4, 50, generator=generator, dtype=torch.float64)
    logp = (old_logp + 0.3 * move).requires_grad_()
    mask = torch.arange(50) < torch.tensor([[50], [9], [31], [1]])
    expected = torch.zeros(4, 50, dtype=torch.float64)
    for b, t in mask.nonzero().tolist():
        ratio, a = (logp - old_logp)[b, t].exp().item(), advantages[b, t].item()
        expected[b, t] = -min(ratio * a, min(max(ratio, 0.8), 1.28) * a)
    per_token, clipped = loss.policy_loss(logp, old_logp, advantages, mask, 0.2, 0.28)
    close(per_token.detach(), expected, atol=1e-12)
    per_token.sum().backward()
    assert logp.grad is not None and torch.equal(clipped, mask & (logp.grad == 0))
    assert not torch.equal(clipped, loss.policy_loss(logp, old_logp, advantages, mask, 0.2)[1])


def test_policy_loss_without_clipping_is_the_plain_ratio() -> None:
    logp, old_logp = torch.tensor([[0.0, -9.0]]), torch.tensor([[-3.0, -1.0]])
    advantages, mask = torch.tensor([[1.0, -2.0]]), torch.ones(1, 2, dtype=torch.bool)
    per_token, clipped = loss.policy_loss(logp, old_logp, advantages, mask, math.inf)
    close(per_token, [[-math.exp(3), 2 * math.exp(-8)]], atol=1e-5)
    assert not clipped.any()


def test_first_step_gradient_is_the_advantage() -> None:
    """At ratio 1 the loss is -A and its gradient by logp is -A, with clipping on."""
    logp = torch.tensor([[-0.5, -2.0, -1.0]], requires_grad=True)
    advantages, mask = torch.tensor([[0.3, -0.7, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    per_token, clipped = loss.policy_loss(logp, logp.detach(), advantages, mask, 0.2)
    assert torch.equal(per_token, -advantages) and not clipped.any()
    per_token.sum().backward()
    close(logp.grad, -advantages)


def test_advantages_are_constants() -> None:
    values = torch.tensor([[0.4, 0.2]], requires_grad=True)
    logp, mask = torch.tensor([[-1.0, -1.0]], requires_grad=True), torch.ones(1, 2, dtype=torch.bool)
    per_token, _ = loss.policy_loss(logp, logp.detach(), values * 2, mask, 0.2)
    per_token.sum().backward()
    assert values.grad is None and logp.grad is not None


def test_garbage_outside_the_mask_reaches_nothing() -> None:
    mask = torch.tensor([[True, False, False, False]])
    logp = torch.tensor([[-1.0, GARBAGE, -math.inf, math.nan]], requires_grad=True)
    old_logp = torch.tensor([[-1.0, -GARBAGE, -1.0, -1.0]])
    advantages = torch.tensor([[2.0, GARBAGE, math.inf, math.nan]])
    per_token, clipped = loss.policy_loss(logp, old_logp, advantages, mask, 0.2)
    total = loss.average(per_token, mask, 1) + loss.nl_gradient_loss(logp, advantages, mask)
    assert total.item() == 0.0 and not clipped.any()
    total.backward()
    close(logp.grad, [[-4.0, 0.0, 0.0, 0.0]])


def test_policy_loss_agrees_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    logp, old_logp, advantages = torch.randn(3, 2, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    logp.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss.policy_loss(x, old_logp, advantages, mask, 0.2)[0], logp)


# The value function and the entropy


def test_value_loss_by_hand() -> None:
    """Clipping only ever raises the error: a value that jumped to its return is judged where it may
    stand."""
    old_values, returns = torch.zeros(1, 4), torch.tensor([[1.0, 1.0, -1.0, 0.1]])
    values = torch.tensor([[0.5, 0.1, 0.5, 0.5]], requires_grad=True)
    per_token = loss.value_loss(values, old_values, returns, 0.2)
    close(per_token, [[0.32, 0.405, 1.125, 0.08]])
    per_token.sum().backward()
    close(values.grad, [[0.0, -0.9, 1.5, 0.4]])


def test_value_targets_are_constants() -> None:
    values = torch.tensor([[0.1, 0.2]], dtype=torch.float64, requires_grad=True)
    per_token = loss.value_loss(values, values - 0.05, values + 1.0, 0.2)
    per_token.sum().backward()
    close(values.grad, [[-1.0, -1.0]])
    assert torch.autograd.gradcheck(
        lambda v: loss.value_loss(v, torch.zeros_like(v), torch.ones_like(v), 0.15),
        values.detach().requires_grad_(),
    )


def test_entropy_term_by_hand() -> None:
    entropy = torch.tensor([[2.0, 0.5]])
    close(loss.entropy_term(entropy, 0.1), [[-0.2, -0.05]])
    close(loss.entropy_term(entropy, -0.1), [[0.2, 0.05]])


def test_entropy_bonus_flattens_and_the_papers_sign_sharpens() -> None:
    for beta, flatter in ((0.1, True), (-0.1, False)):
        logits = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
        loss.entropy_term(advantage.entropy(logits), beta).sum().backward()
        assert logits.grad is not None
        assert (logits.grad[0, 0, 1] > logits.grad[0, 0, 0]).item() is flatter


# Definition 1


def test_nl_gradient_loss_is_definition_1() -> None:
    theta, features, ids, delta, mask = linear_policy()
    logp = advantage.token_logps(features @ theta, ids)
    (gradient,) = torch.autograd.grad(loss.nl_gradient_loss(logp, delta, mask), theta)
    close(-gradient, definition_1(theta, features, ids, delta, mask), atol=1e-12)


def test_ppo_without_clip_discount_and_value_is_definition_1() -> None:
    """One epoch, clip = inf, gamma = lam = 0, V = 0, no KL: PPO's gradient is Definition 1's, to
    1e-6."""
    theta, features, ids, delta, mask = linear_policy(1)
    zeros = torch.zeros_like(delta)
    rewards = advantage.token_rewards(delta, zeros, 0.2, mask)
    advantages, _ = advantage.gae(rewards, zeros, mask, 0.0, 0.0, zeros[:, 0])
    advantages = advantage.normalise(advantages, mask, "none")
    logp = advantage.token_logps(features @ theta, ids)
    per_token, _ = loss.policy_loss(logp, logp.detach(), advantages, mask, math.inf)
    (gradient,) = torch.autograd.grad(loss.average(per_token, mask, len(ids)), theta)
    close(-gradient, definition_1(theta, features, ids, delta, mask), atol=1e-6)


# Averages


def test_average_by_hand() -> None:
    per_token = torch.tensor([[1.0, 2.0, 6.0], [4.0, GARBAGE, GARBAGE], [GARBAGE] * 3])
    mask = torch.tensor([[True, True, True], [True, False, False], [False] * 3])
    close(loss.average(per_token, mask, 4), 13 / 4)


def test_micro_batches_add_up_to_the_full_gradient() -> None:
    """One batch of 4, four of 1 and an uneven division give the same gradient."""
    theta, features, ids, delta, mask = linear_policy(2)

    def gradient(sizes: list[int]) -> torch.Tensor:
        total = torch.zeros_like(theta)
        for x, y, a, m in zip(*(tensor.split(sizes) for tensor in (features, ids, delta, mask)), strict=True):
            logp = advantage.token_logps(x @ theta, y)
            per_token, _ = loss.policy_loss(logp, logp.detach(), a, m, 0.2)
            total += torch.autograd.grad(loss.average(per_token, m, float(mask.sum())), theta)[0]
        return total

    expected = gradient([4])
    assert expected.abs().max() > 0.01
    close(gradient([1, 1, 1, 1]), expected, atol=1e-15)
    close(gradient([3, 1]), expected, atol=1e-15)


# What is refused


def test_wrong_input_is_named() -> None:
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"old_logp is \(2, 2\) but logp is \(2, 3\)"):
        loss.policy_loss(x, torch.zeros(2, 2), x, mask, 0.2)
    with pytest.raises(ValueError, match=r"values has 1 axes \(3,\), expected 2"):
        loss.value_loss(torch.zeros(3), torch.zeros(3), torch.zeros(3), 0.2)
    with pytest.raises(ValueError, match="denominator is 0, expected > 0"):
        loss.average(x, mask, 0)


def test_losses_work_without_autograd_and_in_half_precision() -> None:
    half = torch.tensor([[-1.0, -2.0]], dtype=torch.bfloat16)
    mask = torch.ones(1, 2, dtype=torch.bool)
    with torch.no_grad():
        per_token, _ = loss.policy_loss(half, half, half, mask, 0.2)
        results = [per_token, loss.value_loss(half, half, half, 0.2), loss.entropy_term(half, 0.1)]
        results += [loss.nl_gradient_loss(half, half, mask), loss.average(half, mask, 1)]
    assert all(result.dtype == torch.float32 and result.isfinite().all() for result in results)
