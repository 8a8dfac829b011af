"""From logits and token rewards to advantages: the arithmetic of paper section 3.5 before the loss.

Pure functions, tensors in and tensors out. B is the number of responses, T the length of the
longest, V the vocabulary. A (B, T) tensor is response-aligned: index t is the t-th response token,
and the reward at t belongs to the action that produced it. `mask` is boolean and True on tokens of
the policy only; what lies outside it, the padding and what others said between two turns, may hold
any finite number and reaches no result: every result is that of the rows without it. Half-precision
input is raised to float32. A wrong rank, shape or dtype raises `ValueError` with the name of the
offender.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Kind = Literal["returns", "gae", "group"]
Normalisation = Literal["none", "scale", "whiten"]

KL_ERROR_LIMIT = 0.2
EPSILON = 1e-8
GROUP_EPSILON = 1e-4  # well above the rounding of sums that are meant to be equal


def check_shapes(rank: int, **tensors: Tensor) -> None:
    """All tensors have this rank and one common shape; a tensor named `mask` is boolean.

    Raises:
        ValueError: names the tensor that differs.
    """
    first, expected = next((name, tensor.shape) for name, tensor in tensors.items())
    for name, tensor in tensors.items():
        if tensor.ndim != rank:
            raise ValueError(f"{name} has {tensor.ndim} axes {tuple(tensor.shape)}, expected {rank}")
        if tensor.shape != expected:
            raise ValueError(f"{name} is {tuple(tensor.shape)} but {first} is {tuple(expected)}")
        if name == "mask" and tensor.dtype != torch.bool:
            raise ValueError(f"mask is {tensor.dtype}, expected torch.bool")


def at_least_float32(x: Tensor) -> Tensor:
    """Raise half precision (and integers) to float32; float32 and float64 stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# Masked statistics --------------------------------------------------------------------------------


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `x` over the True positions of `mask`, both (B, T); a scalar, 0 when nothing is
    True."""
    check_shapes(x.ndim, x=x, mask=mask)
    x = at_least_float32(x)
    return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Sample variance (Bessel's correction) of `x` over `mask`; a scalar, 0 for fewer than two
    positions."""
    centred = at_least_float32(x) - masked_mean(x, mask)
    squares = torch.where(mask, centred, 0).square()
    return squares.sum() / (mask.sum() - 1).clamp(min=1)


def masked_rms(x: Tensor, mask: Tensor) -> Tensor:
    """Root mean square of `x` over `mask`; a scalar, 0 (with gradient 0) when all of it is 0."""
    check_shapes(x.ndim, x=x, mask=mask)
    mean_square = masked_mean(torch.where(mask, at_least_float32(x), 0).square(), mask)
    positive = mean_square > 0
    return torch.where(positive, torch.where(positive, mean_square, 1).sqrt(), 0)


# Log-probabilities, entropy, KL -------------------------------------------------------------------


def at_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits over `temperature`, at least in float32; at 1 nothing is divided, for there may be
    many of them."""
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected > 0: a greedy policy has no log-probability")
    logits = at_least_float32(logits)
    return logits if temperature == 1 else logits / temperature


def log_probs(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """log p over the vocabulary at `temperature`, (..., V) -> (..., V).

    A forbidden token (logit -inf) gets a finite floor, so that 0 * log 0 is 0.
    """
    log_p = torch.log_softmax(at_temperature(logits, temperature), dim=-1)
    return log_p.clamp(min=torch.finfo(log_p.dtype).min)


def of_tokens(log_p: Tensor, ids: Tensor) -> Tensor:
    """The entries of `log_p` (..., V) at the token ids (...)."""
    return log_p.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def entropy_of(log_p: Tensor) -> Tensor:
    """-sum_v p(v) log p(v) in nats, (..., V) -> (...)."""
    return -(log_p.exp() * log_p).sum(-1)


def kl_between(log_p: Tensor, log_ref: Tensor) -> Tensor:
    """sum_v p(v) (log p(v) - log ref(v)), (..., V) twice -> (...)."""
    return (log_p.exp() * (log_p - log_ref)).sum(-1)


def token_logps(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """log pi(y_t | x, y_<t) of the sampled tokens.

    Args:
        logits: (B, T, V); row t is the prediction *for* token t, made before it was seen.
        ids: (B, T) token ids; padding may hold any id of the vocabulary.
        temperature: the one the response was sampled at (docs/method.md).

    Returns:
        (B, T) log-probabilities, at most 0.
    """
    check_shapes(3, logits=logits)
    check_shapes(2, ids=ids, logits=logits[..., 0])
    return of_tokens(log_probs(logits, temperature), ids)


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """H_t = -sum_v p(v) log p(v) in nats, (B, T, V) -> (B, T)."""
    check_shapes(3, logits=logits)
    return entropy_of(log_probs(logits, temperature))


def kl_full(logits: Tensor, ref_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(policy || reference) at every token, summed over the vocabulary: sum_v p(v) log(p(v) /
    ref(v)).

    (B, T, V) twice -> (B, T), never negative beyond rounding. The paper's "Full" (Table 9).
    """
    check_shapes(3, logits=logits, ref_logits=ref_logits)
    return kl_between(log_probs(logits, temperature), log_probs(ref_logits, temperature))


