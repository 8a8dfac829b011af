"""Score tokens over the whole vocabulary in chunks, without a (tokens, vocabulary) tensor.

Shapes: N response tokens without padding, H the width of the model, V the vocabulary. The trunk of
a model gives hidden states (N, H); its head turns some rows of them into logits (n, V).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from text2grad.rl import advantage as adv

Head = Callable[[Tensor], Tensor]
"""Hidden states (n, H) -> logits (n, V)."""

KLKind = Literal["full", "k1", "k3"]

CHUNK = {"cpu": 2**24}
CHUNK_ELSEWHERE = 2**26
"""Logits in memory at a time: 64 MB of float32 on a CPU, 256 MB on a GPU, to keep it busy."""


class LazyLogits(NamedTuple):
    """The logits of N tokens under one model, computed from hidden states in chunks.

    Attributes:
        head: computes logits from states.
        states: (N, H), the state before each token. Where a model cannot be split into trunk and
            head, the states are the logits and `head` is the identity.
        vocab_size: V.
        weight: (V, H), if the head is this matrix and nothing else; `linear_logps` then keeps less
            for the backward pass. None: call `head`.
    """

    head: Head
    states: Tensor
    vocab_size: int
    weight: Tensor | None = None

    def chunk_rows(self) -> int:
        """Return the number of tokens whose logits are in memory at a time on this device."""
        return max(1, CHUNK.get(self.states.device.type, CHUNK_ELSEWHERE) // self.vocab_size)


class TokenScores(NamedTuple):
    """Statistics of N tokens under one policy, all (N,); None where not requested."""

    logp: Tensor
    entropy: Tensor | None = None
    kl: Tensor | None = None
    ref_logp: Tensor | None = None


def score_tokens(
    logits: LazyLogits,
    ids: Tensor,
    temperature: float = 1.0,
    *,
    entropy: bool = False,
    reference: LazyLogits | None = None,
    kl: KLKind = "full",
    rows: int | None = None,
) -> TokenScores:
    """Return log-probabilities of the sampled ids (N,), and on request entropy and KL.

    The numbers equal those of `advantage.token_logps`, `entropy`, `kl_full`, `kl_k1` and `kl_k3` on
    all logits at once. Gradients reach the states and the parameters of the head. With several
    chunks, the backward pass computes each chunk again.

    Args:
        ids: (N,), the sampled tokens.
        reference: the logits of the reference; with it, `kl` and `ref_logp` are returned.
        kl: kind of the KL to the reference.
        rows: tokens per chunk, `LazyLogits.chunk_rows` by default.

    Raises:
        ValueError: the number of ids differs from the number of states.
    """
    count = len(ids)
    lengths = [len(model.states) for model in (logits, reference) if model]
    if any(length != count for length in lengths):
        raise ValueError(f"{count} ids for {', '.join(map(str, lengths))} states (policy, reference)")
    rows = rows or logits.chunk_rows()
    trained = torch.is_grad_enabled() and logits.states.requires_grad
    # An update of adapters: the head is frozen, so the gradient has a closed form that keeps no
    # softmax (n, V).
    if trained and not entropy and not reference and logits.weight is not None and not logits.weight.requires_grad:
        return TokenScores(linear_logps(logits.states, logits.weight, ids, temperature, rows))
    # A single chunk fits in memory, and without a backward pass nothing is kept.
    keep_logits = count <= rows or not torch.is_grad_enabled()
    parts: list[TokenScores] = []
    for start in range(0, max(count, 1), rows):
        arguments = (logits, ids, slice(start, start + rows), temperature, entropy, reference, kl)
        parts.append(
            _score_chunk(*arguments) if keep_logits else checkpoint(_score_chunk, *arguments, use_reentrant=False)
        )
    logp = torch.cat([part.logp for part in parts])
    optional = zip(*(part[1:] for part in parts), strict=True)
    return TokenScores(logp, *(None if column[0] is None else torch.cat(column) for column in optional))


def _score_chunk(
    logits: LazyLogits,
    ids: Tensor,
    chunk: slice,
    temperature: float,
    entropy: bool,
    reference: LazyLogits | None,
    kl: KLKind,
) -> TokenScores:
    """Return `score_tokens` for the n tokens of `chunk`."""
    # (n, V), the largest tensor of a step
    log_p = adv.log_probs(logits.head(logits.states[chunk]), temperature)
    logp = adv.gather_tokens(log_p, ids[chunk])
    entropies = adv.entropy_from_log_probs(log_p) if entropy else None
    if reference is None:
        return TokenScores(logp, entropies)
    log_ref = adv.log_probs(reference.head(reference.states[chunk]), temperature)
    ref_logp = adv.gather_tokens(log_ref, ids[chunk])
    if kl == "full":
        return TokenScores(logp, entropies, adv.kl_from_log_probs(log_p, log_ref), ref_logp)
    estimator = adv.kl_k1 if kl == "k1" else adv.kl_k3
    # The estimators take (B, T): here one row of n tokens.
    return TokenScores(logp, entropies, estimator(logp[None], ref_logp[None])[0], ref_logp)


def linear_logps(states: Tensor, weight: Tensor, ids: Tensor, temperature: float, rows: int) -> Tensor:
    """Return float32 log-probabilities of ids (N,) under the linear head `weight` (V, H), (N,).

    Gradients reach `states` (N, H) alone. The backward pass needs the log-sum-exp of each token.
    The logits themselves are kept, in the type of the states, only if they fit in one chunk of
    `rows` tokens; otherwise they are computed again.
    """
    logps: Tensor = _LinearLogps.apply(states, weight, ids, temperature, rows)  # type: ignore[no-untyped-call]
    return logps


class _LinearLogps(torch.autograd.Function):
    """d logp / d states = (weight[id] - sum_v p(v) weight[v]) / temperature."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, ids: Tensor, temperature: float, rows: int) -> Tensor:
        logps, log_sums, saved_logits = [], [], []
        for chunk, chunk_ids in zip(torch.split(states, rows), torch.split(ids, rows), strict=True):
            logits = torch.nn.functional.linear(chunk, weight)  # (n, V)
            scaled = adv.scale_logits(logits, temperature)
            log_sums.append(scaled.logsumexp(dim=-1))  # (n,), for the backward pass
            logps.append(adv.gather_tokens(scaled, chunk_ids) - log_sums[-1])
            saved_logits = [logits]
        ctx.save_for_backward(states, weight, ids, torch.cat(log_sums), *(saved_logits if len(logps) == 1 else []))
        ctx.temperature, ctx.rows = temperature, rows
        return torch.cat(logps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ids, log_sums, *saved_logits = ctx.saved_tensors
        columns = (states, ids, log_sums, gradient / ctx.temperature)
        gradients = []
        for chunk, chunk_ids, log_sum, upstream in zip(
            *(torch.split(column, ctx.rows) for column in columns), strict=True
        ):
            logits = saved_logits[0] if saved_logits else torch.nn.functional.linear(chunk, weight)
            slope = adv.scale_logits(logits, ctx.temperature) - log_sum[:, None]  # (n, V), log p
            slope.exp_().mul_(-upstream[:, None])  # -p(v), in place: (n, V) is large
            slope.scatter_add_(1, chunk_ids[:, None], upstream[:, None])  # + 1 at the sampled id
            gradients.append(slope.to(weight.dtype) @ weight)  # (n, H)
        return torch.cat(gradients), None, None, None, None
