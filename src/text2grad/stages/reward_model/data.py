"""The data that a reward model is trained and measured on: records of the run, as training pairs
and as cases."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from text2grad import wire
from text2grad.align import TokenTable
from text2grad.align.trajectory import align_recorded
from text2grad.config import RewardModelSettings
from text2grad.critics.damage import spoiled
from text2grad.critics.prompted import fitted_messages, judge_messages
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critic, Critique, Example, Failure, Feedback, Message
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.heads.tagger import shown_at
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

FEW_RECORDS, DAMAGED_OF_FEW = 500, 0.5
"""Training records below which spoiled answers are added, and how many for each of them."""


def reward_data(run: RunFolder) -> tuple[list[Feedback], list[Feedback]]:
    """Training and held-out records: no question is in both, and none held out by the task is
    trained on.

    What `annotate` sampled was split by the task already; what people wrote is split here, by the
    same rule. With `task.split`, feedback on the questions of the other shares is left out.
    """
    records, heldout, settings = run.feedback(), run.heldout_feedback(), run.task_settings
    known, sampled_apart = splits_of_task(run), bool(heldout)
    out = {question_key(record) for record in heldout}
    for record in records:
        question = question_key(record)
        by_words = record.source.kind == "human" or not sampled_apart
        if known.get(question, assign_split(question, settings) if by_words else "train") == "heldout":
            out.add(question)
    train: list[Feedback] = []
    for record in records:
        question = question_key(record)
        if question in out:
            heldout.append(record)
        elif known.get(question, wanted := feedback_split(settings)) == wanted:
            train.append(record)
    return train, heldout


def splits_of_task(run: RunFolder) -> dict[str, Split]:
    """Question -> split, where it takes the task's data to tell: with `task.split` or
    `task.heldout_data`."""
    if run.task_settings.split is None and not run.task_settings.heldout_data:
        return {}
    return splits_of(run.task(), run.task_settings)


def splits_of(task: Task, settings: TaskSettings) -> dict[str, Split]:
    """Question -> split, of all prompts of a task on which there may be feedback."""
    splits: tuple[Split, ...] = ("heldout", *(SHARES if settings.split else ("train",)))
    return {question_key(example): split for split in splits for example in task.examples(split)}


def reward_pair(record: Feedback, settings: RewardModelSettings) -> Pair | None:
    """(judge's conversation, z) of one record; None for a failed critique, which teaches
    nothing."""
    judgement = record.judgement()
    if isinstance(judgement, Failure):
        return None
    messages = judge_messages(read_prompt(REWARD_MODEL_PROMPT), example_of(record), record.response)
    z = wire.render(as_taught(judgement, settings), record.response)
    marked = _marked(record, messages) if settings.weight_of_labels else ()
    score = judgement.score if settings.score_head else None
    return Pair(record.id, tuple(messages), z, marked, score)


def _marked(record: Feedback, messages: Sequence[Message]) -> tuple[MarkedText, ...]:
    """The position of each turn of the response in the judge's prompt, with its spans; none if a
    tag in one had to be changed."""
    found = []
    for at, (start, end) in shown_at(messages[-1].content, record.response):
        own = (span for span in record.spans if start <= span.start < end)
        spans = (s.model_copy(update={"start": s.start - start, "end": s.end - start}) for s in own)
        found.append(MarkedText(at, record.response[start:end], tuple(spans)))
    return tuple(found)


def as_taught(critique: Critique, settings: RewardModelSettings) -> Critique:
    """The part of a critique that the reward model learns to write: nothing, of a tagger.

    What is missing from an answer is said in the critique's words, and turns get no verdicts of
    their own: grounded decoding has no list for either. A score is rounded to one digit: extra
    digits invite memorisation.
    """
    if settings.tags:
        return Critique(text="")
    spans = critique.spans
    if not settings.reasons:
        spans = tuple(span.model_copy(update={"reason": ""}) for span in spans)
    listed = ("omissions", "turn_scores")
    lists = {name: getattr(critique, name) if settings.grounded == "off" else () for name in listed}
    text = critique.text if settings.critique else ""
    written = not settings.score_head and critique.score is not None
    score = round(critique.score or 0.0, 1) + 0.0 if written else None  # no -0.0
    return critique.model_copy(update={"text": text, "spans": spans, "score": score, **lists})


def with_damage(records: Sequence[Feedback], settings: RewardModelSettings, seed: int) -> list[Feedback]:
    """The records, and after them spoiled answers as `reward_model.damaged` asks for.

    A few critiques are all of answers worth a remark: a model trained on them alone may praise what
    is no answer.
    """
    few = DAMAGED_OF_FEW if len(records) < FEW_RECORDS else 0.0
    share = few if settings.damaged is None else settings.damaged
    return [*records, *spoiled(records, round(share * len(records)), seed)]


def fitting(
    policy: Policy, records: Sequence[Feedback], settings: RewardModelSettings
) -> list[tuple[Feedback, Pair]]:
    """The readable records that fit the model, with their training pairs.

    A prompt that is too long loses its middle, the response and z nothing: half a critique would
    teach to stop half-way. What still does not fit is left out. Both are reported on stderr.
    """
    limit = policy.context
    readable = [(record, pair) for record in records if (pair := reward_pair(record, settings)) is not None]
    fitted = [(record, _shortened(policy, record, pair, limit)) for record, pair in readable]
    kept = [(record, pair) for record, pair in fitted if pair is not None]
    cut = sum(pair.prompt != whole.prompt for (_, pair), (_, whole) in zip(fitted, readable, strict=True) if pair)
    if cut:
        print(f"{cut} of {len(readable)} prompts lose their middle to fit {limit} tokens", file=sys.stderr)
    if len(kept) < len(readable):
        count, whole = len(readable) - len(kept), len(readable)
        line = f"{count} of {whole} critiques are left out: they still exceed {limit} tokens"
        print(line, file=sys.stderr)
    return kept


def _shortened(policy: Policy, record: Feedback, pair: Pair, limit: int | None) -> Pair | None:
    """The pair with as much of its prompt as fits; None if response and z alone are too long."""
    target = len(encode_target(policy.tokenizer, pair.target))

    def excess(messages: Sequence[Message]) -> int:
        return 0 if limit is None else len(encode_prompt(policy.tokenizer, messages)) + target - limit

    if excess(pair.prompt) <= 0:
        return pair
    prompt = fitted_messages(read_prompt(REWARD_MODEL_PROMPT), example_of(record), record.response, excess)
    marked = _marked(record, prompt) if pair.marked else ()
    return replace(pair, prompt=tuple(prompt), marked=marked) if excess(prompt) <= 0 else None


def token_table(run: RunFolder) -> TokenTable:
    """The tokens of the policy that training starts from."""
    start = run.policy()
    return TokenTable(load_tokenizer(start.model, start.chat_template))


def judged_cases(critic: Critic, gold: Sequence[Feedback], table: TokenTable) -> list[SpanCase]:
    """A critic's judgement of each record's response, with the record's own as the gold one."""
    predicted = critic.critique([example_of(record) for record in gold], [record.response for record in gold])
    cases = []
    for record, judgement in zip(gold, predicted, strict=True):
        own = record.judgement()
        assert isinstance(own, Critique)
        # By the ids the policy sampled; a response that people wrote about elsewhere has none.
        aligned = align_recorded(table, record.response, record.meta.get(TOKEN_IDS))
        cases.append(SpanCase(own, judgement, aligned, question_text(record)))
    return cases


def example_of(record: Feedback) -> Example:
    """The prompt of a record."""
    return Example(id=record.id, prompt=record.prompt)
