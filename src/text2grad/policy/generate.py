"""Sampling responses.

The ids that come back are the ids that were sampled. No special token is stripped, no text
re-encoded.
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
from text2grad.policy.forward.prefix import share_beginnings
from text2grad.policy.model import Policy
from text2grad.policy.settings import SamplingSettings
from text2grad.signals import stop_here

SILENT_SECONDS = 30.0  # at most, between two reports of how far a batch is
CROWDED = 0.85  # ended rows stay as long as no more than this share of a batch is open


@dataclass(frozen=True)
class Sample:
    """A sampled response: its ids, with the end-of-turn token if it wrote one, and whether it was
    cut.

    `verdict`: in [-1, 1], read by the score head of a reward model off the state before the
    response. An episode (`policy.episode`) has several turns: `mask` says which of the ids the
    policy sampled, `between` what others said before each turn and after the last, and `prompt` are
    the ids before the first one. All are None where a response is one turn behind the prompt that
    was given.
    """

    ids: list[int]
    truncated: bool
    verdict: float | None = None
    mask: list[bool] | None = None
    between: list[tuple[Message, ...]] | None = None
    prompt: list[int] | None = None

    @property
    def own(self) -> list[int]:
        """The ids that the policy sampled."""
        return self.ids if self.mask is None else [*compress(self.ids, self.mask)]


Constraint = Callable[[Sequence[int], Sequence[int], Tensor], Tensor]
"""Scores (N, V) with -inf where a token cannot come next, of: the indices of N prompts, the last
token written in answer to each (none at the beginning), and their scores."""


def generate(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    constraint: Constraint | None = None,
    draws: Tensor | None = None,
    progress: Callable[[float], None] = lambda count: None,
) -> list[Sample]:
    """Sample one response per prompt, in the order given.

    `progress` is called with the number of finished responses after each batch, and every
    `SILENT_SECONDS` within a batch, where unfinished ones count by their share of `max_new_tokens`.

    `draws` (N, max_new_tokens), in [0, 1): the random numbers that choose the tokens of each
    response, so that it depends on nothing else in the batch. Without them torch's generator draws.

    Prompts of similar length share a batch (less padding), padded on the left. Temperature 0 is
    greedy. Sampling is from the full distribution at `temperature`, so that it can be scored
    exactly as sampled; a model's own generation defaults (top-p, repetition penalty) are ignored
    for the same reason.

    Raises:
        NotFinite: the policy's probabilities are not finite.
    """
    draws = None if draws is None else draws.to(policy.device)
    # The largest batch first: it fails early if memory is short.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
    samples: dict[int, Sample] = {}
    for start in range(0, len(order), settings.batch_size):
        chosen = order[start : start + settings.batch_size]
        batch = {i: prompts[i] for i in chosen}
        within = partial(lambda before, count: progress(before + count), len(samples))
        answers = _generate_batch(policy, batch, settings, constraint, draws, within)
        samples.update(zip(chosen, answers, strict=True))
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
    """One answer per prompt, by its index. Rows that have ended leave the batch, several at a
    time."""
    stops = set(policy.stop_ids)
    written: dict[int, list[int]] = {index: [] for index in prompts}
    rows, reported = list(prompts), time.monotonic()
    cache = make_cache(policy.model)
    with policy.evaluating():
        scores, attention, positions, verdicts = _read(policy, [tuple(each) for each in prompts.values()], cache)
        for step in range(settings.max_new_tokens):
            stop_here()
            if constraint is not None:  # scores: (rows, V)
                scores = constraint(rows, [written[row][-1] for row in rows if written[row]], scores)
            tokens = _choose(scores, settings.temperature, None if draws is None else draws[rows, step])
            for row, token in zip(rows, tokens.tolist(), strict=True):
                if not _ended(written[row], stops):
                    written[row].append(token)
            open_rows = [place for place, row in enumerate(rows) if not _ended(written[row], stops)]
            if time.monotonic() - reported > SILENT_SECONDS:
                reported = time.monotonic()
                progress(len(prompts) - len(open_rows) * (1 - (step + 1) / settings.max_new_tokens))
            if not open_rows or step + 1 == settings.max_new_tokens:
                break
            ids, positions = tokens[:, None], positions[:, -1:] + 1
            attention = torch.cat([attention, attention.new_ones(len(rows), 1)], dim=1)
            # Dropping rows copies the cache, so it waits until enough have ended.
            if len(open_rows) <= CROWDED * len(rows) and can_drop_rows(cache):
                kept = torch.tensor(open_rows, device=policy.device)
                cache.batch_select_indices(kept)
                ids, positions, attention = ids[kept], positions[kept], attention[kept]
                rows = [rows[place] for place in open_rows]
            scores, _ = _next(policy, cache, ids, attention, positions)
    answers = zip(written.values(), verdicts, strict=True)
    return [Sample(ids, truncated=not _ended(ids, stops), verdict=verdict) for ids, verdict in answers]


def _read(
    policy: Policy, prompts: Sequence[tuple[int, ...]], cache: DynamicCache
) -> tuple[Tensor, Tensor, Tensor, list[float] | list[None]]:
    """Read N prompts into an empty cache, a row for each.

    In half precision, where only rounding changes, equal prompts are read once, and if the model
    allows it also common beginnings of different prompts. The rows of the cache are then repeated.

    Returns:
        Scores (N, V) of the first tokens of the answers, the mask (N, P) over the cache, the
        positions (N, 1 or more) of the last tokens, and the verdicts.
    """
    expands, head = can_drop_rows(cache), policy.score_head
    distinct = list(dict.fromkeys(prompts)) if policy.reader.half and expands else list(prompts)
    shared = share_beginnings(distinct) if policy.reader.shares and expands else None
    ids, attention, positions = _packed(policy, shared.beginnings if shared else distinct)
    if shared:
        _next(policy, cache, ids, attention, positions)
        of_prompt = torch.tensor(shared.of_prompt, device=policy.device)
        cache.batch_select_indices(of_prompt)
        # Each prompt continues from a copy of its beginning's keys and values.
        ids, rest, further = _packed(policy, shared.rests)
        attention = torch.cat([attention[of_prompt], rest], dim=1)
        positions = positions[of_prompt, -1:] + 1 + further
    scores, states = _next(policy, cache, ids, attention, positions, head is not None)
    place = {prompt: number for number, prompt in enumerate(distinct)}
    of_row = torch.tensor([place[prompt] for prompt in prompts], device=policy.device)
    verdicts: list[float] | list[None] = [None] * len(prompts)
    if head is not None and states is not None:
        verdicts = head.verdict(states)[of_row].tolist()
    if len(distinct) < len(prompts):  # a row of the cache for each answer
        cache.batch_select_indices(of_row)
        scores, positions, attention = scores[of_row], positions[of_row], attention[of_row]
    return scores, attention, positions, verdicts


def _packed(policy: Policy, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and positions (N, L) of prompts, padded on the left."""
    batch = policy.pack(prompts, [[]] * len(prompts))
    return batch.input_ids, batch.attention_mask, batch.position_ids


