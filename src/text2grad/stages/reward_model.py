"""`train-reward`, and how well the reward model marks held-out answers."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from text2grad import wire
from text2grad.align import Aligned, TokenTable
from text2grad.config import Config, RewardModelSettings, with_tiny_rates
from text2grad.critics.prompted import judge_messages
from text2grad.eval.spans import SpanCase, span_report
from text2grad.feedback import Critique, Example, Failure, Feedback, read_jsonl
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.model import Policy, load_policy
from text2grad.stages.critics import REWARD_MODEL_PROMPT, reward_model_critic
from text2grad.stages.folder import note_settings, prepare, read_feedback, start_policy, write_json
from text2grad.stages.sampling import TOKEN_IDS
from text2grad.tasks.base import question_of, read_prompt, split_of, words_of
from text2grad.train.run import save_policy
from text2grad.train.supervised import Pair, train_supervised


def run_train_reward(config: Config) -> dict[str, Any]:
    """Train the reward model on z; writes `reward_model/policy` and `evaluation/reward_model.json`."""
    folder = prepare(config)
    train, _ = reward_data(config)
    policy = load_policy(config.reward_model.policy or start_policy(config))
    training = with_tiny_rates(config).reward_model.training
    chosen = without_repeats(train, config.reward_model.repeats)
    pairs = [pair for _, pair in fitting(policy, chosen, config.reward_model)]
    note_settings(config, folder, begins=True)
    metrics = train_supervised(policy, pairs, training, folder / "reward_model", config.run.seed, "reward model")
    save_policy(policy, folder / "reward_model" / "policy")
    note_settings(config, folder)
    quality = evaluate_reward_model(config)
    counts = {"records": len(train), "trained_on": len(pairs)}
    return {**counts, **metrics, **quality, "out": str(folder / "reward_model" / "policy")}


def without_repeats(records: Sequence[Feedback], limit: int | None) -> list[Feedback]:
    """The records in their order, of equal responses to equal prompts the first `limit`.

    A policy that is sure of itself samples one response again and again; each repeat costs as much to train on
    as a new response, and teaches less.
    """
    seen: Counter[tuple[object, str]] = Counter()
    kept = []
    for record in records:
        seen[record.prompt, record.response] += 1
        if limit is None or seen[record.prompt, record.response] <= limit:
            kept.append(record)
    return kept


def fitting(
    policy: Policy, records: Sequence[Feedback], settings: RewardModelSettings
) -> list[tuple[Feedback, Pair]]:
    """The readable records with their training pairs, as far as they fit the model whole.

    The others are left out with a line that says so: half a critique would teach to stop half-way.
    """
    readable = [(record, pair) for record in records if (pair := reward_pair(record, settings)) is not None]
    lengths = (policy.context, settings.training.max_length)
    limit = min((length for length in lengths if length is not None), default=None)
    kept = [(r, pair) for r, pair in readable if limit is None or pair_length(policy, pair) <= limit]
    if len(kept) < len(readable):
        count, whole = len(readable) - len(kept), len(readable)
        line = f"{count} of {whole} critiques are left out: with their prompt they exceed {limit} tokens"
        print(line, file=sys.stderr)
    return kept


def pair_length(policy: Policy, pair: Pair) -> int:
    """Tokens of a training pair, prompt and target together."""
    return len(encode_prompt(policy.tokenizer, pair.prompt)) + len(encode_target(policy.tokenizer, pair.target))


def reward_data(config: Config) -> tuple[list[Feedback], list[Feedback]]:
    """Training and held-out records: no question is in both, and none held out by the task is trained on.

    What `annotate` sampled was split by the task already; what people wrote is split here, by the same rule.
    """
    folder = config.run.folder
    records = read_feedback(folder / "feedback.jsonl")
    beside = folder / "feedback_heldout.jsonl"
    heldout = list(read_jsonl(beside, Feedback)) if beside.is_file() else []
    asked = {words_of(question_of(record)) for record in heldout}
    train: list[Feedback] = []
    for record in records:
        question = question_of(record)
        by_words = split_of(question, config.task) if record.source.kind == "human" or not heldout else "train"
        kept_out = by_words == "heldout" or words_of(question) in asked
        (heldout if kept_out else train).append(record)
    return train, heldout


def reward_pair(record: Feedback, settings: RewardModelSettings) -> Pair | None:
    """(judge's conversation, z) of one record; None for a failed critique, which teaches nothing."""
    judgement = record.judgement()
    if isinstance(judgement, Failure):
        return None
    example = Example(id=record.id, prompt=record.prompt)
    messages = judge_messages(read_prompt(REWARD_MODEL_PROMPT), example, record.response)
    return Pair(record.id, tuple(messages), wire.render(as_taught(judgement, settings), record.response))


def as_taught(critique: Critique, settings: RewardModelSettings) -> Critique:
    """What of a critique the reward model learns to write: a small one has no capacity for all of it."""
    spans = tuple(
        span.model_copy(update={"reason": _taught_reason(span.reason, settings)}) for span in critique.spans
    )
    return critique.model_copy(update={"text": critique.text if settings.critique else "", "spans": spans})


def _taught_reason(reason: str, settings: RewardModelSettings) -> str:
    return {"full": reason, "short": shortened_reason(reason), "none": ""}[settings.reasons]


def shortened_reason(reason: str) -> str:
    """`Wrong-Grounding: the passage says ...` -> `Wrong-Grounding`."""
    return " ".join(re.split(r"[:.;,?!\n]", reason.strip(), maxsplit=1)[0].split()[:4])


def evaluate_reward_model(config: Config) -> dict[str, Any]:
    """Compare the reward model with the annotations of held-out prompts, token by token."""
    _, heldout = reward_data(config)
    policy = load_policy(start_policy(config))
    gold = [record for record, _ in fitting(policy, heldout, config.reward_model)]
    if not gold:
        return {}
    critic = reward_model_critic(config)
    table = TokenTable(policy.tokenizer)
    examples = [Example(id=record.id, prompt=record.prompt) for record in gold]
    predicted = critic.critique(examples, [record.response for record in gold])
    cases = [
        SpanCase(_critique(record), judgement, _aligned(record, table))
        for record, judgement in zip(gold, predicted, strict=True)
    ]
    report = span_report(cases)
    write_json(config.run.folder / "evaluation" / "reward_model.json", report)
    return report


def _aligned(record: Feedback, table: TokenTable) -> Aligned:
    """By the ids the policy sampled; a response that people wrote about elsewhere has none."""
    ids = record.meta.get(TOKEN_IDS)
    return table.align(ids) if ids else table.align_text(record.response)


def _critique(record: Feedback) -> Critique:
    judgement = record.judgement()
    assert isinstance(judgement, Critique)
    return judgement
