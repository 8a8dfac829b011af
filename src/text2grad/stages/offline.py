"""`train --offline`: the policy learns from annotated answers, without a reward model and without sampling."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config, with_tiny_rates
from text2grad.durable.run import ResumeMode
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.feedback import Critique, Feedback
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.stages.folder import note_settings, prepare, processes, run_inputs, run_options, start_policy
from text2grad.stages.logged import answers_in
from text2grad.stages.prompts import task_of
from text2grad.stages.sampling import TOKEN_IDS
from text2grad.stages.settle import facts_of_pairs, settled
from text2grad.stages.summary import Summary, inlined
from text2grad.train.objectives.offline import Logged, train_offline
from text2grad.train.pairs import Pair, longest


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
        UserError: the file has nothing to learn from (`logged.answers_in`), or no record in it marks words.
    """
    with processes(config) as ranks:
        with ranks.barrier():
            folder = prepare(config)
            records, left_out = answers_in(source, config, task_of(config))
            if not any(record.spans for record in records) and not config.credit.by_score:
                cure = "text2grad annotate --anchor finds the words a critique is about; import reads marked words"
                raise UserError(f"{source}: no words are marked in any of {len(records)} records", cure)
            policy, found = load_policy(start_policy(config)), len(records)
            place = folder / "ppo" / name
            records, problem = fitting(policy, records, config)
            if problem and ranks.first:
                print(f"left out: {problem}", file=sys.stderr)
            left_out = {**left_out, "too_long": found - len(records)}
            answers = [Pair(record.id, record.prompt, record.response) for record in records]
        facts = facts_of_pairs(policy, answers)
        config = settled(config, "offline", place, policy, facts, resume, ranks)
        with ranks.barrier():
            seed_everything(config.run.seed)
            if ranks.first:
                note_settings(config, place, begins=True)
        options = run_options(config, place, name, resume, ranks, run_inputs(config, config.policy))
        settings = with_tiny_rates(config).offline
        metrics = train_offline(policy, [logged(record) for record in records], settings, config.credit, options)
        if ranks.first:
            note_settings(config, place)
    return OfflineSummary(
        answers=len(records),
        spans=sum(len(record.spans) for record in records),
        left_out=left_out,
        metrics=metrics,
        out=str(place / "policy"),
    )


def fitting(policy: Policy, records: Sequence[Feedback], config: Config) -> tuple[list[Feedback], str]:
    """The records whose prompt and answer fit the model; and of the others how many, the first and its length.

    Raises:
        UserError: none fits.
    """
    limit = longest(policy, config.offline)
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
    answer = record.meta.get(TOKEN_IDS) or encode_target(policy.tokenizer, record.response)
    return len(encode_prompt(policy.tokenizer, record.prompt)) + len(answer)


def logged(record: Feedback) -> Logged:
    """A record as an answer to learn from."""
    said, ids = record.judgement(), record.meta.get(TOKEN_IDS) or ()
    assert isinstance(said, Critique)
    return Logged(record.id, record.prompt, record.response, said, tuple(ids))
