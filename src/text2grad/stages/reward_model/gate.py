"""The gate behind `train-reward`: what a reward model says of fresh and of spoiled answers, and the verdict on it.

The verdict is written beside the reward model, and `train` reads it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from text2grad.align import CreditSettings, TokenTable
from text2grad.align.trajectory import recorded_tokens
from text2grad.config import Config
from text2grad.critics.damage import spoiled
from text2grad.critics.table import spec_of
from text2grad.errors import UserError
from text2grad.eval.critics.gate import Gate, GateJudgements, Paid, check
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critic, Example, Feedback, Judgement, judgements_of
from text2grad.jsonl import write_jsonl
from text2grad.policy.encode import encode_prompt
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages.critics import critic_over, load_reward_model
from text2grad.stages.reward_model.corrections import corrections
from text2grad.stages.reward_model.data import example_of, reward_data, token_table
from text2grad.stages.run_folder import RunFolder, write_json
from text2grad.stages.sampling import sample
from text2grad.tasks.base import Split, environment_of, question_of, words_of

GATE_FILE = "gate.json"
FRESH = "reward_model.fresh.jsonl"
"""In `evaluation`: the critiques of fresh answers of the policy."""
ANSWERS, SPOILED, CORRECTED = 16, 32, 32
"""Fresh answers, spoiled ones, and held-out corrections that are judged at most."""


SPLITS: tuple[Split, ...] = ("heldout", "train")


def gate_file(run: RunFolder) -> Path:
    """The verdict beside the reward model, which is critic.reward_model.folder or this run's own."""
    return run.reward_model_folder.parent / GATE_FILE


def check_reward_model(run: RunFolder, config: Config, cases: Sequence[SpanCase]) -> Gate:
    """The verdict on the reward model of this run, given its critiques of held-out records.

    Has it judge answers that the policy samples now, corrupted answers, and held-out answers as people corrected
    them. Writes the verdict to `reward_model/gate.json` and the critiques of the fresh answers to
    `evaluation/reward_model.fresh.jsonl`.
    """
    train, heldout = reward_data(run)
    records = _one_of_each_question(train, heldout)
    fresh = _fresh_answers(run, config.generation, records)
    corrupted = [
        Answer(example_of(record), record.response) for record in spoiled(records, SPOILED, config.run.seed)
    ]
    corrected = [Answer(example_of(record), text) for record, text in corrections(heldout)[:CORRECTED]]
    release()
    batch_size = config.generation.batch_size
    critic = critic_over(config.reward_model, load_reward_model(run), str(run.reward_model_folder), batch_size)
    table = token_table(run)
    of_fresh, of_corrupted = (_paid(critic, table, answers) for answers in (fresh, corrupted))
    judged = GateJudgements(cases, of_fresh, of_corrupted, _judgements(critic, corrected))
    verdict = check(judged, config.credit, config.run.seed)
    answered = zip(fresh, of_fresh, strict=True)
    write_jsonl(
        run.evaluation / FRESH,
        [Feedback.of(answer.example, answer.text, critique, critic.source) for answer, (critique, _) in answered],
    )
    write_json(run.path / "reward_model" / GATE_FILE, asdict(verdict))
    return verdict


def release() -> None:
    """Free what is no longer used, so that one model is in memory at a time."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Answer(NamedTuple):
    """An answer to be judged, with its token ids if it was sampled here; of an episode the ids of each turn."""

    example: Example
    text: str
    ids: Sequence[Any] | None = None


def _fresh_answers(run: RunFolder, generation: GenerationSettings, records: Sequence[Feedback]) -> list[Answer]:
    """Sample the policy's answers to the first `ANSWERS` of these prompts that leave room for an answer.

    Where the task has an environment these are episodes, of the records whose question is one of the task's.
    """
    policy, task = load_frozen(run.policy()), run.task()
    asked = [record for record in records if _has_room(policy, record, generation.max_new_tokens)]
    examples, environment = [example_of(record) for record in asked], environment_of(task)
    if environment is not None:
        known = (example for split in SPLITS for example in task.examples(split))
        by_question = {words_of(question_of(example)): example for example in known}
        questions = [words_of(question_of(record)) for record in asked]
        examples = [by_question[question] for question in questions if question in by_question]
    examples = examples[:ANSWERS]
    sampled = sample(policy, examples, generation, environment)
    return [Answer(example, text, ids) for example, (ids, text) in zip(examples, sampled, strict=True)]


def _one_of_each_question(train: Sequence[Feedback], heldout: Sequence[Feedback]) -> list[Feedback]:
    """A record of each question, held-out ones first."""
    by_question = {words_of(question_of(record)): record for record in chain(reversed(train), reversed(heldout))}
    return list(reversed(by_question.values()))


def _has_room(policy: Policy, record: Feedback, tokens: int) -> bool:
    used = len(encode_prompt(policy.tokenizer, record.prompt)) + tokens
    return policy.context is None or used <= policy.context


def _judgements(critic: Critic, answers: Sequence[Answer]) -> list[Judgement]:
    examples, texts = [answer.example for answer in answers], [answer.text for answer in answers]
    return judgements_of(critic, examples, texts) if answers else []


def _paid(critic: Critic, table: TokenTable, answers: Sequence[Answer]) -> list[Paid]:
    """A judgement of each answer, with the answer's tokens."""
    aligned = [recorded_tokens(table, answer.text, answer.ids) for answer in answers]
    return list(zip(_judgements(critic, answers), aligned, strict=True))


