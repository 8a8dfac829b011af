"""The gate of `train-reward`: check a reward model on fresh and on corrupted answers.

The verdict is written next to the reward model, and `train` reads it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError

from text2grad.align import CreditSettings
from text2grad.align.trajectory import align_recorded
from text2grad.config import Config
from text2grad.critics.damage import corrupt_records
from text2grad.critics.table import spec_of
from text2grad.errors import UserError
from text2grad.eval.critics.gate import Gate, GateJudgements, JudgedAnswer, check
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Example, Feedback, get_judgements
from text2grad.jsonl import write_jsonl
from text2grad.policy.settings import GenerationSettings
from text2grad.stages.critics import RewardModel
from text2grad.stages.reward_model.corrections import corrections
from text2grad.stages.reward_model.data import example_of, reward_data, token_table
from text2grad.stages.run_folder import GATE_FILE, RunFolder, write_json
from text2grad.stages.sampling import sample, with_room
from text2grad.tasks.base import Split, get_environment_factory, question_key

FRESH = "reward_model.fresh.jsonl"
"""The file in `evaluation` with critiques of fresh answers of the policy."""
ANSWERS, CORRUPTED, CORRECTED = 16, 32, 32
"""The maximum numbers of fresh answers, corrupted answers and held-out corrections judged."""
SPLITS: tuple[Split, ...] = ("heldout", "train")


def gate_file(run: RunFolder) -> Path:
    """Return the file of the verdict: next to a trained reward model, or inside a merged one."""
    folder = run.reward_model_folder
    merged = folder / GATE_FILE
    return merged if merged.is_file() else folder.parent / GATE_FILE


def check_reward_model(
    trained: RewardModel,
    cases: Sequence[SpanCase],
    generation: GenerationSettings,
    credit: CreditSettings,
    seed: int,
) -> Gate:
    """Check a reward model, and return and write the verdict.

    The model judges new samples of the policy, corrupted answers, and held-out answers as corrected
    by people. Writes the verdict to `reward_model/gate.json` and the critiques of the new samples
    to `evaluation/reward_model.fresh.jsonl`. `cases` are critiques of held-out records.
    """
    run = trained.run
    train, heldout = reward_data(run)
    # One record per question, held-out ones first.
    by_question = {question_key(record): record for record in chain(reversed(train), reversed(heldout))}
    records = list(reversed(by_question.values()))
    fresh = _fresh_answers(run, generation, records)
    release_memory()
    critic, table = trained.over(trained.load()), token_table(run)

    def judge(answers: Sequence[Answer]) -> list[JudgedAnswer]:
        if not answers:
            return []
        judgements = get_judgements(critic, [a.example for a in answers], [a.text for a in answers])
        aligned = (align_recorded(table, answer.text, answer.ids) for answer in answers)
        return list(zip(judgements, aligned, strict=True))

    corrupted = corrupt_records(records, CORRUPTED, seed)
    corrected = [Answer(example_of(record), text) for record, text in corrections(heldout)[:CORRECTED]]
    judgements = GateJudgements(
        cases,
        judge(fresh),
        judge([Answer(example_of(record), record.response) for record in corrupted]),
        [judgement for judgement, _ in judge(corrected)],
    )
    verdict = check(judgements, credit, seed)
    critiques = zip(fresh, judgements.fresh, strict=True)
    write_jsonl(
        run.evaluation / FRESH,
        [Feedback.of(answer.example, answer.text, critique, critic.source) for answer, (critique, _) in critiques],
    )
    write_json(run.path / "reward_model" / GATE_FILE, asdict(verdict))
    return verdict


def release_memory() -> None:
    """Free unused memory, so that only one model is loaded at a time."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Answer(NamedTuple):
    """An answer to judge, with token ids if sampled now (a list per turn of an episode)."""

    example: Example
    text: str
    ids: Sequence[Any] | None = None


def _fresh_answers(run: RunFolder, generation: GenerationSettings, records: Sequence[Feedback]) -> list[Answer]:
    """Sample answers to the first `ANSWERS` prompts that leave room for one.

    In a task with an environment, the answers are episodes on questions of the task.
    """
    policy, task = run.load_policy(), run.task()
    examples, environment = [example_of(record) for record in records], get_environment_factory(task)
    examples = with_room(policy, examples, generation.max_new_tokens)
    if environment is not None:
        task_examples = (example for split in SPLITS for example in task.examples(split))
        by_question = {question_key(example): example for example in task_examples}
        questions = [question_key(example) for example in examples]
        examples = [by_question[question] for question in questions if question in by_question]
    examples = examples[:ANSWERS]
    sampled = sample(policy, examples, generation, environment)
    return [Answer(example, text, ids) for example, (ids, text) in zip(examples, sampled, strict=True)]


def read_gate(run: RunFolder) -> Gate | None:
    """Read the verdict on the reward model of a run; None before it has one.

    Raises:
        UserError: the file is not a verdict.
    """
    path = gate_file(run)
    if not path.is_file():
        return None
    try:
        return TypeAdapter(Gate).validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path} is not a verdict on a reward model", "text2grad train-reward writes it") from error


def verdict_line(config: Config) -> str:
    """Describe the gate's verdict on the reward model that this run uses; empty without one."""
    uses_reward_model = spec_of(config.critic.kind).kind == "reward_model"
    verdict = read_gate(RunFolder.of(config)) if uses_reward_model else None
    if verdict is None:
        return ""
    reason = verdict.unfit_reason(config.credit)
    fit = f"not fit to train against: {reason}" if reason else "fit to train against"
    return f"the reward model of this run is {fit}"


def refuse_unfit_reward_model(config: Config, warn: bool = True) -> None:
    """Refuse to train against a reward model that failed its gate.

    With `warn`, a missing verdict, or one that is ignored, is reported on stderr.

    Raises:
        UserError: the model failed, and `critic.reward_model.gate` is true.
    """
    if spec_of(config.critic.kind).kind != "reward_model":
        return
    run = RunFolder.of(config)
    verdict = read_gate(run)
    if verdict is None:
        if warn and run.reward_model_folder.is_dir():
            print(f"reward model: not checked (no {gate_file(run)}; train-reward writes it)", file=sys.stderr)
        return
    reason = verdict.unfit_reason(config.credit)
    if not reason:
        return
    problem = f"the reward model is not fit to train against: {reason} ({gate_file(run)})"
    if config.critic.reward_model.gate:
        raise UserError(problem, _cures(run, verdict, config.credit))
    if warn:
        print(f"{problem}; training against it anyway (critic.reward_model.gate false)", file=sys.stderr)


def _cures(run: RunFolder, verdict: Gate, credit: CreditSettings) -> str:
    """Return the possible cures, the most reliable one first."""
    cures = ["add critiques and run train-reward again", "--critic.reward_model.gate false"]
    if run.feedback_file.is_file():
        cures.insert(0, f"train --offline {run.feedback_file} learns from the comments without a reward model")
    if not verdict.unfit_reason(credit.model_copy(update={"outcome_weight": 0.0})):
        cures.insert(0, "--credit.outcome_weight 0 trains on its spans alone, which are fit")
    return ", or ".join(cures)