def kl_k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) from the sampled token: log p - log ref, (B, T).

    Unbiased, high variance, can be negative (Schulman 2020, "Approximating KL divergence", k1).
    """
    check_shapes(2, logp=logp, ref_logp=ref_logp)
    return at_least_float32(logp) - at_least_float32(ref_logp)


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) from the sampled token: exp(-d) - 1 + d with d = log p -
    log ref.

    (B, T). Unbiased, low variance, never negative (Schulman 2020, k3).
    """
    log_ratio = kl_k1(logp, ref_logp)
    return torch.expm1(-log_ratio) + log_ratio


def adaptive_kl(coefficient: float, observed: float, target: float, horizon: float, count: int) -> float:
    """The next KL coefficient: coefficient * (1 + error * count / horizon).

    error = observed / target - 1, clipped to +-0.2 (Ziegler et al. 2019, section 2.2). `observed`
    is the mean over responses of the KL summed over their tokens; `count` the responses since the
    last call.
    """
    error = min(max(observed / target - 1.0, -KL_ERROR_LIMIT), KL_ERROR_LIMIT)
    return coefficient * (1.0 + error * count / horizon)


# Rewards, advantages, returns ---------------------------------------------------------------------


def token_rewards(delta: Tensor, kl: Tensor, coefficient: float, mask: Tensor) -> Tensor:
    """r_t^total = delta_t - beta * kl_t (paper, section 3.5), (B, T), 0 outside the mask."""
    check_shapes(2, delta=delta, kl=kl, mask=mask)
    return torch.where(mask, at_least_float32(delta) - coefficient * at_least_float32(kl), 0)


