"""The formulas of self-distillation beside slow ones, a token at a time in plain Python floats."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from text2grad.rl import distill

ROWS, LENGTH, WIDTH, SIZE = 3, 5, 4, 9
LENGTHS = (5, 2, 3)


class Drawn:
    """Log-probabilities of student and teacher over a vocabulary, sampled ids, and the student's likeliest ids."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(3, ROWS, LENGTH, SIZE, generator=generator, dtype=torch.float64)
        self.student, self.teacher, self.old = logits.log_softmax(-1)
        self.ids = torch.randint(0, SIZE, (ROWS, LENGTH), generator=generator)
        self.top = self.student.topk(WIDTH, dim=-1).indices
        self.mask = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
        self.advantages = torch.randn(ROWS, LENGTH, generator=generator, dtype=torch.float64)

    def logp(self, of: Tensor) -> Tensor:
        return of.gather(-1, self.ids[..., None])[..., 0]

    def support(self, of: Tensor) -> Tensor:
        return of.gather(-1, self.top)

    def gaps(self) -> list[list[float]]:
        """What the teacher says of each sampled token, row by row."""
        pairs = zip(self.logp(self.teacher).tolist(), self.logp(self.student).tolist(), strict=True)
        return [[t - s for t, s in zip(*pair, strict=True)] for pair in pairs]


def compare(found: Tensor, slow: list[list[float]]) -> None:
    """Inside the responses as the slow formula says, 0 outside."""
    for row, length in enumerate(LENGTHS):
        assert found[row, :length].tolist() == pytest.approx(slow[row][:length], abs=1e-12)
        assert not found[row, length:].any()


def slow_divergence(own: list[float], other: list[float], forward: bool) -> float:
    """KL over a support and its tail, from log-probabilities of the support."""
    s, t = ([*(math.exp(x) for x in each), 1 - sum(math.exp(x) for x in each)] for each in (own, other))
    p, q = (t, s) if forward else (s, t)
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_the_gap_is_what_the_teacher_says_beyond_the_student() -> None:
    drawn = Drawn()
    found = distill.gap(drawn.logp(drawn.student).requires_grad_(), drawn.logp(drawn.teacher), drawn.mask)
    compare(found, drawn.gaps())
    assert not found.requires_grad


def test_the_ratio_is_bounded_above_alone_and_no_gradient_passes() -> None:
    drawn = Drawn()
    logp, old = drawn.logp(drawn.student).requires_grad_(), drawn.logp(drawn.old)
    found = distill.bounded_ratio(logp, old, drawn.mask, 1.1)
    slow = [
        [min(math.exp(a - b), 1.1) for a, b in zip(*each, strict=True)]
        for each in zip(logp.tolist(), old.tolist(), strict=True)
    ]
    for row, length in enumerate(LENGTHS):
        assert found[row, :length].tolist() == pytest.approx(slow[row][:length])
        assert (found[row, length:] == 1).all()
    assert 1.1 in slow[0] and min(map(min, slow)) < 0.5 and not found.requires_grad


def test_the_sampled_loss_and_its_gradient() -> None:
    drawn = Drawn()
    logp = drawn.logp(drawn.student).requires_grad_()
    found = distill.sampled_loss(logp, drawn.logp(drawn.teacher), drawn.mask)
    gaps = drawn.gaps()
    pairs = zip(gaps, logp.tolist(), strict=True)
    compare(found.detach(), [[-g * s for g, s in zip(*each, strict=True)] for each in pairs])
    (slope,) = torch.autograd.grad(found.sum(), logp)
    compare(slope, [[-g for g in row] for row in gaps])


def test_the_tail_is_all_that_the_support_leaves() -> None:
    drawn = Drawn()
    found = distill.with_tail(drawn.support(drawn.student)).exp()
    assert found.shape == (ROWS, LENGTH, WIDTH + 1)
    rest = 1 - drawn.support(drawn.student).exp().sum(-1)
    torch.testing.assert_close(found[..., -1], rest)
    torch.testing.assert_close(found[..., :-1], drawn.support(drawn.student).exp())


