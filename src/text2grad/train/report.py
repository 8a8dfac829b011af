"""Report a training step: its metrics, and token strips of its first responses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from text2grad.align.variety import measure_variety
from text2grad.feedback import Critique, Failure, Transcript, conversation_of
from text2grad.policy.batch import TokenBatch
from text2grad.rl import advantage as adv
from text2grad.train.rollout import PolicyStats, Responses, Rollout, scatter_to_tokens
from text2grad.unicode_words import units

RUN_OF_WORDS = 3
"""Words of a span in a row by which a critique's text names it."""


def is_due(step: int, steps: int, every: int) -> bool:
    """True for every `every`-th step from the first on, and for the last."""
    return step % every == 0 or step == steps - 1


def compute_metrics(responses: Responses, rollout: Rollout, coefficient: float) -> dict[str, float]:
    """Return the metrics of a step; docs/metrics.md explains each name.

    `coefficient` is beta, the weight of the KL.
    """
    mask, loss_mask = rollout.batch.mask, rollout.loss_mask  # (B, T) each
    lengths = mask.sum(dim=1).float()  # (B,), tokens of each response
    critiques = [judgement for judgement in responses.judgements if isinstance(judgement, Critique)]
    # A failed critique is not a reward of 0: sums of rewards are over the N judged responses.
    judged = torch.tensor([isinstance(judgement, Critique) for judgement in responses.judgements])  # (B,)
    judged = judged.to(mask.device)
    delta_sums, reward_sums = (rewards.sum(dim=1)[judged] for rewards in (rollout.delta, rollout.rewards))  # (N,)
    scores = [critique.score for critique in critiques if critique.score is not None]
    count = len(responses.samples)
    return {
        **({"score": sum(scores) / len(scores)} if scores else {}),
        **({"delta_sum": float(delta_sums.mean())} if critiques else {}),
        **({"reward_sum": float(reward_sums.mean())} if critiques else {}),
        "labelled": sum(item.labelled for item in responses.credits) / float(mask.sum()),
        "critic_tokens": responses.critic_tokens,
        "critic_failed": 1 - len(critiques) / count,
        "unmatched": sum(critique.quotes.unmatched for critique in critiques) / count,
        "unmatched_share": unmatched_share(critiques),
        "named_spans": named_spans(critiques),
        "ambiguous": sum(critique.quotes.ambiguous for critique in critiques) / count,
        "forced": sum(critique.forced > 0 for critique in critiques) / count,
        "cancelled": sum(item.cancelled for item in responses.credits) / count,
        "uncovered": sum(item.uncovered for item in responses.credits) / count,
        "no_score": sum(item.no_score for item in responses.credits) / count,
        "left_out": 1 - float(loss_mask.any(dim=1).float().mean()),
        "truncated": sum(sample.truncated for sample in responses.samples) / count,
        "response_length": float(lengths.mean()),
        **mean_turns(responses),
        **measure_variety([sample.sampled_ids for sample in responses.samples]),
        **same_answers(responses),
        **label_shares(responses),
        "kl": float(rollout.kl.sum(dim=1).mean()),
        "kl_token": float(adv.masked_mean(rollout.kl, mask)),
        "kl_coefficient": coefficient,
        "entropy": float(adv.masked_mean(rollout.entropy, mask)),
        "value": float(adv.masked_mean(rollout.values, mask)),
        "advantage_variance": float(adv.masked_var(rollout.returns - rollout.values, loss_mask)),
        "explained_variance": float(adv.explained_variance(rollout.returns, rollout.values, loss_mask)),
        "wrong_sign_rate": float(adv.wrong_sign_rate(rollout.delta, rollout.advantages, loss_mask)),
        "reward_length_correlation": float(adv.reward_length_correlation(delta_sums, lengths[judged])),
    }


def mean_turns(responses: Responses) -> dict[str, float]:
    """Return `turns`, the mean number of turns in an episode; {} for single answers."""
    masks = [sample.mask for sample in responses.samples if sample.mask is not None]
    counts = [sum(sampled for sampled, _ in groupby(mask)) for mask in masks]
    return {"turns": sum(counts) / len(counts)} if counts else {}


def same_answers(responses: Responses) -> dict[str, float]:
    """Return `same_answers`, the share of prompts with several answers whose answers are identical.

    {} where no prompt has several answers.
    """
    by_prompt: dict[tuple[str, object], list[tuple[int, ...]]] = {}
    for example, sample in zip(responses.examples, responses.samples, strict=True):
        by_prompt.setdefault((example.id, example.prompt), []).append(tuple(sample.ids))
    groups = [ids for ids in by_prompt.values() if len(ids) > 1]
    return {"same_answers": sum(len(set(ids)) == 1 for ids in groups) / len(groups)} if groups else {}


def unmatched_share(critiques: Sequence[Critique]) -> float:
    """Return the share of quotes that are not in the response; 0 without quotes."""
    unmatched = sum(critique.quotes.unmatched for critique in critiques)
    quotes = sum(critique.quote_count for critique in critiques)
    return unmatched / quotes if quotes else 0.0


