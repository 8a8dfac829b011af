"""`rl.advantage` against literal numbers, brute force, and O(T^2) oracles in numpy.

No test here takes an argument: test_faults.py runs every one of them against faulty copies of the
module.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from text2grad.rl import advantage

Array = NDArray[np.float64]
GARBAGE = 7e4


def close(actual: torch.Tensor, expected: object, atol: float = 1e-6) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=atol)


def ragged(seed: int, batch: int = 5, length: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random rewards, values and a right-padded mask, one row empty and one full; garbage in the
    padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length, (batch,), generator=generator)
    lengths[0], lengths[-1] = length, 0
    mask = torch.arange(length) < lengths[:, None]
    rewards = torch.randn(batch, length, generator=generator, dtype=torch.float64)
    values = torch.randn(batch, length, generator=generator, dtype=torch.float64)
    return rewards.masked_fill(~mask, GARBAGE), values.masked_fill(~mask, -GARBAGE), mask


def gae_oracle(rewards: Array, values: Array, length: int, gamma: float, lam: float, bootstrap: float) -> Array:
    """A_t as the double sum the paper writes, one response at a time."""
    following = np.append(values[1:length], bootstrap) if length else np.zeros(0)
    result = np.zeros_like(rewards)
    for t in range(length):
        for k in range(t, length):
            td_error = rewards[k] + gamma * following[k] - values[k]
            result[t] += (gamma * lam) ** (k - t) * td_error
    return result


# Masked statistics


def test_masked_statistics_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, GARBAGE], [3.0, 4.0, GARBAGE]])
    mask = x < GARBAGE
    close(advantage.masked_mean(x, mask), 2.5)
    close(advantage.masked_var(x, mask), 5 / 3)
    close(advantage.masked_rms(x, mask), math.sqrt(7.5))


def test_masked_statistics_of_nothing_are_zero() -> None:
    x = torch.full((2, 3), GARBAGE)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    one = torch.tensor([[True, False, False], [False, False, False]])
    for statistic in (advantage.masked_mean, advantage.masked_var, advantage.masked_rms):
        close(statistic(x, nothing), 0.0)
    close(advantage.masked_var(x, one), 0.0)


def test_masked_rms_of_zeros_has_a_gradient() -> None:
    x = torch.zeros(1, 3, requires_grad=True)
    advantage.masked_rms(x, torch.ones(1, 3, dtype=torch.bool)).backward()
    close(x.grad, [[0.0, 0.0, 0.0]])


# Log-probabilities, entropy, KL


def test_token_logps_by_hand() -> None:
    logits = torch.tensor([[[0.0, math.log(4)], [math.log(3), 0.0]]])
    ids = torch.tensor([[1, 0]])
    close(advantage.token_logps(logits, ids), [[math.log(0.8), math.log(0.75)]])
    # At temperature 2 the odds 4 : 1 become 2 : 1, and 3 : 1 become sqrt(3) : 1.
    close(advantage.token_logps(logits, ids, 2.0), [[math.log(2 / 3), -math.log(1 + 1 / math.sqrt(3))]])


def test_entropy_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(4)]]])
    close(advantage.entropy(logits), [[math.log(2), 0.2 * math.log(5) + 0.8 * math.log(1.25)]])
    close(advantage.entropy(logits, 2.0), [[math.log(2), math.log(3) - 2 / 3 * math.log(2)]])


def test_kl_full_by_hand() -> None:
    policy = torch.tensor([[[0.0, 0.0]]])
    reference = torch.tensor([[[math.log(0.25), math.log(0.75)]]])
    close(advantage.kl_full(policy, reference), [[0.5 * math.log(4 / 3)]])
    close(advantage.kl_full(reference, policy), [[0.25 * math.log(0.5) + 0.75 * math.log(1.5)]])
    hot = 0.5 * math.log((1 + math.sqrt(3)) ** 2 / (4 * math.sqrt(3)))
    close(advantage.kl_full(policy, reference, 2.0), [[hot]])


def test_kl_estimators_by_hand() -> None:
    logp, ref_logp = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    close(advantage.kl_k1(logp, ref_logp), [[0.5, -1.0]])
    close(advantage.kl_k3(logp, ref_logp), [[math.exp(-0.5) - 0.5, math.e - 2.0]])


def test_kl_estimators_are_unbiased() -> None:
    """The expectation of k1 and k3 under the policy, summed over the vocabulary, is the full KL."""
    generator = torch.Generator().manual_seed(0)
    logits, ref_logits = torch.randn(2, 3, 4, 6, generator=generator, dtype=torch.float64)
    log_p, log_ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    exact = advantage.kl_full(logits, ref_logits)
    for estimator in (advantage.kl_k1, advantage.kl_k3):
        columns = [log_p[..., v].exp() * estimator(log_p[..., v], log_ref[..., v]) for v in range(6)]
        close(torch.stack(columns).sum(0), exact, atol=1e-12)
    assert (exact > 0).all()


def test_as_a_reward_k1_pulls_a_token_back_to_the_reference_and_the_full_kl_does_not() -> None:
    """The expected policy gradient of -KL_t at t itself: k1 gives -grad KL; the full KL, the same
    for all, 0."""
    generator = torch.Generator().manual_seed(0)
    logits, ref_logits = torch.randn(2, 1, 1, 6, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    log_p, log_ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    exact = advantage.kl_full(logits, ref_logits)

    def expected_step(penalty: torch.Tensor) -> torch.Tensor:
        surrogate = (log_p.exp().detach() * -penalty.detach() * log_p).sum()
        return torch.autograd.grad(surrogate, logits, retain_graph=True)[0]

    (downhill,) = torch.autograd.grad(-exact.sum(), logits, retain_graph=True)
    close(expected_step(advantage.kl_k1(log_p[0], log_ref[0])[None]), downhill, atol=1e-12)
    close(expected_step(exact[..., None].expand_as(log_p)), torch.zeros_like(downhill), atol=1e-12)
    assert downhill.abs().max() > 0.01


def test_forbidden_tokens_leave_no_nan() -> None:
    """A logit of -inf (constrained decoding) has probability 0: it adds nothing and its gradient is
    0."""
    logits = torch.tensor([[[0.0, math.log(4), -math.inf]]], requires_grad=True)
    ref_logits = torch.tensor([[[0.0, 0.0, -math.inf]]])
    kl = advantage.kl_full(logits, ref_logits)
    total = kl + advantage.entropy(logits) + advantage.token_logps(logits, torch.tensor([[0]]))
    close(total, [[math.log(2) + math.log(0.2)]])
    total.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_half_precision_is_raised_to_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 50, generator=generator).to(torch.bfloat16)
    ids = torch.randint(0, 50, (2, 3), generator=generator)
    for result, expected in (
        (advantage.token_logps(logits, ids), advantage.token_logps(logits.float(), ids)),
        (advantage.entropy(logits), advantage.entropy(logits.float())),
        (advantage.kl_full(logits, logits + 1), advantage.kl_full(logits.float(), (logits + 1).float())),
    ):
        assert result.dtype == torch.float32
        assert torch.equal(result, expected)


def test_gradients_agree_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, ref_logits = torch.randn(2, 2, 3, 4, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    ids = torch.randint(0, 4, (2, 3), generator=generator)
    assert torch.autograd.gradcheck(lambda x: advantage.token_logps(x, ids, 0.7), logits)
    assert torch.autograd.gradcheck(lambda x: advantage.entropy(x, 0.7), logits)
    assert torch.autograd.gradcheck(lambda x: advantage.kl_full(x, ref_logits, 0.7), logits)


def test_adaptive_kl_by_hand() -> None:
    expected = {12.0: 0.200048, 6.6: 0.200024, 6.0: 0.2, 5.7: 0.199988, 0.0: 0.199952}
    for observed, coefficient in expected.items():
        assert advantage.adaptive_kl(0.2, observed, 6.0, 10_000, 12) == pytest.approx(coefficient, abs=1e-12)
    assert advantage.adaptive_kl(0.05, 30.0, 3.0, 100, 50) == pytest.approx(0.055, abs=1e-12)


# Rewards, advantages, returns


def test_token_rewards_by_hand() -> None:
    delta, kl = torch.tensor([[1.0, 0.0, -1.0, GARBAGE]]), torch.tensor([[0.1, 0.2, -0.3, GARBAGE]])
    mask = torch.tensor([[True, True, True, False]])
    close(advantage.token_rewards(delta, kl, 0.5, mask), [[0.95, -0.1, -0.85, 0.0]])


def test_gae_by_hand() -> None:
    """Two copies of one response, the first finished and the second truncated with V = 2 after
    it."""
    rewards = torch.tensor([[1.0, 0.0, -1.0, GARBAGE]]).repeat(2, 1)
    values = torch.tensor([[0.5, 0.25, 0.125, GARBAGE]]).repeat(2, 1)
    mask = torch.tensor([[True, True, True, False]]).repeat(2, 1)
    advantages, returns = advantage.gae(rewards, values, mask, 0.9, 0.8, torch.tensor([0.0, 2.0]))
    close(advantages, [[0.0428, -0.9475, -1.125, 0.0], [0.97592, 0.3485, 0.675, 0.0]])
    close(returns, [[0.5428, -0.6975, -1.0, 0.0], [1.47592, 0.5985, 0.8, 0.0]])


def test_gae_gives_the_numbers_of_rlax() -> None:
    """The literals of rlax's multistep_test.py; its second row is cut where its discount is 0."""
    rewards = torch.tensor([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 0.0]])
    values = torch.tensor([[1.0, 4.0, -3.0, -2.0, -1.0], [-3.0, -2.0, -1.0, 0.0, GARBAGE]])
    mask = torch.arange(5) < torch.tensor([[5], [4]])
    bootstrap = torch.tensor([-1.0, 0.0])
    first = {
        1.0: [-1.45118, -4.4557, 2.5396, 0.5249, -0.49],
        0.7: [-0.676979, -5.248167, 2.4846, 0.6704, -0.49],
        0.4: [0.56731, -6.042, 2.3431, 0.815, -0.49],
    }
    second = {1.0: [3.0, 2.0, 1.0, 0.0], 0.7: [2.2899, 1.73, 1.0, 0.0], 0.4: [1.725, 1.46, 1.0, 0.0]}
    for lam in first:
        long, _ = advantage.gae(rewards[:1], values[:1], mask[:1], 0.99, lam, bootstrap[:1])
        close(long, [first[lam]], atol=1e-3)  # rlax's own tolerance: some of its literals are cut
        short, _ = advantage.gae(rewards, values, mask, 0.9, lam, bootstrap)
        close(short[1], [*second[lam], 0.0], atol=1e-3)