def test_a_support_of_everything_has_a_finite_tail() -> None:
    found = distill.with_tail(Drawn().student)
    assert found.isfinite().all() and float(found[..., -1].exp().max()) <= 2e-7


def test_divergences_over_the_support_and_its_tail() -> None:
    drawn = Drawn()
    own, other = drawn.support(drawn.student), drawn.support(drawn.teacher)
    for direction, forward in (("reverse", False), ("forward", True)):
        found = distill.divergence(own, other, drawn.mask, direction)  # type: ignore[arg-type]
        rows = zip(own.tolist(), other.tolist(), strict=True)
        slow = [[slow_divergence(s, t, forward) for s, t in zip(*row, strict=True)] for row in rows]
        compare(found, slow)
        assert min(map(min, slow)) > 0.01


def test_a_divergence_trains_the_student_alone_towards_the_teacher() -> None:
    drawn = Drawn()
    logits = drawn.student.clone().requires_grad_()
    teacher = drawn.support(drawn.teacher).requires_grad_()
    for direction in ("reverse", "forward"):
        student = logits.log_softmax(-1).gather(-1, drawn.top)
        before = distill.divergence(student, teacher, drawn.mask, direction)  # type: ignore[arg-type]
        (slope,) = torch.autograd.grad(before.sum(), logits)
        moved = (logits - 0.05 * slope).log_softmax(-1).gather(-1, drawn.top)
        after = distill.divergence(moved, teacher, drawn.mask, direction)  # type: ignore[arg-type]
        assert (after < before)[drawn.mask].all()
        assert not slope[~drawn.mask].any() and teacher.grad is None
    with pytest.raises(ValueError, match="direction is 'sideways'"):
        distill.divergence(student, teacher, drawn.mask, "sideways")  # type: ignore[arg-type]


def test_a_verdict_gives_the_sign_and_the_teacher_the_size() -> None:
    drawn = Drawn()
    gaps, mask = torch.tensor(drawn.gaps(), dtype=torch.float64) / 4, drawn.mask
    found = distill.sized(drawn.advantages, gaps, mask, 0.2)
    slow = [
        [a * min(max(math.exp(math.copysign(1, a) * g), 0.8), 1.2) for a, g in zip(*each, strict=True)]
        for each in zip(drawn.advantages.tolist(), gaps.tolist(), strict=True)
    ]
    compare(found, slow)
    sizes = (found / drawn.advantages)[mask]
    assert {0.8, 1.2} < set(sizes.round(decimals=6).tolist()) and (sizes > 0).all()
    compare(distill.sized(drawn.advantages, torch.zeros_like(gaps), mask, 0.2), drawn.advantages.tolist())


def test_what_stands_outside_the_mask_reaches_nothing() -> None:
    drawn = Drawn()
    logp, teacher, wild = drawn.logp(drawn.student), drawn.logp(drawn.teacher), torch.full((ROWS, LENGTH), -3e30)
    spoiled = torch.where(drawn.mask, teacher, wild.double())
    assert torch.equal(distill.gap(logp, spoiled, drawn.mask), distill.gap(logp, teacher, drawn.mask))
    assert torch.equal(
        distill.sampled_loss(logp, spoiled, drawn.mask), distill.sampled_loss(logp, teacher, drawn.mask)
    )


def test_half_precision_is_raised_to_float32() -> None:
    drawn = Drawn()
    half = drawn.support(drawn.student).bfloat16()
    assert distill.with_tail(half).dtype == torch.float32
    logp, old = drawn.logp(drawn.student).bfloat16(), drawn.logp(drawn.old).bfloat16()
    assert distill.bounded_ratio(logp, old, drawn.mask, 2.0).dtype == torch.float32
    assert distill.gap(logp, old, drawn.mask).dtype == torch.float32