def _check_bootstrap(mask: Tensor, bootstrap: Tensor) -> None:
    if bootstrap.shape != mask.shape[:1]:
        raise ValueError(f"bootstrap is {tuple(bootstrap.shape)}, expected {tuple(mask.shape[:1])}")


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, bootstrap: Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (paper, section 3.5; Algorithm 4, line 16).

    A_t = sum_l (gamma lam)^l td_error_{t+l},  td_error_t = r_t + gamma V_{t+1} - V_t.

    t + 1 is the policy's next token. Over what others say in between, credit is handed on and not
    discounted: they are one transition of the environment, however many tokens they take.

    Args:
        rewards, values: (B, T); `values[:, t]` is V(x, y_<t), read before token t.
        mask: (B, T).
        gamma, lam: discount and GAE parameter in [0, 1].
        bootstrap: (B,), V after the last response token: of a truncated response what the value
            function says there, 0 for a finished one.

    Returns:
        advantages and returns (= advantages + values), both (B, T) and 0 outside the mask.
    """
    check_shapes(2, rewards=rewards, values=values, mask=mask)
    _check_bootstrap(mask, bootstrap)
    rewards, values = at_least_float32(rewards), at_least_float32(values)
    next_value = bootstrap.to(values.dtype)
    running = torch.zeros_like(next_value)
    columns: list[Tensor] = []
    for t in reversed(range(rewards.shape[1])):
        live = mask[:, t]  # (B,): the policy wrote it; elsewhere credit passes through
        td_error = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(live, td_error + gamma * lam * running, running)
        next_value = torch.where(live, values[:, t], next_value)
        columns.append(torch.where(live, running, 0))  # the last token first
    advantages = torch.stack(columns[::-1], dim=1)
    return advantages, torch.where(mask, advantages + values, 0)


def mc_returns(rewards: Tensor, mask: Tensor, gamma: float, bootstrap: Tensor) -> Tensor:
    """Monte-Carlo returns sum_k gamma^(k-t) r_k, (B, T), 0 outside the mask (Algorithm 4, lines 16
    and 24).

    `bootstrap` (B,) is V after the last response token and enters as one more reward there.
    """
    check_shapes(2, rewards=rewards, mask=mask)
    _check_bootstrap(mask, bootstrap)
    rewards = at_least_float32(rewards)
    running = bootstrap.to(rewards.dtype)
    columns: list[Tensor] = []
    for t in reversed(range(rewards.shape[1])):
        live = mask[:, t]
        running = torch.where(live, rewards[:, t] + gamma * running, running)
        columns.append(torch.where(live, running, 0))
    return torch.stack(columns[::-1], dim=1)


class Grouping(NamedTuple):
    """How answers to one prompt are compared: `size` answers to each, `span_weight` of the token
    term, and whether a gain is divided by the spread of its group."""

    size: int = 1
    span_weight: float = 1.0
    scaled: bool = True


def group_advantages(gains: Tensor, words: Tensor, learned: Tensor, by: Grouping) -> Tensor:
    """Advantages without a value function: what a response gained over its group, and what its
    tokens earned.

    A_t = (R_i - mean_group R) / std_group R + span_weight * W_t, the spread that of a population.
    The first term is that of GRPO (Shao et al. 2024), at every token alike; without `by.scaled`
    nothing is divided, as in Dr. GRPO (Liu et al. 2025). The second is not centred: what is good in
    every answer to a prompt stays good. The KL is no part of what is compared:
    `token_rewards(advantages, kl, ...)` subtracts it from each token afterwards.

    Args:
        gains: (B,), R_i, the verdict (`align.Credit.group_score`); rows i * size to (i + 1) * size
            - 1 answer one prompt, B a multiple of `by.size`. NaN: it is unknown, and the row
              belongs to no group.
        words: (B, T), W, the returns of what single tokens earned.
        learned: (B, T); rows without any token (failed critiques) belong to no group.
        by: the size of a group, and what counts.

    Returns:
        (B, T), 0 outside `learned`. The first term is 0 in a group whose responses gained the same.

    Raises:
        ValueError: the batch is not a multiple of the group size, or `by.span_weight` is not
            finite.
    """
    check_shapes(2, words=words, learned=learned)
    if not math.isfinite(by.span_weight):
        raise ValueError(f"span_weight is {by.span_weight}, not a finite number")
    centred, spread = _standing(gains, learned, by.size)
    outcome = (centred / (spread + GROUP_EPSILON) if by.scaled else centred).view(-1, 1)
    return with_words(outcome, words, learned, by.span_weight)


def with_words(outcome: Tensor, words: Tensor, learned: Tensor, weight: float) -> Tensor:
    """What a response gained, (B, 1), at each of its tokens with `weight` times its words (B, T); 0
    outside `learned`."""
    return torch.where(learned, outcome + weight * at_least_float32(words), 0)


def in_unequal_groups(gains: Tensor, learned: Tensor, size: int) -> Tensor:
    """(B,), True where the responses to a prompt did not all gain the same (more than rounding
    apart).

    Arguments as in `group_advantages`. From equal verdicts nothing can be learned: DAPO (Yu et al.
    2025, section 3.2) takes such groups out of the batch.
    """
    _, spread = _standing(gains, learned, size)
    return (spread > GROUP_EPSILON).expand(-1, size).reshape(-1)


def in_lost_groups(gains: Tensor, learned: Tensor, size: int) -> Tensor:
    """(B,), True where several responses to a prompt all gained the same, and less than 0: all of
    them failed.

    Arguments as in `group_advantages`. A response without siblings, or whose siblings have no
    critique, is in none.
    """
    several = learned.any(dim=1).view(-1, size).sum(dim=1, keepdim=True) > 1
    several = several.expand(-1, size).reshape(-1)
    return several & ~in_unequal_groups(gains, learned, size) & (gains < 0)


def spare_lost(delta: Tensor, words: Tensor, lost: Tensor) -> tuple[Tensor, Tensor]:
    """Delta and words, (B, T) each, of which the rows `lost` (B,) have no verdict and share their
    blame.

    There delta is that of the words, for a verdict that all have in common compares nothing and
    would only make what each of them ends with rarer; and the poor words of a response, where they
    earn less than -1 together, share -1.
    """
    check_shapes(2, delta=delta, words=words)
    rows = lost.view(-1, 1)
    share = 1 / (-words.clamp(max=0).sum(dim=1, keepdim=True)).clamp(min=1)
    words = torch.where(rows & (words < 0), words * share, words)
    return torch.where(rows, words, delta), words


def _standing(gains: Tensor, learned: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Gains minus the mean of their group (B / size, size), and the spread of each group (B / size,
    1)."""
    if len(gains) % size:
        raise ValueError(f"{len(gains)} responses cannot be divided into groups of {size}")
    present = (learned.any(dim=1) & ~gains.isnan()).view(-1, size)
    groups = torch.where(present, at_least_float32(gains).view(-1, size), 0)
    members = present.sum(dim=1, keepdim=True).clamp(min=1)  # (B / size, 1), failed and unknown ones not counted
    centred = torch.where(present, groups - groups.sum(dim=1, keepdim=True) / members, 0)
    return centred, (centred.square().sum(dim=1, keepdim=True) / members).sqrt()