def test_gae_equals_the_double_sum() -> None:
    for seed, (gamma, lam) in enumerate([(1.0, 0.95), (0.9, 1.0), (0.97, 0.5), (1.0, 0.0), (0.0, 0.9)]):
        rewards, values, mask = ragged(seed)
        bootstrap = torch.randn(len(mask), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        advantages, returns = advantage.gae(rewards, values, mask, gamma, lam, bootstrap)
        for b, length in enumerate(mask.sum(1).tolist()):
            expected = gae_oracle(rewards[b].numpy(), values[b].numpy(), length, gamma, lam, bootstrap[b].item())
            close(advantages[b], expected, atol=1e-12)
            close(returns[b], np.where(mask[b], expected + values[b].numpy(), 0), atol=1e-12)


def test_gae_by_hand_over_what_a_tool_said() -> None:
    """The response of `test_gae_by_hand`, with two tokens of a tool behind its first, and one
    behind its second."""
    rewards = torch.tensor([[1.0, GARBAGE, GARBAGE, 0.0, GARBAGE, -1.0]])
    values = torch.tensor([[0.5, GARBAGE, GARBAGE, 0.25, GARBAGE, 0.125]])
    mask = rewards < GARBAGE
    advantages, returns = advantage.gae(rewards, values, mask, 0.9, 0.8, torch.zeros(1))
    close(advantages, [[0.0428, 0.0, 0.0, -0.9475, 0.0, -1.125]])
    close(returns, [[0.5428, 0.0, 0.0, -0.6975, 0.0, -1.0]])
    close(advantage.mc_returns(rewards, mask, 0.5, torch.zeros(1)), [[0.75, 0.0, 0.0, -0.5, 0.0, -1.0]])


def turns(seed: int, batch: int = 6, length: int = 14) -> torch.Tensor:
    """A random mask of the policy's own tokens: gaps anywhere, one row without any token, one
    without a gap."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, length, generator=generator) < 0.6
    mask[0], mask[-1] = False, torch.arange(length) < 5
    return mask


def deleted(mask: torch.Tensor, *columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same rows without the tokens of others, padded on the right, with their mask in front."""
    rows = [[column[b][mask[b]] for b in range(len(mask))] for column in (mask, *columns)]
    return tuple(torch.nn.utils.rnn.pad_sequence(row, batch_first=True) for row in rows)


def test_what_others_say_between_turns_is_as_if_deleted() -> None:
    """Rewards, advantages and returns of every kind, and every mean over the mask."""
    for seed in range(4):
        mask, generator = turns(seed), torch.Generator().manual_seed(seed)
        delta, kl, values, words = torch.randn(4, *mask.shape, generator=generator, dtype=torch.float64)
        bootstrap, gains = torch.randn(2, len(mask), generator=generator, dtype=torch.float64)
        learned = mask & (torch.arange(len(mask)) != 2)[:, None]  # one critique failed
        noisy = [column.masked_fill(~mask, GARBAGE) for column in (delta, kl, values, words)]
        short, *cut, cut_learned = deleted(mask, delta, kl, values, words, learned)
        for kind in ("gae", "returns", "group"):
            for normalisation in ("none", "scale", "whiten"):
                options = {"gamma": 0.9, "lam": 0.8, "normalisation": normalisation}
                found, expected = (
                    advantage.estimate_advantages(
                        kind,
                        advantage.RewardTerms(d, k, 0.3, v, bootstrap, m, each),
                        **options,
                        group=advantage.GroupTerms(gains, w, 2),
                    )
                    for (d, k, v, w), m, each in ((noisy, mask, learned), (cut, short, cut_learned))
                )
                for ours, theirs in zip(found, expected, strict=True):
                    assert not ours[~mask].any()
                    torch.testing.assert_close(deleted(mask, ours)[1], theirs, rtol=0, atol=1e-12)
        advantages, _ = advantage.gae(noisy[0], noisy[2], mask, 0.9, 0.8, bootstrap)
        for b, length in enumerate(short.sum(1).tolist()):
            oracle = gae_oracle(cut[0][b].numpy(), cut[2][b].numpy(), length, 0.9, 0.8, bootstrap[b].item())
            close(advantages[b][mask[b]], oracle[:length], atol=1e-12)
        for statistic in (advantage.wrong_sign_rate, advantage.explained_variance):
            close(statistic(noisy[0], noisy[2], mask), statistic(cut[0], cut[2], short), atol=1e-9)


def test_padding_changes_no_advantage() -> None:
    rewards, values, mask = ragged(1)
    bootstrap = torch.linspace(-1, 1, len(mask), dtype=torch.float64)
    longer = [torch.nn.functional.pad(x, (0, 3)) for x in (rewards, values, mask)]
    short = advantage.gae(rewards, values, mask, 0.99, 0.95, bootstrap)
    for before, after in zip(short, advantage.gae(*longer, 0.99, 0.95, bootstrap), strict=True):
        assert torch.equal(before, after[:, :-3]) and not after[:, -3:].any()


def test_mc_returns_by_hand_and_as_gae_with_lambda_one() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0, GARBAGE]])
    mask = torch.tensor([[True, True, True, False]])
    close(advantage.mc_returns(rewards, mask, 0.5, torch.zeros(1)), [[2.75, 3.5, 3.0, 0.0]])
    close(advantage.mc_returns(rewards, mask, 0.5, torch.tensor([8.0])), [[3.75, 5.5, 7.0, 0.0]])
    rewards, values, mask = ragged(2)
    bootstrap = torch.linspace(-1, 1, len(mask), dtype=torch.float64)
    _, returns = advantage.gae(rewards, values, mask, 0.9, 1.0, bootstrap)
    close(advantage.mc_returns(rewards, mask, 0.9, bootstrap), returns, atol=1e-11)


