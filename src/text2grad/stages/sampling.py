"""Sampling from a policy: token ids, text, and items for `annotate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from text2grad.align import get_table
from text2grad.critics.program import run_outcomes
from text2grad.data.responses import Item
from text2grad.durable.progress import progress_reporter
from text2grad.feedback import (
    DRAFT,
    HUMAN_FEEDBACK,
    Example,
    Transcript,
    human_feedback_on,
)
from text2grad.policy.encode import encode_prompt, encode_prompts
from text2grad.policy.episode import MakeEnvironment, decode_sample, play
from text2grad.policy.generate import generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.sandbox import Runner

TOKEN_IDS = "token_ids"
Sampled = list[tuple[list[Any], str]]
"""The sampled ids and the text of each response."""


def sample(
    policy: Policy,
    examples: Sequence[Example],
    generation: GenerationSettings,
    environment: MakeEnvironment | None = None,
) -> Sampled:
    """Sample one response per example, and report progress.

    Returns:
        The sampled ids and the text of each response. In an environment, a response is an episode:
        the ids of each turn, and the transcript (the text, if it has a single turn).
    """
    if not examples:
        return []
    table, progress = get_table(policy.tokenizer), progress_reporter("sampling")(len(examples))
    if environment is None:
        prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
        samples = generate(policy, prompts, generation, progress=progress)
        return [(item.ids, table.align(item.ids).text) for item in samples]
    episodes = []
    played = play(policy, examples, environment, generation, progress=progress)
    for example, item in zip(examples, played, strict=True):
        runs = groupby(zip(item.ids, item.mask or [], strict=True), key=itemgetter(1))
        turns = [[index for index, _ in run] for is_sampled, run in runs if is_sampled]
        episodes.append((turns, decode_sample(table, example, item)[0]))
    return episodes


def with_room(policy: Policy, examples: Sequence[Example], tokens: int) -> list[Example]:
    """Return the examples whose prompts leave room for an answer of this many tokens."""
    if policy.context is None:
        return list(examples)
    room = policy.context - tokens
    return [example for example in examples if len(encode_prompt(policy.tokenizer, example.prompt)) <= room]


def sampled_items(
    policy: Policy,
    examples: Sequence[Example],
    samples: int,
    generation: GenerationSettings,
    environment: MakeEnvironment | None = None,
) -> list[Item]:
    """Sample `samples` responses per example, to be judged."""
    repeated = [example for example in examples for _ in range(samples)]
    sampled = sample(policy, repeated, generation, environment)
    items = []
    for example, answer in zip(repeated, sampled, strict=True):
        ids, response = answer  # the ids are kept, so that the response is not tokenised again
        is_single_turn = environment is not None and not isinstance(response, Transcript)
        meta = {**example.meta, TOKEN_IDS: ids[0] if is_single_turn else ids}
        items.append(_sampled_item(example.model_copy(update={"meta": meta}), response))
    return items


def tested_items(runner: Runner, items: Sequence[Item]) -> list[Item]:
    """Run the tests of items that have some, and return all items with the outcomes in `meta`."""
    outcomes = run_outcomes(runner, [item.example for item in items], [item.response for item in items])
    return [
        replace(item, example=item.example.model_copy(update={"meta": {**item.example.meta, **outcome}}))
        for item, outcome in zip(items, outcomes, strict=True)
    ]


def planned_items(examples: Sequence[Example], samples: int, tokens: int) -> list[Item]:
    """Return placeholders of maximal length for responses that are not sampled yet."""
    return [_sampled_item(example, "word " * tokens) for example in examples for _ in range(samples)]


def drafted_items(examples: Sequence[Example]) -> list[Item]:
    """Return the data set's drafts that have people's feedback."""
    drafted = [Item(example, str(example.meta.get(DRAFT, "")), shares_id=True) for example in examples]
    return [
        item
        for item in drafted
        if DRAFT in item.example.meta and human_feedback_on(item.example, item.response).strip()
    ]


def _sampled_item(example: Example, response: str) -> Item:
    """Return an item without test outcomes, which belong to another response.

    People's feedback belongs to another response too, even if the data do not include it.
    """
    meta = {name: value for name, value in example.meta.items() if name not in ("outcome", "test_output")}
    unknown = {DRAFT: ""} if HUMAN_FEEDBACK in meta and DRAFT not in meta else {}
    return Item(example.model_copy(update={"meta": {**meta, **unknown}}), response, shares_id=True)
