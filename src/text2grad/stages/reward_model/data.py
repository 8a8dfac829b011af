"""Training and evaluation data of a reward model: the run's records as pairs and as cases."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from text2grad import wire
from text2grad.align import TokenTable, get_table
from text2grad.align.trajectory import align_recorded
from text2grad.config import RewardModelSettings
from text2grad.critics.damage import corrupt_records
from text2grad.critics.prompted import fitted_messages, judge_messages
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critic, Critique, Example, Failure, Feedback, Message
from text2grad.policy.encode import count_excess, encode_target
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.heads.tagger import find_turns
from text2grad.policy.model import Policy
from text2grad.stages.critics import REWARD_MODEL_PROMPT
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.sampling import TOKEN_IDS
from text2grad.tasks.base import (
    SHARES,
    Split,
    Task,
    TaskSettings,
    assign_split,
    feedback_split,
    question_key,
    question_text,
    read_prompt,
)
from text2grad.train.pairs import MarkedText, Pair

DAMAGED_BELOW, DAMAGED_SHARE = 500, 0.5
"""The number of training records below which corrupted answers are added, and their share."""


def reward_data(run: RunFolder) -> tuple[list[Feedback], list[Feedback]]:
    """Return training and held-out records, which share no question.

    Records that `annotate` sampled are split by the task already. People's feedback is split here
    by the same rule. With `task.split`, feedback on questions of the other shares is left out.
    """
    records, heldout, settings = run.feedback(), run.heldout_feedback(), run.task_settings
    splits, annotate_has_split = splits_of_task(run), bool(heldout)
    heldout_questions = {question_key(record) for record in heldout}
    for record in records:
        question = question_key(record)
        by_question = record.source.kind == "human" or not annotate_has_split
        if splits.get(question, assign_split(question, settings) if by_question else "train") == "heldout":
            heldout_questions.add(question)
    train: list[Feedback] = []
    train_split = feedback_split(settings)
    for record in records:
        question = question_key(record)
        if question in heldout_questions:
            heldout.append(record)
        elif splits.get(question, train_split) == train_split:
            train.append(record)
    return train, heldout


def splits_of_task(run: RunFolder) -> dict[str, Split]:
    """Return splits by question with `task.split` or `task.heldout_data`, else an empty mapping.

    Without these settings a question's split follows from its text.
    """
    if run.task_settings.split is None and not run.task_settings.heldout_data:
        return {}
    return splits_of(run.task(), run.task_settings)


def splits_of(task: Task, settings: TaskSettings) -> dict[str, Split]:
    """Return the split of every question in a task's data that may have feedback."""
    splits: tuple[Split, ...] = ("heldout", *(SHARES if settings.split else ("train",)))
    return {question_key(example): split for split in splits for example in task.examples(split)}


def reward_pair(record: Feedback, settings: RewardModelSettings) -> Pair | None:
    """Return a record's training pair (judge's conversation, z); None if its critique failed."""
    judgement = record.judgement()
    if isinstance(judgement, Failure):
        return None
    messages = judge_messages(read_prompt(REWARD_MODEL_PROMPT), example_of(record), record.response)
    z = wire.render(as_taught(judgement, settings), record.response)
    turns = _marked_turns(record, messages) if settings.weight_of_labels else ()
    score = judgement.score if settings.score_head else None
    return Pair(record.id, tuple(messages), z, turns, score)


def _marked_turns(record: Feedback, messages: Sequence[Message]) -> tuple[MarkedText, ...]:
    """Return the position of each turn of the response in the judge's prompt, with its spans.

    It is empty if a tag in a turn had to be escaped.
    """
    turns = []
    for position, (start, end) in find_turns(messages[-1].content, record.response):
        spans = tuple(
            span.model_copy(update={"start": span.start - start, "end": span.end - start})
            for span in record.spans
            if start <= span.start < end
        )
        turns.append(MarkedText(position, record.response[start:end], spans))
    return tuple(turns)