def test_without_discount_lambda_and_value_the_advantage_is_the_reward() -> None:
    """Definition 1: A_t = delta_t."""
    rewards, _, mask = ragged(3)
    zeros = torch.zeros_like(rewards)
    advantages, _ = advantage.gae(rewards, zeros, mask, 0.0, 0.0, zeros[:, 0])
    assert torch.equal(advantages, rewards.masked_fill(~mask, 0))


def test_normalise_by_hand() -> None:
    advantages = torch.tensor([[1.0, 2.0, GARBAGE], [3.0, 4.0, GARBAGE]])
    mask = advantages < GARBAGE
    close(advantage.normalise(advantages, mask, "none"), [[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]])
    scaled = [[0.3651484, 0.7302967, 0.0], [1.0954451, 1.4605935, 0.0]]
    close(advantage.normalise(advantages, mask, "scale"), scaled)
    whitened = [[-1.1618950, -0.3872983, 0.0], [0.3872983, 1.1618950, 0.0]]
    close(advantage.normalise(advantages, mask, "whiten"), whitened)


def test_normalising_zeros_gives_zeros() -> None:
    zeros, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    for mode in ("none", "scale", "whiten"):
        close(advantage.normalise(zeros, mask, mode), zeros)


# What is logged


def test_wrong_sign_rate_by_hand() -> None:
    delta = torch.tensor([[1.0, 1.0, -1.0, -1.0, 0.0, 1.0]])
    advantages = torch.tensor([[0.5, -0.5, -0.1, 0.0, -3.0, -9.0]])
    mask = torch.tensor([[True, True, True, True, True, False]])
    close(advantage.wrong_sign_rate(delta, advantages, mask), 0.25)
    close(advantage.wrong_sign_rate(-delta, advantages, mask), 0.5)
    close(advantage.wrong_sign_rate(torch.zeros_like(delta), advantages, mask), 0.0)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0, 4.0, GARBAGE]])
    mask = returns < GARBAGE
    close(advantage.explained_variance(returns, returns, mask), 1.0)
    close(advantage.explained_variance(returns, torch.zeros_like(returns), mask), 0.0)
    close(advantage.explained_variance(returns, torch.tensor([[1.5, 2.5, 2.5, 3.5, 0.0]]), mask), 0.8)
    close(advantage.explained_variance(torch.ones_like(returns), returns, mask), 0.0)