def named_spans(critiques: Sequence[Critique]) -> float:
    """Return the share of spans that the text of their critique repeats; 0 without spans."""
    named = [repeats(critique.text, span.text) for critique in critiques for span in critique.spans]
    return sum(named) / len(named) if named else 0.0


def repeats(text: str, quote: str) -> bool:
    """True if a text has `RUN_OF_WORDS` words of a quote in a row, or all of a shorter quote."""
    words, quoted = ([part[start:end].casefold() for start, end in units(part)] for part in (text, quote))
    size = min(len(quoted), RUN_OF_WORDS)
    runs, quoted_runs = (
        {tuple(part[start : start + size]) for start in range(len(part) - size + 1)} for part in (words, quoted)
    )
    return size > 0 and not runs.isdisjoint(quoted_runs)


def label_shares(responses: Responses) -> dict[str, float]:
    """Return `good_tokens` and `poor_tokens`: shares of tokens in good and in poor spans.

    Responses whose critique failed are not counted.
    """
    tokens = max(1, sum(map(len, responses.labels)))
    return {
        name: sum(int((labels == label).sum()) for labels in responses.labels) / tokens
        for name, label in (("good_tokens", 1), ("poor_tokens", -1))
    }


def token_strips(
    step: int, responses: Responses, rollout: Rollout, count: int, valued: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the first `count` responses as records, with every number of each token.

    `valued` is True if there is a value function.
    """
    updated = rollout.ratio > 0  # without an optimizer step there is no ratio
    columns = {
        "delta": rollout.delta,
        "kl": rollout.kl,
        **({"value": rollout.values} if valued else {}),
        "advantage": rollout.advantages,
        "reward": rollout.rewards,
        "logp": rollout.old_logp,
        "logp_change": rollout.old_logp - rollout.ref_logp,  # nats, the k1 estimate at the token
        "entropy": rollout.entropy,
        "learned": rollout.loss_mask,
        **({"ratio": rollout.ratio.where(updated, math.nan)} if bool(updated.any()) else {}),
    }
    for row in range(min(count, len(responses.samples))):
        mask = rollout.batch.mask[row]
        numbers = {name: _masked_values(column[row], mask) for name, column in columns.items()}
        yield {"step": step, **describe_response(responses, row), "value": [], **numbers}


def probe_strips(
    step: int, responses: Responses, batch: TokenBatch, stats: PolicyStats, beta: float | None, valued: bool
) -> Iterator[dict[str, Any]]:
    """Yield strips of answers that are not trained on; `beta` is None if no critic judged them."""
    columns = {
        "kl": stats.kl,
        **({"value": stats.values} if valued else {}),
        "logp": stats.logp,
        "logp_change": stats.logp - stats.ref_logp,
        "entropy": stats.entropy,
    }
    if beta is not None:
        delta = scatter_to_tokens([item.delta for item in responses.credits], batch.mask)
        columns |= {"delta": delta, "reward": delta - beta * stats.kl}
    for row, mask in enumerate(batch.mask):
        numbers = {name: _masked_values(column[row], mask) for name, column in columns.items()}
        unjudged = {"failure": None} if beta is None else {}
        yield {"step": step, "probe": True, **describe_response(responses, row), **unjudged, "value": [], **numbers}


def describe_response(responses: Responses, row: int) -> dict[str, Any]:
    """Return one response with its critique and its tokens, as JSON."""
    judgement, aligned = responses.judgements[row], responses.aligned[row]
    example = responses.examples[row]
    failure = judgement if isinstance(judgement, Failure) else None
    critique = judgement if isinstance(judgement, Critique) else Critique(text="")
    return {
        "id": example.id,
        "prompt": [message.model_dump() for message in example.prompt],
        "response": _response_json(responses.texts[row] if responses.texts else aligned.text),
        "critique": critique.text,
        "spans": [span.model_dump() for span in critique.spans],
        "score": critique.score,
        "failure": failure.model_dump() if failure else None,
        # Unmatched quotes: the tokens they mean may still get credit from their neighbours.
        "lost": list(critique.lost),
        "unmatched": critique.quotes.unmatched,
        "ambiguous": critique.quotes.ambiguous,
        "ids": list(responses.samples[row].sampled_ids),
        "tokens": [aligned.text[a:b] for a, b in zip(aligned.starts, aligned.ends, strict=True)],
        "starts": [int(start) for start in aligned.starts],
        "ends": [int(end) for end in aligned.ends],
    }


def _response_json(response: str) -> Any:
    """Return a response in the format of records: text, or the messages of a transcript."""
    if not isinstance(response, Transcript):
        return response
    return [message.model_dump() for message in conversation_of(response)]


def _masked_values(column: Tensor, mask: Tensor) -> list[float | None]:
    """Return the values (T,) of one response's tokens; None where JSON cannot hold the number."""
    return [round(value, 5) if math.isfinite(value) else None for value in column[mask].tolist()]
