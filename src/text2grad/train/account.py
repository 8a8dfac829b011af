"""What a step reports: one line of metrics, and token strips of its first responses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor

from text2grad.align.variety import measure_variety
from text2grad.feedback import Critique, Failure, Transcript, conversation_of
from text2grad.policy.batch import TokenBatch
from text2grad.rl import advantage as adv
from text2grad.train.rollout import PolicyStats, Responses, Rollout, on_own_tokens


def due(step: int, steps: int, every: int) -> bool:
    """True for every so many of the steps, the first among them, and for the last."""
    return step % every == 0 or step == steps - 1


def describe(responses: Responses, rollout: Rollout, coefficient: float) -> dict[str, float]:
    """The metrics of a step; each name is explained in docs/metrics.md."""
    mask, learned = rollout.batch.mask, rollout.learned
    lengths = mask.sum(dim=1).float()  # (B,), tokens of each response
    sums = rollout.delta.sum(dim=1)  # (B,), what each response earned before the KL
    good = [judgement for judgement in responses.judgements if not isinstance(judgement, Failure)]
    scores = [judgement.score for judgement in good if judgement.score is not None]
    count = len(responses.samples)
    return {
        **({"score": sum(scores) / len(scores)} if scores else {}),
        "delta_sum": float(sums.mean()),
        "reward_sum": float(rollout.rewards.sum(dim=1).mean()),
        "labelled": sum(item.labelled for item in responses.credits) / float(mask.sum()),
        "critic_tokens": responses.critic_tokens,
        "critic_failed": 1 - len(good) / count,
        "unmatched": sum(judgement.quotes.unmatched for judgement in good) / count,
        "unmatched_share": unmatched_share(good),
        "ambiguous": sum(judgement.quotes.ambiguous for judgement in good) / count,
        "forced": sum(judgement.forced > 0 for judgement in good) / count,
        "cancelled": sum(item.cancelled for item in responses.credits) / count,
        "uncovered": sum(item.uncovered for item in responses.credits) / count,
        "no_score": sum(item.no_score for item in responses.credits) / count,
        "left_out": 1 - float(learned.any(dim=1).float().mean()),
        "truncated": sum(sample.truncated for sample in responses.samples) / count,
        "response_length": float(lengths.mean()),
        **turns(responses),
        **measure_variety([sample.own for sample in responses.samples]),
        **same_answers(responses),
        **label_shares(responses),
        "kl": float(rollout.kl.sum(dim=1).mean()),
        "kl_token": float(adv.masked_mean(rollout.kl, mask)),
        "kl_coefficient": coefficient,
        "entropy": float(adv.masked_mean(rollout.entropy, mask)),
        "value": float(adv.masked_mean(rollout.values, mask)),
        "explained_variance": float(adv.explained_variance(rollout.returns, rollout.values, learned)),
        "wrong_sign_rate": float(adv.wrong_sign_rate(rollout.delta, rollout.advantages, learned)),
        "reward_length_correlation": float(adv.reward_length_correlation(sums, lengths)),
    }


def turns(responses: Responses) -> dict[str, float]:
    """`turns`: the mean number of the policy's turns in an episode; nothing of single answers."""
    masks = [sample.mask for sample in responses.samples if sample.mask is not None]
    counts = [sum(own for own, _ in groupby(mask)) for mask in masks]
    return {"turns": sum(counts) / len(counts)} if counts else {}


def same_answers(responses: Responses) -> dict[str, float]:
    """`same_answers`: of the prompts with several answers, the share whose answers are all the
    same.

    Nothing where no prompt has several.
    """
    by_prompt: dict[tuple[str, object], list[tuple[int, ...]]] = {}
    for example, sample in zip(responses.examples, responses.samples, strict=True):
        by_prompt.setdefault((example.id, example.prompt), []).append(tuple(sample.ids))
    groups = [ids for ids in by_prompt.values() if len(ids) > 1]
    return {"same_answers": sum(len(set(ids)) == 1 for ids in groups) / len(groups)} if groups else {}


def unmatched_share(critiques: Sequence[Critique]) -> float:
    """The share of all quotes that are not in the response; 0 where nothing is quoted."""
    unmatched = sum(each.quotes.unmatched for each in critiques)
    quotes = sum(each.quote_count for each in critiques)
    return unmatched / quotes if quotes else 0.0


