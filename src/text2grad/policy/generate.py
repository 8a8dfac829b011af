"""Sampling of responses.

The returned ids are the sampled ids: no special token is stripped, and no text is re-encoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from text2grad.errors import NotFinite
from text2grad.feedback import Message
from text2grad.policy.forward.cache import cache_keyword, can_drop_rows, make_cache
from text2grad.policy.forward.prefix import share_prefixes
from text2grad.policy.model import Policy
from text2grad.policy.settings import SamplingSettings
from text2grad.signals import stop_here

REPORT_SECONDS = 30.0
"""Seconds between two reports of the progress within a batch."""
COMPACT_BELOW = 0.85
"""The share of unfinished rows in a batch at which finished rows are dropped."""


@dataclass(frozen=True)
class Sample:
    """A sampled response, or an episode of several turns (`policy.episode`).

    Attributes:
        ids: the ids of the response, including the end-of-turn token if it was sampled.
        truncated: True if the response was cut.
        verdict: the reward in [-1, 1] of a score head at the state before the response.
        mask: True at the ids that the policy sampled; None without an environment.
        between: the messages of others before each turn and after the last; None as above.
        prompt: the ids before the first trainable turn; None as above.
    """

    ids: list[int]
    truncated: bool
    verdict: float | None = None
    mask: list[bool] | None = None
    between: list[tuple[Message, ...]] | None = None
    prompt: list[int] | None = None

    @property
    def sampled_ids(self) -> list[int]:
        """The ids that the policy sampled."""
        return self.ids if self.mask is None else [*compress(self.ids, self.mask)]


Constraint = Callable[[Sequence[int], Sequence[int], Tensor], Tensor]
"""Masks logits: maps N prompt indices, their last sampled tokens and logits (N, V) to logits.

The sequence of last tokens is empty before the first token. Forbidden tokens get -inf.
"""


def generate(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    constraint: Constraint | None = None,
    draws: Tensor | None = None,
    progress: Callable[[float], None] = lambda count: None,
) -> list[Sample]:
    """Sample one response per prompt.

    Tokens are sampled from the full distribution at `temperature` (0: greedy), and the model's
    generation defaults (top-p, repetition penalty) are ignored, so that responses can be scored at
    the same distribution. Prompts of similar length share a batch.

    Args:
        prompts: the ids of N prompts.
        constraint: masks the logits before each token.
        draws: (N, max_new_tokens), uniform in [0, 1): the random numbers of each response, which
            make it independent of the rest of its batch. None: torch's generator.
        progress: receives the number of finished responses after each batch and every
            `REPORT_SECONDS`; unfinished ones count by their share of `max_new_tokens`.

    Raises:
        NotFinite: the policy's probabilities are not finite.
    """
    draws = None if draws is None else draws.to(policy.device)
    # The largest batch first: it fails early if memory is short.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
    samples: dict[int, Sample] = {}
    for start in range(0, len(order), settings.batch_size):
        indices = order[start : start + settings.batch_size]
        batch = {i: prompts[i] for i in indices}
        batch_progress = partial(lambda before, count: progress(before + count), len(samples))
        batch_samples = _generate_batch(policy, batch, settings, constraint, draws, batch_progress)
        samples.update(zip(indices, batch_samples, strict=True))
        progress(len(samples))
    return [samples[i] for i in range(len(prompts))]


def _generate_batch(
    policy: Policy,
    prompts: Mapping[int, Sequence[int]],
    settings: SamplingSettings,
    constraint: Constraint | None,
    draws: Tensor | None,
    progress: Callable[[float], None],
) -> list[Sample]:
    """Sample one response per prompt; `prompts` maps indices to ids."""
    stops = set(policy.stop_ids)
    responses: dict[int, list[int]] = {index: [] for index in prompts}
    rows, reported = list(prompts), time.monotonic()
    cache = make_cache(policy.model)
    with policy.evaluating():
        scores, attention, positions, verdicts = _prefill(policy, [tuple(ids) for ids in prompts.values()], cache)
        for step in range(settings.max_new_tokens):
            stop_here()
            if constraint is not None:  # scores: (rows, V)
                scores = constraint(rows, [responses[row][-1] for row in rows if responses[row]], scores)
            tokens = _sample_tokens(scores, settings.temperature, None if draws is None else draws[rows, step])
            # Ended rows are sampled on until they are dropped; their tokens count for nothing.
            for row, token in zip(rows, tokens.tolist(), strict=True):
                if not _has_ended(responses[row], stops):
                    responses[row].append(token)
            open_rows = [index for index, row in enumerate(rows) if not _has_ended(responses[row], stops)]
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                progress(len(prompts) - len(open_rows) * (1 - (step + 1) / settings.max_new_tokens))
            if not open_rows or step + 1 == settings.max_new_tokens:
                break
            ids, positions = tokens[:, None], positions[:, -1:] + 1
            attention = torch.cat([attention, attention.new_ones(len(rows), 1)], dim=1)
            # Dropping rows copies the cache, so several are dropped at once.
            if len(open_rows) <= COMPACT_BELOW * len(rows) and can_drop_rows(cache):
                keep = torch.tensor(open_rows, device=policy.device)
                cache.batch_select_indices(keep)
                ids, positions, attention = ids[keep], positions[keep], attention[keep]
                rows = [rows[index] for index in open_rows]
            scores, _ = _forward(policy, cache, ids, attention, positions)
    return [
        Sample(ids, truncated=not _has_ended(ids, stops), verdict=verdict)
        for ids, verdict in zip(responses.values(), verdicts, strict=True)
    ]


def _prefill(
    policy: Policy, prompts: Sequence[tuple[int, ...]], cache: DynamicCache
) -> tuple[Tensor, Tensor, Tensor, list[float] | list[None]]:
    """Read N prompts into an empty cache, one row each.

    Equal prompts are read once, and common prefixes of different prompts too if the model allows
    it, which changes only the rounding. The rows of the cache are then repeated.

    Returns:
        Logits (N, V) of the first tokens of the answers, the attention mask (N, P), the positions
        (N, 1 or more) of the last tokens, and the verdicts.
    """
    can_expand, head = can_drop_rows(cache), policy.score_head
    distinct = list(dict.fromkeys(prompts)) if can_expand else list(prompts)
    shared = share_prefixes(distinct) if policy.reader.shares_prompts and can_expand else None
    ids, attention, positions = _pad_prompts(policy, shared.prefixes if shared else distinct)
    if shared:
        _forward(policy, cache, ids, attention, positions)
        prefixes = torch.tensor(shared.prefix_of_prompt, device=policy.device)  # (distinct prompts,)
        cache.batch_select_indices(prefixes)  # each prompt continues from a copy of its prefix
        ids, suffix_attention, suffix_positions = _pad_prompts(policy, shared.suffixes)
        attention = torch.cat([attention[prefixes], suffix_attention], dim=1)
        positions = positions[prefixes, -1:] + 1 + suffix_positions
    scores, states = _forward(policy, cache, ids, attention, positions, head is not None)
    row_of_prompt = {prompt: row for row, prompt in enumerate(distinct)}
    rows = torch.tensor([row_of_prompt[prompt] for prompt in prompts], device=policy.device)  # (N,)
    verdicts: list[float] | list[None] = [None] * len(prompts)
    if head is not None and states is not None:
        verdicts = head.verdict(states)[rows].tolist()
    if len(distinct) < len(prompts):
        cache.batch_select_indices(rows)
        scores, positions, attention = scores[rows], positions[rows], attention[rows]
    return scores, attention, positions, verdicts


def _pad_prompts(policy: Policy, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and positions (N, L) of prompts, padded on the left."""
    batch = policy.pack(prompts, [[]] * len(prompts))
    return batch.input_ids, batch.attention_mask, batch.position_ids


