"""Turn logits and token rewards into advantages (paper, section 3.5).

Pure functions, tensors in and tensors out. Shapes: B responses, T tokens of the longest response,
V tokens in the vocabulary. A (B, T) tensor is response-aligned: index t is the t-th response token,
and the reward at t belongs to the action that produced that token.

`mask` is boolean and True on the policy's own tokens only. Padding and the tokens of tools or users
between two turns may hold any finite number, which does not change the results.
Half-precision input is raised to float32. A wrong rank, shape or dtype raises a `ValueError` that
names the tensor.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

AdvantageKind = Literal["returns", "gae", "group"]
Normalisation = Literal["none", "scale", "whiten"]

KL_ERROR_LIMIT = 0.2  # Ziegler et al. 2019
EPSILON = 1e-8
GROUP_EPSILON = 1e-4  # well above the float32 rounding error of sums that are equal on paper


def check_shapes(rank: int, **tensors: Tensor) -> None:
    """Refuse tensors of another rank or of different shapes, and a `mask` that is not boolean.

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
    """Convert half precision and integers to float32; keep float32 and float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# Masked statistics --------------------------------------------------------------------------------


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of `x` over `mask`, both (B, T), as a scalar; 0 for an empty mask."""
    check_shapes(x.ndim, x=x, mask=mask)
    x = at_least_float32(x)
    return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Return the sample variance of `x` over `mask`, both (B, T), as a scalar.

    With Bessel's correction; 0 for fewer than two positions.
    """
    centred = at_least_float32(x) - masked_mean(x, mask)
    squares = torch.where(mask, centred, 0).square()
    return squares.sum() / (mask.sum() - 1).clamp(min=1)


def masked_rms(x: Tensor, mask: Tensor) -> Tensor:
    """Return the root mean square of `x` over `mask`, both (B, T), as a scalar.

    Where all values are 0, both the result and its gradient are 0.
    """
    check_shapes(x.ndim, x=x, mask=mask)
    mean_square = masked_mean(torch.where(mask, at_least_float32(x), 0).square(), mask)
    positive = mean_square > 0
    # The inner `where` keeps the infinite slope of sqrt at 0 out of the gradient.
    return torch.where(positive, torch.where(positive, mean_square, 1).sqrt(), 0)


# Log-probabilities, entropy, KL -------------------------------------------------------------------


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Return `logits` / `temperature`, at least in float32.

    At temperature 1 the division is skipped: the logits are the largest tensor of a step.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected > 0: a greedy policy has no log-probability")
    logits = at_least_float32(logits)
    return logits if temperature == 1 else logits / temperature


def log_probs(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log p over the vocabulary at `temperature`, (..., V) -> (..., V).

    A forbidden token (logit -inf) gets a finite floor, so that 0 * log 0 is 0.
    """
    log_p = torch.log_softmax(scale_logits(logits, temperature), dim=-1)
    return log_p.clamp(min=torch.finfo(log_p.dtype).min)


def gather_tokens(log_p: Tensor, ids: Tensor) -> Tensor:
    """Return the entries of `log_p` (..., V) at the token ids (...)."""
    return log_p.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def entropy_from_log_probs(log_p: Tensor) -> Tensor:
    """Return -sum_v p(v) log p(v) in nats, (..., V) -> (...)."""
    return -(log_p.exp() * log_p).sum(-1)


def kl_from_log_probs(log_p: Tensor, log_ref: Tensor) -> Tensor:
    """Return sum_v p(v) (log p(v) - log ref(v)), twice (..., V) -> (...)."""
    return (log_p.exp() * (log_p - log_ref)).sum(-1)