def test_reward_length_correlation_by_hand() -> None:
    lengths = torch.tensor([10, 20, 30])
    close(advantage.reward_length_correlation(torch.tensor([1.0, 2.0, 3.0]), lengths), 1.0)
    close(advantage.reward_length_correlation(torch.tensor([3.0, 2.0, 1.0]), lengths), -1.0)
    close(advantage.reward_length_correlation(torch.tensor([1.0, 3.0, 2.0]), lengths), 0.5)
    close(advantage.reward_length_correlation(torch.full((3,), 0.1), lengths), 0.0)
    close(advantage.reward_length_correlation(torch.tensor([1.0, 3.0, 2.0]), torch.full((3,), 7)), 0.0)


# What is refused


def test_wrong_shapes_are_named() -> None:
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask is \(2, 4\) but x is \(2, 3\)"):
        advantage.masked_mean(x, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask is torch.float32, expected torch.bool"):
        advantage.masked_mean(x, x)
    with pytest.raises(ValueError, match=r"logits has 2 axes \(2, 3\), expected 3"):
        advantage.entropy(x)
    with pytest.raises(ValueError, match=r"bootstrap is \(3,\), expected \(2,\)"):
        advantage.gae(x, x, mask, 1.0, 1.0, torch.zeros(3))
    with pytest.raises(ValueError, match="normalisation is 'center'"):
        advantage.normalise(x, mask, "center")
    with pytest.raises(ValueError, match=r"temperature is 0\.0, expected > 0"):
        advantage.token_logps(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long), 0.0)


