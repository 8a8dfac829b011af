"""Numbers that need the whole vocabulary, a few tokens at a time: no (tokens, vocabulary) tensor is
ever whole.

N is the number of tokens, without padding, H the width of the model, V the vocabulary. `states` (N,
H) is what the last layer of a model reads, and a `Head` turns some rows of it into logits. Where
the head cannot be told from the rest of a model, the states are the logits themselves and the head
returns what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from text2grad.rl import advantage as adv

Head = Callable[[Tensor], Tensor]
"""States (n, H) of some tokens -> logits (n, V)."""

KLKind = Literal["full", "k1", "k3"]

CHUNK = {"cpu": 2**24}
CHUNK_ELSEWHERE = 2**26
"""Logits in memory at a time: 64 MB of float32, and on a GPU, where fewer rows do not fill it, 256
MB."""


class View(NamedTuple):
    """How one model sees N tokens: the states before each of them, and what makes logits (n,
    `size`) of states.

    `weight` (`size`, H): the head is this matrix and nothing else, and log-probabilities may keep
    less for their gradient (`linear_logps`). None: the head is more than that, or every bit counts.
    """

    head: Head
    states: Tensor
    size: int
    weight: Tensor | None = None

    def rows(self) -> int:
        """How many tokens' logits are kept at a time on this device."""
        return max(1, CHUNK.get(self.states.device.type, CHUNK_ELSEWHERE) // self.size)


class TokenScores(NamedTuple):
    """What one policy says about N tokens, all (N,): None is what was not asked for.

    `ref_logp`: the reference's log-probabilities, where there is one.
    """

    logp: Tensor
    entropy: Tensor | None = None
    kl: Tensor | None = None
    ref_logp: Tensor | None = None


class Wanted(TypedDict, total=False):
    """What to compute besides log-probabilities: the entropy, and the `kl` (`full` by default) to a
    `reference`."""

    entropy: bool
    reference: View | None
    kl: KLKind


def score_tokens(
    view: View, ids: Tensor, temperature: float = 1.0, *, rows: int | None = None, **wanted: Unpack[Wanted]
) -> TokenScores:
    """Log-probabilities of the sampled ids (N,), and if asked for the entropy and the KL to a
    reference.

    The same numbers as `advantage.token_logps`, `entropy`, `kl_full`, `kl_k1` and `kl_k3` of all
    logits, with the logits of `rows` tokens in memory (`View.rows` by default). Gradients reach the
    states and the parameters of the head: where there are several chunks, each is computed again on
    the way back.

    Raises:
        ValueError: as many ids as states are needed.
    """
    count, reference = len(ids), wanted.get("reference")
    states = [len(each.states) for each in (view, reference) if each]
    if any(number != count for number in states):
        raise ValueError(f"{count} ids for {', '.join(map(str, states))} states (policy, reference)")
    rows = rows or view.rows()
    trained = torch.is_grad_enabled() and view.states.requires_grad
    compared = reference is not None
    asked_for = (wanted.get("entropy", False), compared, compared)
    plain = not any(asked_for)
    if trained and view.weight is not None and plain and not view.weight.requires_grad:
        return TokenScores(linear_logps(view.states, view.weight, ids, temperature, rows))
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, max(count, 1), rows):
        here = slice(start, start + rows)
        asked = (view, ids, here, temperature, wanted)
        kept = count <= rows or not torch.is_grad_enabled()
        parts.append(_score(*asked) if kept else checkpoint(_score, *asked, use_reentrant=False))
    columns = iter([torch.cat(column) for column in zip(*parts, strict=True)])
    return TokenScores(next(columns), *(next(columns) if wanted else None for wanted in asked_for))


def _score(view: View, ids: Tensor, here: slice, temperature: float, wanted: Wanted) -> tuple[Tensor, ...]:
    """The columns of `TokenScores` that are asked for, for the tokens `here`."""
    log_p = adv.log_probs(view.head(view.states[here]), temperature)  # (n, V), the largest tensor of a step
    logp = adv.of_tokens(log_p, ids[here])
    columns = [logp, *([adv.entropy_of(log_p)] if wanted.get("entropy") else [])]
    if reference := wanted.get("reference"):
        log_ref = adv.log_probs(reference.head(reference.states[here]), temperature)
        ref_logp = adv.of_tokens(log_ref, ids[here])
        columns.append(_kl(wanted.get("kl", "full"), log_p, log_ref, logp, ref_logp))
    if reference:
        columns.append(ref_logp)
    return tuple(columns)


def _kl(kind: KLKind, log_p: Tensor, log_ref: Tensor, logp: Tensor, ref_logp: Tensor) -> Tensor:
    if kind == "full":
        return adv.kl_between(log_p, log_ref)
    estimator = adv.kl_k1 if kind == "k1" else adv.kl_k3
    return estimator(logp[None], ref_logp[None])[0]


def linear_logps(states: Tensor, weight: Tensor, ids: Tensor, temperature: float, rows: int) -> Tensor:
    """(N,) log-probabilities of ids (N,) under a linear head, weights (V, H), on states (N, H), in
    float32.

    Kept for the gradient, which reaches the states alone, are the log of the sum over the
    vocabulary and at most `rows` tokens' logits in the states' own type; of more tokens the logits
    are computed again.
    """
    logps: Tensor = _LinearLogps.apply(states, weight, ids, temperature, rows)  # type: ignore[no-untyped-call]
    return logps


class _LinearLogps(torch.autograd.Function):
    """d logp / d states = (weight[id] - sum_v p(v) weight[v]) / temperature."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, ids: Tensor, temperature: float, rows: int) -> Tensor:
        found, totals, kept = [], [], []
        for part, wanted in zip(torch.split(states, rows), torch.split(ids, rows), strict=True):
            logits = torch.nn.functional.linear(part, weight)  # (n, V)
            scores = adv.at_temperature(logits, temperature)
            totals.append(scores.logsumexp(dim=-1))  # (n,), kept for the way back
            found.append(adv.of_tokens(scores, wanted) - totals[-1])
            kept = [logits]
        ctx.save_for_backward(states, weight, ids, torch.cat(totals), *(kept if len(found) == 1 else []))
        ctx.temperature, ctx.rows = temperature, rows
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ids, totals, *kept = ctx.saved_tensors
        parts = (torch.split(column, ctx.rows) for column in (states, ids, totals, gradient / ctx.temperature))
        found = []
        for part, wanted, total, share in zip(*parts, strict=True):
            logits = kept[0] if kept else torch.nn.functional.linear(part, weight)
            slope = adv.at_temperature(logits, ctx.temperature) - total[:, None]
            slope.exp_().mul_(-share[:, None])  # -p(v), in place: (n, V) is large
            slope.scatter_add_(1, wanted[:, None], share[:, None])  # + 1 at the sampled id
            found.append(slope.to(weight.dtype) @ weight)  # (n, H)
        return torch.cat(found), None, None, None, None