def label_shares(responses: Responses) -> dict[str, float]:
    """`good_tokens`, `poor_tokens`: shares of the tokens that belong to a good, a poor span,
    failures aside."""
    tokens = max(1, sum(map(len, responses.labels)))
    return {
        name: sum(int((each == label).sum()) for each in responses.labels) / tokens
        for name, label in (("good_tokens", 1), ("poor_tokens", -1))
    }


def strips(
    step: int, responses: Responses, rollout: Rollout, count: int, valued: bool = True
) -> Iterator[dict[str, Any]]:
    """Token strips of the first `count` responses: everything that is known about each token, side
    by side.

    `valued`: there is a value function.
    """
    read = rollout.ratio > 0  # where no optimizer step was taken there is no ratio
    columns = {
        "delta": rollout.delta,
        "kl": rollout.kl,
        **({"value": rollout.values} if valued else {}),
        "advantage": rollout.advantages,
        "reward": rollout.rewards,
        "logp": rollout.old_logp,
        "logp_change": rollout.old_logp - rollout.ref_logp,
        "entropy": rollout.entropy,
        "learned": rollout.learned,
        **({"ratio": rollout.ratio.where(read, math.nan)} if bool(read.any()) else {}),
    }
    for row in range(min(count, len(responses.samples))):
        own = rollout.batch.mask[row]
        numbers = {name: _row(column[row], own) for name, column in columns.items()}
        yield {"step": step, **strip(responses, row), "value": [], **numbers}


def probe_strips(
    step: int, responses: Responses, batch: TokenBatch, stats: PolicyStats, beta: float | None, valued: bool
) -> Iterator[dict[str, Any]]:
    """Strips of answers that nothing is learned from; without `beta` nobody has judged them."""
    columns = {
        "kl": stats.kl,
        **({"value": stats.values} if valued else {}),
        "logp": stats.logp,
        "logp_change": stats.logp - stats.ref_logp,
        "entropy": stats.entropy,
    }
    if beta is not None:
        delta = on_own_tokens([item.delta for item in responses.credits], batch.mask)
        columns |= {"delta": delta, "reward": delta - beta * stats.kl}
    for row, own in enumerate(batch.mask):
        numbers = {name: _row(column[row], own) for name, column in columns.items()}
        unjudged = {"failure": None} if beta is None else {}
        yield {"step": step, "probe": True, **strip(responses, row), **unjudged, "value": [], **numbers}


def strip(responses: Responses, row: int) -> dict[str, Any]:
    """One response with its critique, and its tokens."""
    judgement, aligned = responses.judgements[row], responses.aligned[row]
    example = responses.examples[row]
    failure = judgement if isinstance(judgement, Failure) else None
    critique = judgement if isinstance(judgement, Critique) else Critique(text="")
    return {
        "id": example.id,
        "prompt": [message.model_dump() for message in example.prompt],
        "response": _written(responses.texts[row] if responses.texts else aligned.text),
        "critique": critique.text,
        "spans": [span.model_dump() for span in critique.spans],
        "score": critique.score,
        "failure": failure.model_dump() if failure else None,
        # Quotes that became no span: a token they speak of may still gain from its neighbours.
        "lost": list(critique.lost),
        "unmatched": critique.quotes.unmatched,
        "ambiguous": critique.quotes.ambiguous,
        "ids": list(responses.samples[row].own),
        "tokens": [aligned.text[a:b] for a, b in zip(aligned.starts, aligned.ends, strict=True)],
        "starts": [int(start) for start in aligned.starts],
        "ends": [int(end) for end in aligned.ends],
    }


def _written(response: str) -> Any:
    """A response as records hold it: text, or the messages of a transcript."""
    if not isinstance(response, Transcript):
        return response
    return [message.model_dump() for message in conversation_of(response)]


def _row(values_of: Tensor, own: Tensor) -> list[float | None]:
    """The values of one response's own tokens; None where one is not finite, which JSON cannot
    say."""
    values = values_of[own].tolist()
    return [round(value, 5) if math.isfinite(value) else None for value in values]