# Group advantages


def slow_centred(gains: Array, learned: NDArray[np.bool_], size: int, row: int) -> tuple[float, float]:
    """How far a response's gain is from its group's mean, and the spread of that group."""
    first = row // size * size
    others = [gains[i] for i in range(first, first + size) if learned[i].any()]
    return float(gains[row] - np.mean(others)), float(np.std(others))


def slow_group_advantages(
    gains: Array, words: Array, kl: Array, learned: NDArray[np.bool_], size: int, beta: float
) -> Array:
    """GRPO's term, the token's own, then the penalty: token by token, from the formula."""
    result = np.zeros_like(words)
    for row in range(len(words)):
        for t in np.flatnonzero(learned[row]):
            centred, spread = slow_centred(gains, learned, size, row)
            result[row, t] = centred / (spread + 1e-4) + words[row, t] - beta * kl[row, t]
    return result


def test_group_advantages_by_hand() -> None:
    """Equal verdicts say nothing; a token keeps what it earned, however good its neighbours are."""
    words = torch.tensor([[1.0, 1.0], [0.0, GARBAGE], [5.0, 5.0], [4.0, -6.0]])
    learned = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
    got = advantage.group_advantages(torch.tensor([1.0, -1.0, 1.0, 1.0]), words, learned, 2)
    one = 1 / (1 + 1e-4)
    close(got, torch.tensor([[one + 1, one + 1], [-one, 0.0], [5.0, 5.0], [4.0, -6.0]]))