def _forward(
    policy: Policy, cache: DynamicCache, ids: Tensor, attention: Tensor, positions: Tensor, states: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Read ids (N, L) after a cache; return the next logits (N, V) and on request states (N, H)."""
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": attention, "position_ids": positions}
    inputs[cache_keyword(policy.model)] = cache
    # Only the last position predicts a new token: logits (N, 1, V) instead of (N, L, V).
    output = policy.model(**inputs, use_cache=True, logits_to_keep=1, output_hidden_states=states)
    return output.logits[:, -1], output.hidden_states[-1][:, -1] if states else None


def _sample_tokens(scores: Tensor, temperature: float, draws: Tensor | None) -> Tensor:
    """Return tokens (N,) for logits (N, V): the likeliest, or sampled, by `draws` (N,) if given."""
    best, likeliest = scores.max(dim=-1)
    if (best.isnan() | best.isposinf()).any():
        cure = "its weights or activations overflow: use --policy.dtype float32, or an earlier checkpoint"
        raise NotFinite("the policy's probabilities are not finite", cure)
    if temperature == 0:
        return likeliest
    # (N, V) in float32, as in `rl.advantage.log_probs`: a token is drawn with the probability that
    # the ratio of PPO divides by, whatever the type of the model.
    probabilities = (scores.float() / temperature).softmax(dim=-1)
    if draws is None:
        return torch.multinomial(probabilities, 1).squeeze(1)
    # The inverse of the distribution function (N, V), in float64 because sums of small terms drift.
    sums = probabilities.double().cumsum(dim=-1)
    tokens = torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True).squeeze(1)
    return tokens.clamp(max=scores.shape[1] - 1)


def _has_ended(answer: Sequence[int], stops: set[int]) -> bool:
    return bool(answer) and answer[-1] in stops