def read_gate(path: Path) -> dict[str, Any] | None:
    """The verdict as it was written; None where there is none.

    Raises:
        UserError: the file is not a verdict.
    """
    if not path.is_file():
        return None
    try:
        verdict: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for part in (verdict, verdict.get("spans_alone") or verdict):
            part["fit"], part["reasons"] = bool(part["fit"]), [str(reason) for reason in part["reasons"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a verdict on a reward model", "text2grad train-reward writes it") from error
    return verdict


def unfit_reason(verdict: Mapping[str, Any], credit: CreditSettings) -> str:
    """The first reason why a reward model is unfit, if these settings pay its judgements; "" where it is fit.

    Where the score is not paid, the verdict on its spans alone counts.
    """
    score_paid = credit.by_score or credit.outcome_weight != 0
    counted = verdict if score_paid else verdict.get("spans_alone") or verdict
    if not counted["fit"]:
        first, *others = counted["reasons"] or ["no reason given"]
        return f"{first}, and {len(others)} more" if others else str(first)
    if score_paid and verdict.get("figures", {}).get("pays_verdict") is False:
        return "it was checked with credit.outcome_weight 0, so its score, which is paid now, is unchecked"
    return ""


def verdict_line(config: Config) -> str:
    """Describe the gate's verdict on the reward model that this run uses; empty without one."""
    if spec_of(config.critic.kind).kind != "reward_model":
        return ""
    verdict = read_gate(gate_file(RunFolder.of(config)))
    if verdict is None:
        return ""
    reason = unfit_reason(verdict, config.credit)
    fit = f"not fit to train against: {reason}" if reason else "fit to train against"
    return f"the reward model of this run is {fit}"


def refuse_unfit_reward_model(config: Config, tell: bool = True) -> None:
    """Refuse to train against a reward model that failed its gate.

    With `tell`, a line on stderr says where there is no verdict, or where it does not count.

    Raises:
        UserError: it failed, and `critic.reward_model.gate` is true.
    """
    if spec_of(config.critic.kind).kind != "reward_model":
        return
    run = RunFolder.of(config)
    path = gate_file(run)
    verdict = read_gate(path)
    if verdict is None:
        if tell and run.reward_model_folder.is_dir():
            print(f"reward model: not checked (no {path}; train-reward writes it)", file=sys.stderr)
        return
    reason = unfit_reason(verdict, config.credit)
    if not reason:
        return
    problem = f"the reward model is not fit to train against: {reason} ({path})"
    if config.critic.reward_model.gate:
        raise UserError(problem, _cures(run, verdict, config.credit))
    if tell:
        print(f"{problem}; trained against it anyway (critic.reward_model.gate false)", file=sys.stderr)


def _cures(run: RunFolder, verdict: Mapping[str, Any], credit: CreditSettings) -> str:
    """Return the possible cures, the most reliable one first."""
    cures = ["more critiques and train-reward again", "--critic.reward_model.gate false"]
    if run.feedback_file.is_file():
        cures.insert(0, f"train --offline {run.feedback_file} learns from the comments without it")
    alone = credit.model_copy(update={"outcome_weight": 0.0})
    if not unfit_reason(verdict, alone):
        cures.insert(0, "--credit.outcome_weight 0 trains on its spans alone, which are fit")
    return ", or ".join(cures)