def test_group_advantages_are_those_of_the_slow_formula_failed_critiques_left_out() -> None:
    generator = np.random.default_rng(0)
    for size in (2, 3, 4):
        words, kl = generator.normal(size=(2, 12, 7))
        gains = generator.normal(size=12)
        lengths = generator.integers(0, 8, size=12)  # 0: the critique failed
        learned = np.arange(7) < lengths[:, None]
        compared = advantage.group_advantages(*map(torch.tensor, (gains, words, learned)), size)
        got = advantage.token_rewards(compared, torch.tensor(kl), 0.3, torch.tensor(learned))
        close(got, torch.tensor(slow_group_advantages(gains, words, kl, learned, size, 0.3)))


def test_sums_that_differ_by_rounding_alone_are_equal() -> None:
    """Ten tokens of 0.1 do not add up to 1 in float32."""
    shares = torch.tensor([[0.1] * 10, [1.0] + [0.0] * 9, [0.3, 0.3, 0.4] + [0.0] * 7, [0.7, 0.3] + [0.0] * 8])
    every = torch.ones(4, 10, dtype=torch.bool)
    got = advantage.group_advantages(shares.sum(dim=1), torch.zeros_like(shares), every, 4)
    assert got.abs().max() < 0.01
    assert not advantage.in_unequal_groups(shares.sum(dim=1), every, 4).any()


def test_groups_whose_responses_gained_the_same_are_found() -> None:
    """Rows 0 to 2: one failed critique and two equal gains; rows 3 to 5 differ."""
    gains = torch.tensor([1.0, GARBAGE, 1.0, 1.0, 1.0, 2.0])
    learned = torch.ones(6, 2, dtype=torch.bool)
    learned[1] = False
    found = advantage.in_unequal_groups(gains, learned, 3)
    assert found.tolist() == [False, False, False, True, True, True]


def slow_lost(gains: Array, learned: NDArray[np.bool_], size: int, row: int) -> bool:
    """Whether several responses to a row's prompt were judged, all alike and all below 0."""
    first = row // size * size
    judged = [gains[i] for i in range(first, first + size) if learned[i].any()]
    return bool(learned[row].any() and len(judged) > 1 and max(judged) < 0 and np.ptp(judged) < 1e-6)


def slow_shared(words: Array) -> Array:
    """The words of one response that failed as its siblings did."""
    debts = -sum(word for word in words if word < 0)
    return np.array([word / debts if word < 0 and debts > 1 else word for word in words])


def test_groups_that_are_lost_by_hand() -> None:
    """All poor; all good; poor and worse; one alone, whose siblings have no critique; nothing but
    failures."""
    gains = torch.tensor([-1.0, -1.0, 1.0, 1.0, -1.0, -0.5, -1.0, 0.0, 0.0, 0.0])
    learned = torch.ones(10, 2, dtype=torch.bool)
    learned[7:] = False
    found = advantage.in_failed_groups(gains, learned, 2)
    assert found.tolist() == [True, True] + [False] * 8
    assert not advantage.in_failed_groups(gains, learned, 1).any()