def normalise(advantages: Tensor, mask: Tensor, mode: Normalisation) -> Tensor:
    """Bring advantages to unit size over the batch, (B, T) -> (B, T), 0 outside the mask.

    `scale` divides by the root mean square and keeps every sign; `whiten` subtracts the mean and
    divides by the standard deviation, which punishes neutral text whenever most spans are good.
    """
    check_shapes(2, advantages=advantages, mask=mask)
    advantages = at_least_float32(advantages)
    if mode == "scale":
        advantages = advantages / (masked_rms(advantages, mask) + EPSILON)
    elif mode == "whiten":
        centred = advantages - masked_mean(advantages, mask)
        advantages = centred * torch.rsqrt(masked_var(advantages, mask) + EPSILON)
    elif mode != "none":
        raise ValueError(f"normalisation is {mode!r}, expected none, scale or whiten")
    return torch.where(mask, advantages, 0)


class RewardTerms(NamedTuple):
    """What a batch earned, (B, T), and what the value function said of it.

    `values` (B, T) and `bootstrap` (B,) as in `gae`, 0 without a value function. `coefficient` is
    beta. `mask` covers the responses, `learned` those whose critique did not fail.
    """

    delta: Tensor
    kl: Tensor
    coefficient: float
    values: Tensor
    bootstrap: Tensor
    mask: Tensor
    learned: Tensor


class GroupTerms(NamedTuple):
    """What groups compare: `gains` (B,) of responses, and `words` (B, T), delta without them
    (`align.Credit`)."""

    gains: Tensor
    words: Tensor
    by: Grouping


class Estimate(NamedTuple):
    """Token rewards, advantages, and what the value function learns; all (B, T)."""

    rewards: Tensor
    advantages: Tensor
    returns: Tensor


def estimate(
    kind: Kind,
    given: RewardTerms,
    *,
    gamma: float,
    lam: float,
    normalisation: Normalisation = "none",
    group: GroupTerms | None = None,
) -> Estimate:
    """Advantages of one kind, brought to unit size as `normalise` does.

    `gae`: with a value function, whose target is the GAE return, with lam 1 the sum of rewards to
    come. `returns`: without one, the rewards to come discounted by gamma * lam. `group`: each
    answer to a prompt against the others, and to each token the returns of its words, which alone
    are brought to unit size (`group_advantages`); the KL is subtracted last, because where all
    verdicts are equal and no word is marked nothing else would be left.

    Raises:
        ValueError: groups are to be compared, and `group` is None.
    """
    delta, kl, coefficient, values, bootstrap, mask, learned = given
    rewards = token_rewards(delta, kl, coefficient, mask)
    if kind == "group":
        if group is None:
            raise ValueError("group advantages need what is compared: give group")
        earned = mc_returns(group.words, mask, gamma * lam, torch.zeros_like(bootstrap))
        by_token = normalise(earned, learned, normalisation)
        compared = group_advantages(group.gains, by_token, learned, group.by)
        return Estimate(rewards, token_rewards(compared, kl, coefficient, learned), torch.zeros_like(rewards))
    if kind == "returns":
        returns = mc_returns(rewards, mask, gamma * lam, torch.zeros_like(bootstrap))
        return Estimate(rewards, normalise(returns, learned, normalisation), returns)
    advantages, returns = gae(rewards, values, mask, gamma, lam, bootstrap)
    return Estimate(rewards, normalise(advantages, learned, normalisation), returns)


# What is logged -----------------------------------------------------------------------------------


def wrong_sign_rate(delta: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Share of the labelled tokens (delta != 0) whose advantage has the other sign; 0 without
    labels."""
    check_shapes(2, delta=delta, advantages=advantages, mask=mask)
    labelled = mask & (delta != 0)
    wrong = delta.sign() * advantages.sign() < 0
    return masked_mean(wrong.float(), labelled)


def explained_variance(returns: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns) over the mask; 1 is perfect, 0 when returns are
    constant."""
    check_shapes(2, returns=returns, values=values, mask=mask)
    total = masked_var(returns, mask)  # 0 where all returns are equal: nothing to explain
    unexplained = masked_var(at_least_float32(returns) - at_least_float32(values), mask)
    return torch.where(total > 0, 1 - unexplained / torch.where(total > 0, total, 1), 0)


def reward_length_correlation(reward_sums: Tensor, lengths: Tensor) -> Tensor:
    """Pearson correlation of the summed token rewards with the response lengths, both (B,).

    A scalar in [-1, 1]; 0 when either is constant. The sum of +-1 per token grows with the length
    of the spans: this shows how much of the reward is length.
    """
    check_shapes(1, reward_sums=reward_sums, lengths=lengths)
    x, y = at_least_float32(reward_sums), at_least_float32(lengths)
    constant = ((x == x[:1]).all() | (y == y[:1]).all()).item()
    if constant:
        return x.new_zeros(())
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()