def as_taught(critique: Critique, settings: RewardModelSettings) -> Critique:
    """Return the part of a critique that the reward model learns to write; a tagger writes none.

    With grounded decoding, omissions and turn scores are dropped, since its grammar has no lists
    for them; the critique's text still describes omissions. A score is rounded to one digit, since
    more digits invite memorisation.
    """
    if settings.tags:
        return Critique(text="")
    spans = critique.spans
    if not settings.reasons:
        spans = tuple(span.model_copy(update={"reason": ""}) for span in spans)
    names = ("omissions", "turn_scores")
    lists = {name: getattr(critique, name) if settings.grounded == "off" else () for name in names}
    text = critique.text if settings.critique else ""
    has_score = not settings.score_head and critique.score is not None
    score = round(critique.score or 0.0, 1) + 0.0 if has_score else None  # adding 0.0 avoids -0.0
    return critique.model_copy(update={"text": text, "spans": spans, "score": score, **lists})


def with_damage(records: Sequence[Feedback], settings: RewardModelSettings, seed: int) -> list[Feedback]:
    """Return the records followed by corrupted answers, their share set by `reward_model.damaged`.

    A small set of critiques only has plausible answers, so a model trained on it alone may praise
    text that is not an answer at all.
    """
    few = DAMAGED_SHARE if len(records) < DAMAGED_BELOW else 0.0
    share = few if settings.damaged is None else settings.damaged
    return [*records, *corrupt_records(records, round(share * len(records)), seed)]


def fitting(
    policy: Policy, records: Sequence[Feedback], settings: RewardModelSettings
) -> list[tuple[Feedback, Pair]]:
    """Return the records that fit the model, with their training pairs.

    The middle of a prompt that is too long is cut. The response and z are never cut, since half a
    critique would teach the model to stop early. Records that still do not fit are left out.
    Prints the counts of both on stderr.
    """
    limit = policy.context
    readable = [(record, pair) for record in records if (pair := reward_pair(record, settings)) is not None]
    shortened = [_shorten(policy, record, pair, limit) for record, pair in readable]
    fitted = [(record, pair) for (record, _), pair in zip(readable, shortened, strict=True) if pair is not None]
    cut = sum(
        pair.prompt != full.prompt for pair, (_, full) in zip(shortened, readable, strict=True) if pair is not None
    )
    if cut:
        print(f"{cut} of {len(readable)} prompts were cut in the middle to fit {limit} tokens", file=sys.stderr)
    if excluded := len(readable) - len(fitted):
        line = f"{excluded} of {len(readable)} critiques are left out: they still exceed {limit} tokens"
        print(line, file=sys.stderr)
    return fitted


def _shorten(policy: Policy, record: Feedback, pair: Pair, limit: int | None) -> Pair | None:
    """Cut the prompt of a pair to fit; None if response and z alone are too long."""
    target = len(encode_target(policy.tokenizer, pair.target))

    def excess(messages: Sequence[Message]) -> int:
        return count_excess(policy.tokenizer, messages, limit, target)

    if excess(pair.prompt) <= 0:
        return pair
    prompt = fitted_messages(read_prompt(REWARD_MODEL_PROMPT), example_of(record), record.response, excess)
    turns = _marked_turns(record, prompt) if pair.marked else ()
    return replace(pair, prompt=tuple(prompt), marked=turns) if excess(prompt) <= 0 else None


def token_table(run: RunFolder) -> TokenTable:
    """Return the token table of the policy that training starts from."""
    start = run.policy()
    return get_table(load_tokenizer(start.model, start.chat_template))


def judged_cases(critic: Critic, gold: Sequence[Feedback], table: TokenTable) -> list[SpanCase]:
    """Return a critic's judgement of each record's response, with the record's as the gold one."""
    predicted = critic.critique([example_of(record) for record in gold], [record.response for record in gold])
    cases = []
    for record, judgement in zip(gold, predicted, strict=True):
        gold_critique = record.judgement()
        assert isinstance(gold_critique, Critique)
        # Imported responses have no sampled ids and are tokenised instead.
        aligned = align_recorded(table, record.response, record.meta.get(TOKEN_IDS))
        cases.append(SpanCase(gold_critique, judgement, aligned, question_text(record)))
    return cases


def example_of(record: Feedback) -> Example:
    """Return the prompt of a record."""
    return Example(id=record.id, prompt=record.prompt)