def test_blame_in_failed_groups_is_shared_as_the_slow_formula_says() -> None:
    """Nothing changes elsewhere."""
    generator = np.random.default_rng(1)
    for size in (1, 2, 3, 4):
        delta, words = generator.normal(size=(2, 24, 7))
        words *= generator.choice([0.0, 0.1, 2.0], size=(24, 1))  # none, little and much to share
        gains = np.repeat(generator.choice([-1.0, -0.2, 0.0, 1.0], size=24 // size), size)
        gains[:2] += 0.3 * generator.normal(size=2)
        learned = np.arange(7) < generator.integers(0, 8, size=24)[:, None]
        found = advantage.in_failed_groups(torch.tensor(gains), torch.tensor(learned), size)
        lost = [row for row in range(24) if slow_lost(gains, learned, size, row)]
        judged = learned.any(axis=1)
        assert np.flatnonzero(found.numpy() & judged).tolist() == lost and bool(lost) == (size > 1)
        got = advantage.share_blame(torch.tensor(delta), torch.tensor(words), found)
        for row in np.flatnonzero(judged):
            shared = slow_shared(words[row])
            expected = (shared, shared) if row in lost else (delta[row], words[row])
            for column, own in zip(got, expected, strict=True):
                close(column[row], torch.tensor(own))


def test_responses_that_are_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="5 responses cannot be divided into groups of 2"):
        advantage.group_advantages(torch.zeros(5), torch.zeros(5, 2), torch.ones(5, 2, dtype=torch.bool), 2)


# Estimates


def rewarded(seed: int) -> advantage.RewardTerms:
    """Random deltas, KL and values of six ragged responses, one empty, one whose critique
    failed."""
    delta, values, mask = ragged(seed, batch=6)
    generator = torch.Generator().manual_seed(seed + 1)
    kl = torch.rand(delta.shape, generator=generator, dtype=torch.float64)
    bootstrap = torch.randn(len(delta), generator=generator, dtype=torch.float64)
    learned = mask.clone()
    learned[1] = False
    return advantage.RewardTerms(delta, kl, 0.3, values, bootstrap, mask, learned)


def paid(given: advantage.RewardTerms) -> torch.Tensor:
    return torch.where(given.mask, given.delta - 0.3 * given.kl, 0)


def test_returns_are_sums_of_rewards_discounted_by_gamma_times_lambda() -> None:
    given = rewarded(3)
    found = advantage.estimate_advantages("returns", given, gamma=0.8, lam=0.5)
    close(found.rewards, paid(given), atol=1e-12)
    for row, length in enumerate(given.mask.sum(dim=1).tolist()):
        rewards = paid(given)[row]
        sums = [sum(0.4 ** (k - t) * rewards[k] for k in range(t, length)) for t in range(length)]
        close(found.returns[row, :length], sums, atol=1e-9)
    close(found.advantages, torch.where(given.judged_mask, found.returns, 0), atol=0)


def test_with_a_value_function_an_estimate_is_gae_and_with_lam_1_its_target_the_sum_of_rewards() -> None:
    given = rewarded(4)
    advantages, returns = advantage.gae(paid(given), given.values, given.mask, 0.8, 0.5, given.bootstrap)
    found = advantage.estimate_advantages("gae", given, gamma=0.8, lam=0.5, normalisation="scale")
    close(found.advantages, advantage.normalise(advantages, given.judged_mask, "scale"), atol=1e-12)
    close(found.returns, returns, atol=1e-12)
    sums = advantage.estimate_advantages("gae", given, gamma=0.8, lam=1.0).returns
    close(sums, advantage.mc_returns(paid(given), given.mask, 0.8, given.bootstrap), atol=1e-12)
    assert (sums - returns).abs().max() > 0.1


def test_a_group_compares_verdicts_words_are_brought_to_unit_size_and_the_kl_comes_last() -> None:
    given = rewarded(5)
    generator = torch.Generator().manual_seed(0)
    gains = torch.randn(6, generator=generator, dtype=torch.float64)
    words = torch.randn(given.mask.shape, generator=generator, dtype=torch.float64)
    group = advantage.GroupTerms(gains, words, 2)
    found = advantage.estimate_advantages("group", given, gamma=0.8, lam=0.5, normalisation="scale", group=group)
    learned = given.judged_mask.numpy()
    earned = advantage.mc_returns(words, given.mask, 0.4, torch.zeros(6, dtype=torch.float64)).numpy()
    size = np.sqrt(np.mean(earned[learned] ** 2))
    slow = slow_group_advantages(gains.numpy(), earned / size, given.kl.numpy(), learned, 2, 0.3)
    close(found.advantages, torch.tensor(slow), atol=1e-6)
    close(found.rewards, paid(given), atol=1e-12)
    assert not found.returns.any()
    with pytest.raises(ValueError, match="`group`"):
        advantage.estimate_advantages("group", given, gamma=0.8, lam=0.5)