def token_logps(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log pi(y_t | x, y_<t) of the sampled tokens.

    Args:
        logits: (B, T, V); `logits[:, t]` predicts token t from the tokens before it.
        ids: (B, T) token ids; padding may hold any id of the vocabulary.
        temperature: the sampling temperature of the responses.

    Returns:
        (B, T) log-probabilities, at most 0.
    """
    check_shapes(3, logits=logits)
    check_shapes(2, ids=ids, logits=logits[..., 0])
    return gather_tokens(log_probs(logits, temperature), ids)


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return H_t = -sum_v p(v) log p(v) in nats, (B, T, V) -> (B, T)."""
    check_shapes(3, logits=logits)
    return entropy_from_log_probs(log_probs(logits, temperature))


def kl_full(logits: Tensor, ref_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(policy || reference) at every token: sum_v p(v) log(p(v) / ref(v)).

    Twice (B, T, V) -> (B, T), never negative beyond rounding. The paper's "Full" (Table 9).
    """
    check_shapes(3, logits=logits, ref_logits=ref_logits)
    return kl_from_log_probs(log_probs(logits, temperature), log_probs(ref_logits, temperature))


def kl_k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Estimate KL(policy || reference) from the sampled token as log p - log ref, (B, T).

    Unbiased, with a high variance; can be negative (k1 of Schulman 2020, "Approximating KL
    divergence").
    """
    check_shapes(2, logp=logp, ref_logp=ref_logp)
    return at_least_float32(logp) - at_least_float32(ref_logp)


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Estimate KL(policy || reference) from the sampled token as exp(-d) - 1 + d, (B, T).

    d = log p - log ref. Unbiased, with a low variance; never negative (k3 of Schulman 2020).
    """
    log_ratio = kl_k1(logp, ref_logp)
    # expm1: its rounding error is relative to d, which is small near the reference, not to 1.
    return torch.expm1(-log_ratio) + log_ratio


def adaptive_kl(coefficient: float, observed: float, target: float, horizon: float, count: int) -> float:
    """Return the next KL coefficient: coefficient * (1 + error * count / horizon).

    error = observed / target - 1, clipped to +-0.2 (Ziegler et al. 2019, section 2.2).

    Args:
        coefficient: the present coefficient beta.
        observed: KL summed over the tokens of a response, mean over responses, in nats.
        target: the wanted value of `observed`.
        horizon: responses over which the coefficient adapts.
        count: responses since the last call.
    """
    # Clipped: whatever is observed, one horizon changes beta by about a fifth at most.
    error = min(max(observed / target - 1.0, -KL_ERROR_LIMIT), KL_ERROR_LIMIT)
    return coefficient * (1.0 + error * count / horizon)


# Rewards, advantages, returns ---------------------------------------------------------------------


def token_rewards(delta: Tensor, kl: Tensor, coefficient: float, mask: Tensor) -> Tensor:
    """Return r_t^total = delta_t - beta * kl_t (section 3.5), (B, T), 0 outside the mask."""
    check_shapes(2, delta=delta, kl=kl, mask=mask)
    # The penalty is in the reward, not in the loss (Ziegler et al. 2019): through the advantage, a
    # token also answers for the KL of the tokens that it leads to.
    return torch.where(mask, at_least_float32(delta) - coefficient * at_least_float32(kl), 0)


def _check_bootstrap(mask: Tensor, bootstrap: Tensor) -> None:
    if bootstrap.shape != mask.shape[:1]:
        raise ValueError(f"bootstrap is {tuple(bootstrap.shape)}, expected {tuple(mask.shape[:1])}")


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, bootstrap: Tensor
) -> tuple[Tensor, Tensor]:
    """Return advantages by generalised advantage estimation, and the value function's targets.

    A_t = sum_l (gamma lam)^l td_error_{t+l}, td_error_t = r_t + gamma V_{t+1} - V_t (paper, section
    3.5; Algorithm 4, line 16).

    t + 1 is the policy's next token. The tokens of tools and users in between are one transition of
    the environment: credit passes through them without a discount.

    Args:
        rewards: (B, T).
        values: (B, T); `values[:, t]` is V(x, y_<t), the value before token t.
        mask: (B, T).
        gamma: discount in [0, 1].
        lam: lambda of GAE in [0, 1].
        bootstrap: (B,), the value after the last response token: V there for a truncated response,
            0 for a finished one.

    Returns:
        Advantages and returns (= advantages + values), both (B, T) and 0 outside the mask.
    """
    check_shapes(2, rewards=rewards, values=values, mask=mask)
    _check_bootstrap(mask, bootstrap)
    rewards, values = at_least_float32(rewards), at_least_float32(values)
    # V_{t+1} and A_{t+1}, (B,) each.
    next_value = bootstrap.to(values.dtype)
    running = torch.zeros_like(next_value)
    columns: list[Tensor] = []  # one (B,) per token, the last token first
    for t in reversed(range(rewards.shape[1])):
        live = mask[:, t]  # (B,), False on padding and on tokens of tools: credit passes through
        td_error = rewards[:, t] + gamma * next_value - values[:, t]
        # The sum over l, one term per step from the end: A_t = td_error_t + gamma lam A_{t+1}.
        running = torch.where(live, td_error + gamma * lam * running, running)
        next_value = torch.where(live, values[:, t], next_value)
        columns.append(torch.where(live, running, 0))
    advantages = torch.stack(columns[::-1], dim=1)
    return advantages, torch.where(mask, advantages + values, 0)


def mc_returns(rewards: Tensor, mask: Tensor, gamma: float, bootstrap: Tensor) -> Tensor:
    """Return the Monte-Carlo returns sum_{k >= t} gamma^(k-t) r_k, (B, T), 0 outside the mask.

    Algorithm 4, lines 16 and 24. `bootstrap` (B,) is the value after the last response token; it
    counts as one more reward at that place.
    """
    check_shapes(2, rewards=rewards, mask=mask)
    _check_bootstrap(mask, bootstrap)
    rewards = at_least_float32(rewards)
    # (B,), the return from token t + 1 on.
    running = bootstrap.to(rewards.dtype)
    columns: list[Tensor] = []
    for t in reversed(range(rewards.shape[1])):
        live = mask[:, t]
        running = torch.where(live, rewards[:, t] + gamma * running, running)
        columns.append(torch.where(live, running, 0))
    return torch.stack(columns[::-1], dim=1)


def group_advantages(scores: Tensor, word_returns: Tensor, judged_mask: Tensor, size: int) -> Tensor:
    """Return advantages that need no value function: GRPO's term plus the returns of the words.

    A_t = (R_i - mean_group R) / (std_group R + 1e-4) + W_t, with the population's standard
    deviation. The first term is GRPO's (Shao et al. 2024) and equal for all tokens of a response.
    The second is not centred: words that are good in every answer to a prompt stay good. The KL is
    not compared within groups: subtract it from the result with `token_rewards`.

    Args:
        scores: (B,), R_i, the verdicts (`align.Credit.group_score`). Rows i * size to
            (i + 1) * size - 1 answer one prompt. A row whose score is NaN is in no group.
        word_returns: (B, T), W_t, the returns of the word rewards.
        judged_mask: (B, T) mask; a row without any True (a failed critique) is in no group.
        size: answers per prompt; B is a multiple of it.

    Returns:
        (B, T), 0 outside `judged_mask`. Where all scores of a group are equal, the first term is 0.

    Raises:
        ValueError: the batch is not a multiple of the group size.
    """
    check_shapes(2, word_returns=word_returns, judged_mask=judged_mask)
    centred, spread = _centre_groups(scores, judged_mask, size)
    # (B, 1), the same for every token of a response
    outcome = (centred / (spread + GROUP_EPSILON)).view(-1, 1)
    return torch.where(judged_mask, outcome + at_least_float32(word_returns), 0)


def in_unequal_groups(scores: Tensor, judged_mask: Tensor, size: int) -> Tensor:
    """Return (B,), True for responses whose group has different scores (beyond rounding).

    Arguments as in `group_advantages`. A group of equal scores has no learning signal, so DAPO (Yu
    et al. 2025, section 3.2) drops it from the batch.
    """
    _, spread = _centre_groups(scores, judged_mask, size)
    return (spread > GROUP_EPSILON).expand(-1, size).reshape(-1)


def in_failed_groups(scores: Tensor, judged_mask: Tensor, size: int) -> Tensor:
    """Return (B,), True for responses of groups of two or more with one equal score below 0.

    Arguments as in `group_advantages`. Only judged responses count as members of a group.
    """
    several = judged_mask.any(dim=1).view(-1, size).sum(dim=1, keepdim=True) > 1
    several = several.expand(-1, size).reshape(-1)
    return several & ~in_unequal_groups(scores, judged_mask, size) & (scores < 0)


def share_blame(delta: Tensor, word_rewards: Tensor, failed: Tensor) -> tuple[Tensor, Tensor]:
    """Return `delta` and `word_rewards`, both (B, T), with the rows of failed groups changed.

    A failed group's verdict is identical for all its answers, so it compares nothing and would only
    make their endings less likely: it is removed from delta. Negative word rewards of an answer
    that sum to less than -1 are scaled to sum to -1.

    Args:
        delta: (B, T), word rewards plus the verdict.
        word_rewards: (B, T), delta without the verdict.
        failed: (B,), the rows to change (`in_failed_groups`).
    """
    check_shapes(2, delta=delta, word_rewards=word_rewards)
    rows = failed.view(-1, 1)
    # (B, 1). Blame that sums to less than 1 keeps its size.
    share = 1 / (-word_rewards.clamp(max=0).sum(dim=1, keepdim=True)).clamp(min=1)
    word_rewards = torch.where(rows & (word_rewards < 0), word_rewards * share, word_rewards)
    return torch.where(rows, word_rewards, delta), word_rewards


def _centre_groups(scores: Tensor, judged_mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return scores minus their group's mean (B / size, size), and group spreads (B / size, 1)."""
    if len(scores) % size:
        raise ValueError(f"{len(scores)} responses cannot be divided into groups of {size}")
    # Failed critiques and unknown scores are no members: they move neither mean nor spread.
    present = (judged_mask.any(dim=1) & ~scores.isnan()).view(-1, size)
    groups = torch.where(present, at_least_float32(scores).view(-1, size), 0)
    members = present.sum(dim=1, keepdim=True).clamp(min=1)  # (B / size, 1)
    centred = torch.where(present, groups - groups.sum(dim=1, keepdim=True) / members, 0)
    return centred, (centred.square().sum(dim=1, keepdim=True) / members).sqrt()


def normalise(advantages: Tensor, mask: Tensor, mode: Normalisation) -> Tensor:
    """Scale advantages to unit size over the batch, (B, T) -> (B, T), 0 outside the mask.

    `scale` divides by the root mean square and keeps every sign. `whiten` subtracts the mean and
    divides by the standard deviation; it punishes neutral text whenever most spans are good.
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
    """Rewards, KL and values of a batch.

    Attributes:
        delta: (B, T) pseudo-rewards.
        kl: (B, T) KL to the reference.
        coefficient: beta, the weight of the KL.
        values: (B, T), 0 without a value function.
        bootstrap: (B,) as in `gae`, 0 without a value function.
        mask: (B, T), the response tokens.
        judged_mask: (B, T), the response tokens whose critique did not fail.
    """

    delta: Tensor
    kl: Tensor
    coefficient: float
    values: Tensor
    bootstrap: Tensor
    mask: Tensor
    judged_mask: Tensor


class GroupTerms(NamedTuple):
    """The quantities that group advantages compare.

    Attributes:
        scores: (B,), the verdict of each response.
        word_rewards: (B, T), delta without the verdicts (`align.Credit.word_rewards`).
        size: answers per prompt.
    """

    scores: Tensor
    word_rewards: Tensor
    size: int


class Estimate(NamedTuple):
    """Token rewards, advantages, and the targets of the value function; all (B, T)."""

    rewards: Tensor
    advantages: Tensor
    returns: Tensor


def estimate_advantages(
    kind: AdvantageKind,
    terms: RewardTerms,
    *,
    gamma: float,
    lam: float,
    normalisation: Normalisation = "none",
    group: GroupTerms | None = None,
) -> Estimate:
    """Return token rewards, normalised advantages and value targets.

    Kinds:
        gae: needs a value function; its target is the GAE return (with lam 1 the sum of rewards).
        returns: needs none; rewards to come, discounted by gamma * lam.
        group: needs none; verdicts compared within groups, plus the returns of the words
            (`group_advantages`). Only the returns of the words are normalised. The KL is
            subtracted last: compared within groups it would become the whole signal wherever
            verdicts are equal and no words are marked.

    Raises:
        ValueError: `kind` is group and `group` is None.
    """
    delta, kl, coefficient, values, bootstrap, mask, judged_mask = terms
    rewards = token_rewards(delta, kl, coefficient, mask)
    if kind == "group":
        if group is None:
            raise ValueError("group advantages need the argument `group`")
        # (B, T). V does not predict the words, so nothing is bootstrapped where a response was cut.
        word_returns = mc_returns(group.word_rewards, mask, gamma * lam, torch.zeros_like(bootstrap))
        word_returns = normalise(word_returns, judged_mask, normalisation)
        compared = group_advantages(group.scores, word_returns, judged_mask, group.size)
        return Estimate(rewards, token_rewards(compared, kl, coefficient, judged_mask), torch.zeros_like(rewards))
    if kind == "returns":
        # With V = 0 the TD error is r_t, and GAE is the sum of rewards discounted by gamma lam.
        returns = mc_returns(rewards, mask, gamma * lam, torch.zeros_like(bootstrap))
        return Estimate(rewards, normalise(returns, judged_mask, normalisation), returns)
    advantages, returns = gae(rewards, values, mask, gamma, lam, bootstrap)
    return Estimate(rewards, normalise(advantages, judged_mask, normalisation), returns)


# Diagnostics --------------------------------------------------------------------------------------


def wrong_sign_rate(delta: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return the share of labelled tokens (delta != 0) whose advantage has the opposite sign.

    Three times (B, T) -> scalar; 0 without labelled tokens.
    """
    check_shapes(2, delta=delta, advantages=advantages, mask=mask)
    labelled = mask & (delta != 0)
    wrong = delta.sign() * advantages.sign() < 0
    return masked_mean(wrong.float(), labelled)


def explained_variance(returns: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns) over the mask, as a scalar.

    1 is a perfect value function; the result is 0 when the returns are constant.
    """
    check_shapes(2, returns=returns, values=values, mask=mask)
    total = masked_var(returns, mask)
    unexplained = masked_var(at_least_float32(returns) - at_least_float32(values), mask)
    return torch.where(total > 0, 1 - unexplained / torch.where(total > 0, total, 1), 0)


def reward_length_correlation(reward_sums: Tensor, lengths: Tensor) -> Tensor:
    """Return the Pearson correlation of summed token rewards with response lengths, both (B,).

    A scalar in [-1, 1]; 0 when either is constant. Sums of +-1 per token grow with the length of
    the spans, so a high correlation means that the reward measures length.
    """
    check_shapes(1, reward_sums=reward_sums, lengths=lengths)
    x, y = at_least_float32(reward_sums), at_least_float32(lengths)
    # Compared exactly: a variance that is only rounding would give any correlation.
    constant = ((x == x[:1]).all() | (y == y[:1]).all()).item()
    if constant:
        return x.new_zeros(())
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()
