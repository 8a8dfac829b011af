"""Titles in words for measures, metrics and prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from text2grad.feedback import Message

TITLE_CHARACTERS = 200
MEASURES = {
    "pass": "tests passed",
    "rouge_l": "likeness to the reference answers",
    "rouge_l_unicode": "likeness to the reference answers, all scripts",
}
METRICS = {
    "ambiguous": "quotes found more than once",
    "cancelled": "tokens marked both good and poor",
    "clip_fraction": "share of clipped tokens",
    "critic_failed": "share of failed critiques",
    "delta": "reward of a token",
    "delta_sum": "reward of an answer",
    "distinct_1": "share of distinct tokens",
    "distinct_2": "share of distinct token pairs",
    "entropy": "entropy of the policy",
    "explained_variance": "variance explained by the value function",
    "forced": "critiques cut by the token limit",
    "good_tokens": "share of tokens marked good",
    "grad_norm": "gradient norm",
    "kl": "distance from the starting policy (KL)",
    "kl_coefficient": "KL coefficient",
    "kl_token": "distance per token (KL)",
    "labelled": "share of tokens with a label",
    "left_out": "share of answers left out of the loss",
    "loss": "loss",
    "lr": "learning rate",
    "no_score": "share of critiques without a verdict",
    "poor_tokens": "share of tokens marked poor",
    "ratio_change": "change of token probabilities",
    "repetition": "share of repeated 4-grams",
    "response_length": "tokens in an answer",
    "reward_sum": "reward of an answer minus KL",
    "same_answers": "prompts whose answers are all the same",
    "score": "critic's verdict",
    "truncated": "share of answers cut by the length limit",
    "uncovered": "spans that cover no token",
    "unmatched": "quotes not found in the answer",
    "unmatched_share": "share of quotes not found in the answer",
    "named_spans": "share of spans that the critique repeats",
    "advantage_variance": "variance of the advantages, unscaled",
    "value": "value of the tokens",
    "wrong_sign_rate": "share of tokens pushed the wrong way",
}


def measure_title(name: str) -> str:
    """Return the words for a measure of answers, such as `rouge_l`."""
    return MEASURES.get(name, name.replace("_", " "))


def metric_title(name: str) -> str:
    """Return the words for a logged metric, such as `delta_sum`."""
    if match := re.fullmatch(r"heldout_(greedy|sampled)_(.+)", name):
        return f"held out: {measure_title(match[2])} ({match[1]})"
    if name.startswith("seconds_"):
        return f"seconds: {name.removeprefix('seconds_').replace('_', ' ')}"
    return METRICS.get(name, name.replace("_", " "))


def prompt_title(prompt: Sequence[Message], default: str) -> str:
    """Return the start of the last message with text, on one line, or `default`."""
    lines = (" ".join(message.content[: 5 * TITLE_CHARACTERS].split()) for message in reversed(prompt))
    return next(filter(None, lines), default)[:TITLE_CHARACTERS]
