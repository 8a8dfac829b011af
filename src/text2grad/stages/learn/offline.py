"""`train --offline`: the policy learns from annotated answers, without a reward model and without sampling."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.durable.run import ResumeMode
from text2grad.errors import UserError
from text2grad.feedback import Critique, Feedback, Transcript
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.episode import encode_turns
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.stages.learn.logged import answers_in
from text2grad.stages.run.policies import start_policy
from text2grad.stages.run.prompts import task_of
from text2grad.stages.run.sampling import TOKEN_IDS
from text2grad.stages.run.settle import facts_of_pairs
from text2grad.stages.run.summary import Summary, inlined
from text2grad.stages.run.training import training
from text2grad.train.objectives.offline import LoggedAnswer, train_offline
from text2grad.train.pairs import Pair


@dataclass(frozen=True, kw_only=True)
class OfflineSummary(Summary):
    """Answers that were learned from, the spans on them, records left out by reason, and the policy's folder."""

    answers: int
    spans: int
    left_out: Mapping[str, int] = inlined()
    metrics: Mapping[str, float] = inlined()
    out: str


def run_train_offline(config: Config, source: Path, name: str, resume: ResumeMode = "auto") -> OfflineSummary:
    """Learn from the annotated answers in `source`; writes `ppo/<name>`, or resumes an unfinished one.

    Raises:
        UserError: the file has nothing to learn from (`logged.answers_in`), or no record marks words or turns.
    """
    with training(config, "offline", f"ppo/{name}", resume) as stage:
        with stage.preparing():
            records, left_out = answers_in(source, config, task_of(config))
            if not any(map(_is_marked, records)) and not config.credit.by_score:
                cure = "text2grad annotate --anchor finds the words a critique is about; import reads marked words"
                raise UserError(f"{source}: no words are marked in any of {len(records)} records", cure)
            policy, found = load_policy(start_policy(config)), len(records)
            records, problem = fitting(policy, records, config)
            if problem and stage.ranks.first:
                print(f"left out: {problem}", file=sys.stderr)
            left_out = {**left_out, "too_long": found - len(records)}
        answers = [Pair(record.id, record.prompt, record.response) for record in records]
        run = stage.settle(policy, facts_of_pairs(policy, answers))
        with run.begin() as options:
            settings, learned = run.config, [logged(record) for record in records]
            metrics = train_offline(policy, learned, settings.offline, settings.credit, options)
    return OfflineSummary(
        answers=len(records),
        spans=sum(len(record.spans) for record in records),
        left_out=left_out,
        metrics=metrics,
        out=str(stage.place / "policy"),
    )


def _is_marked(record: Feedback) -> bool:
    """Whether words or single turns of an answer are judged."""
    return bool(record.spans) or any(score is not None for score in record.meta.get("turn_scores", ()))


def fitting(policy: Policy, records: Sequence[Feedback], config: Config) -> tuple[list[Feedback], str]:
    """The records whose prompt and answer fit the model; and of the others how many, the first and its length.

    Raises:
        UserError: none fits.
    """
    limit = policy.context
    lengths = [_tokens(policy, record) for record in records]
    long = [(record, tokens) for record, tokens in zip(records, lengths, strict=True) if tokens > (limit or tokens)]
    if not long:
        return list(records), ""
    first, tokens = long[0]
    problem = (
        f"{len(long)} of {len(records)} answers, which with their prompts exceed {limit} tokens:"
        f" that of {first.id!r} has {tokens}"
    )
    if len(long) == len(records):
        raise UserError(f"nothing to train on: {problem}", "shorten them, or take a model with a longer context")
    out = {id(record) for record, _ in long}
    return [record for record in records if id(record) not in out], problem


def _tokens(policy: Policy, record: Feedback) -> int:
    """Of a prompt and its answer."""
    ids = _ids(record)
    if isinstance(record.response, Transcript):
        return len(encode_turns(policy.tokenizer, record.prompt, record.response, ids).whole)
    return len(encode_prompt(policy.tokenizer, record.prompt)) + len(
        ids or encode_target(policy.tokenizer, record.response)
    )


def logged(record: Feedback) -> LoggedAnswer:
    """A record as an answer to learn from."""
    said = record.judgement()
    assert isinstance(said, Critique)
    return LoggedAnswer(record.id, record.prompt, record.response, said, tuple(_ids(record)))


def _ids(record: Feedback) -> Sequence[Any]:
    """The ids of an answer as it was sampled, of a transcript a list for each turn; none where they do not say."""
    ids = record.meta.get(TOKEN_IDS) or ()
    several = isinstance(record.response, Transcript)
    return ids if all(isinstance(each, list) == several for each in ids) else ()
