"""Responses of a policy: token ids, text, and items for `annotate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from text2grad.align import TokenTable
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
from text2grad.policy.episode import MakeEnvironment, play, words_and_tokens
from text2grad.policy.generate import generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.sandbox import Runner

TOKEN_IDS = "token_ids"


def sample(
    policy: Policy,
    examples: Sequence[Example],
    generation: GenerationSettings,
    environment: MakeEnvironment | None = None,
) -> list[tuple[list[Any], str]]:
    """One response per example: the sampled ids, and the text read off them. Reports its progress.

    In an environment the response is an episode: the ids of each turn, and the transcript, or the
    text of its one turn.
    """
    if not examples:
        return []
    table, progress = TokenTable(policy.tokenizer), progress_reporter("sampling")(len(examples))
    if environment is None:
        prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
        samples = generate(policy, prompts, generation, progress=progress)
        return [(item.ids, table.align(item.ids).text) for item in samples]
    episodes = []
    played = play(policy, examples, environment, generation, progress=progress)
    for example, item in zip(examples, played, strict=True):
        runs = groupby(zip(item.ids, item.mask or [], strict=True), key=itemgetter(1))
        turns = [[index for index, _ in run] for own, run in runs if own]
        episodes.append((turns, words_and_tokens(table, example, item)[0]))
    return episodes


def with_room(policy: Policy, examples: Sequence[Example], tokens: int) -> list[Example]:
    """The examples whose prompts leave room for an answer of this many tokens."""
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
        ids, response = answer  # with its ids the response is not tokenised again
        one_turn = environment is not None and not isinstance(response, Transcript)
        meta = {**example.meta, TOKEN_IDS: ids[0] if one_turn else ids}
        items.append(_sampled(example.model_copy(update={"meta": meta}), response))
    return items


def tested_items(runner: Runner, items: Sequence[Item]) -> list[Item]:
    """The items with the outcome of their tests, where they have tests."""
    found = run_outcomes(runner, [item.example for item in items], [item.response for item in items])
    return [
        replace(item, example=item.example.model_copy(update={"meta": {**item.example.meta, **came}}))
        for item, came in zip(items, found, strict=True)
    ]


def planned_items(examples: Sequence[Example], samples: int, tokens: int) -> list[Item]:
    """Stand-ins for responses that are not sampled yet, as long as they may become."""
    return [_sampled(example, "word " * tokens) for example in examples for _ in range(samples)]


def drafted_items(examples: Sequence[Example]) -> list[Item]:
    """The data set's own drafts that people wrote about: only for these do their words hold."""
    drafted = [Item(example, str(example.meta.get(DRAFT, "")), shares_id=True) for example in examples]
    return [
        item
        for item in drafted
        if DRAFT in item.example.meta and human_feedback_on(item.example, item.response).strip()
    ]


def _sampled(example: Example, response: str) -> Item:
    """A sampled response. What a person wrote is about another one, even where the data do not say
    which, and so is what came of tests.
    """
    meta = {name: value for name, value in example.meta.items() if name not in ("outcome", "test_output")}
    unknown = {DRAFT: ""} if HUMAN_FEEDBACK in meta and DRAFT not in meta else {}
    return Item(example.model_copy(update={"meta": {**meta, **unknown}}), response, shares_id=True)