def _next(
    policy: Policy, cache: DynamicCache, ids: Tensor, attention: Tensor, positions: Tensor, stated: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Read ids behind the contents of a cache; return scores (N, V) of the next tokens, and if
    `stated` the states (N, H) behind them."""
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": attention, "position_ids": positions}
    inputs[cache_keyword(policy.model)] = cache
    output = policy.model(**inputs, use_cache=True, logits_to_keep=1, output_hidden_states=stated)
    return output.logits[:, -1], output.hidden_states[-1][:, -1] if stated else None


def _choose(scores: Tensor, temperature: float, draws: Tensor | None) -> Tensor:
    """(N, V) -> (N,): the likeliest tokens, or tokens sampled by inverting the distribution at
    `draws` (N,)."""
    best, likeliest = scores.max(dim=-1)
    if (best.isnan() | best.isposinf()).any():
        cure = "its weights or activations overflow: --policy.dtype float32, or an earlier checkpoint"
        raise NotFinite("the policy's probabilities are not finite", cure)
    if temperature == 0:
        return likeliest
    shares = (scores.float() / temperature).softmax(dim=-1)
    if draws is None:
        return torch.multinomial(shares, 1).squeeze(1)
    sums = shares.double().cumsum(dim=-1)  # (N, V); in float32 sums of many small shares drift
    chosen = torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True).squeeze(1)
    return chosen.clamp(max=scores.shape[1] - 1)


def _ended(answer: Sequence[int], stops: set[int]) -> bool:
    return bool(answer) and answer[-1] in stops
