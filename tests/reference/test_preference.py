"""`rl.preference` against literal numbers and an explicit sum.

No test here takes an argument: test_faults.py runs every one of them against faulty copies of the module.
"""

from __future__ import annotations

import math

import pytest
import torch

from text2grad.rl import preference

GARBAGE = 7e4


def close(actual: torch.Tensor, expected: object, atol: float = 1e-6) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=atol)


def test_implicit_rewards_are_sums_over_the_answer() -> None:
    log_ratio = torch.tensor([[0.5, -0.25, 1.0], [2.0, GARBAGE, GARBAGE]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    close(preference.implicit_rewards(log_ratio, mask, 0.1), [0.125, 0.2])
    nothing = torch.zeros_like(mask)
    close(preference.implicit_rewards(log_ratio, nothing, 0.1), [0.0, 0.0])


def test_half_precision_is_summed_in_float32() -> None:
    log_ratio = torch.full((1, 300), 0.01, dtype=torch.bfloat16)
    found = preference.implicit_rewards(log_ratio, torch.ones(1, 300, dtype=torch.bool), 1.0)
    assert found.dtype == torch.float32
    close(found, [300 * float(torch.tensor(0.01, dtype=torch.bfloat16))], atol=1e-4)


def test_the_loss_of_a_pair() -> None:
    """Margins 0, ln 3 and -ln 3: the choice has the probability 1/2, 3/4, 1/4."""
    chosen = torch.tensor([1.0, math.log(3), 0.0], dtype=torch.float64)
    rejected = torch.tensor([1.0, 0.0, math.log(3)], dtype=torch.float64)
    close(preference.pair_loss(chosen, rejected), [math.log(2), math.log(4 / 3), math.log(4)])


def test_the_loss_of_a_large_margin_is_finite() -> None:
    far = torch.tensor([1000.0, -1000.0])
    close(preference.pair_loss(far, -far), [0.0, 2000.0])


def test_the_gradient_of_the_loss() -> None:
    """d loss / d r_c = -sigmoid(r_r - r_c), and the opposite for r_r."""
    chosen = torch.tensor([math.log(3)], dtype=torch.float64, requires_grad=True)
    rejected = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    preference.pair_loss(chosen, rejected).sum().backward()
    assert chosen.grad is not None and rejected.grad is not None
    close(chosen.grad, [-0.25])
    close(rejected.grad, [0.25])


def test_dpo_by_hand() -> None:
    """Sums of log-probabilities of policy and reference, one answer of two tokens and one of one, at beta .1."""
    policy, reference = {"chosen": [-1.0, -2.0], "rejected": [-4.0]}, {"chosen": [-1.5, -2.5], "rejected": [-3.0]}
    margin = 0.1 * ((sum(policy["chosen"]) - sum(reference["chosen"])) - (-4.0 + 3.0))
    log_ratio = torch.tensor([[0.5, 0.5], [-1.0, GARBAGE]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    chosen, rejected = preference.implicit_rewards(log_ratio, mask, 0.1).chunk(2)
    close(preference.pair_loss(chosen, rejected), [-math.log(1 / (1 + math.exp(-margin)))])


def test_an_equal_pair_is_half_right() -> None:
    close(preference.pair_accuracy(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([1.0, 2.0, 0.5])), [1.0, 0.0, 0.5])


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="rejected"):
        preference.pair_loss(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="mask"):
        preference.implicit_rewards(torch.zeros(1, 2), torch.zeros(1, 2), 0.1)
