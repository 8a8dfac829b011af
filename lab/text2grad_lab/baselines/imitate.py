"""`imitate`: fine-tune a policy on the answers of a feedback file with a passing score.

`--best` takes the best answer per prompt only. On answers of `annotate` this is rejection sampling
(best of n; RAFT, Dong et al. 2023), on those of `refine` the last step of ILF (Scheurer et al.
2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.chat import LimitedChat
from text2grad.config import Config
from text2grad.critics.prompted import Prompt
from text2grad.data.export import MORE_ANSWERS
from text2grad.durable.run import ResumeMode
from text2grad.errors import UserError
from text2grad.feedback import Feedback
from text2grad.policy.load import load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.stages import Summary, inlined
from text2grad.stages.sft import report_early_end
from text2grad.stages.train import read_training_records
from text2grad.stages.training import facts_of_pairs, prepare_training
from text2grad.tasks.base import question_key
from text2grad.train.pairs import Pair
from text2grad.train.supervised import train_supervised
from text2grad.train.watch.steps import LossFloor
from text2grad_lab.baselines.records import refuse_transcripts
from text2grad_lab.baselines.refine import cases_of
from text2grad_lab.baselines.revision import revision_messages, revision_prompt


@dataclass(frozen=True)
class Choice:
    """The answers to imitate: those with a score above `above`, all or only the `best` of each
    prompt.

    With `revise` the policy learns to revise: from a poor answer and its critique to the best
    answer.
    """

    best: bool = False
    above: float = 0.0
    revise: bool = False


@dataclass(frozen=True, kw_only=True)
class ImitationSummary(Summary):
    """The number of answers and prompts read, of answers imitated, and of prompts without one."""

    samples: int
    prompts: int
    imitated: int
    prompts_without: int
    left_out: Mapping[str, int] = inlined()
    metrics: Mapping[str, float] = inlined()
    out: str


def run_imitate(
    config: Config,
    source: Path,
    name: str,
    choice: Choice,
    start: str = "",
    resume: ResumeMode = "auto",
) -> ImitationSummary:
    """Fine-tune a policy on the chosen answers in `source`; write `ppo/<name>`, or resume an
    unfinished run there.

    `start` names the policy (a run's name or a folder; "": the SFT policy).

    Raises:
        UserError: the file has no answer to learn from (`read_training_records`), or none that is
            good enough.
    """
    stage = prepare_training(config, "sft", f"ppo/{name}", resume)
    records, left_out = read_training_records(source, stage.run)
    if choice.revise:
        refuse_transcripts(records, "a refiner")
    best_answers = select_answers(records, choice)
    if not best_answers:
        problem = f"{source}: none of {len(records)} answers has a score above {choice.above:g}"
        raise UserError(problem, "text2grad annotate gives scores; --above -1 takes the best anyway")
    policy = load_policy(stage.run.policy(start))
    pairs = [Pair(record.id, record.prompt, record.response) for record in best_answers]
    if choice.revise:
        pairs = revision_pairs(records, best_answers, revision_prompt(), LocalChat(policy, config.generation, name))
    run = stage.finalise(policy, facts_of_pairs(policy, pairs))
    with run.begin() as options:
        settings = run.config.sft
        floor = LossFloor.of(settings, len(pairs))
        metrics = train_supervised(policy, pairs, settings, options, stopping=floor)
    report_early_end(name, settings, len(pairs), metrics)
    prompts, prompts_with_answer = (len({question(record) for record in part}) for part in (records, best_answers))
    return ImitationSummary(
        samples=len(records),
        prompts=prompts,
        imitated=len(best_answers),
        prompts_without=prompts - prompts_with_answer,
        left_out=left_out,
        metrics=metrics,
        out=str(stage.folder / "policy"),
    )


def revision_pairs(
    records: Sequence[Feedback], good: Sequence[Feedback], prompt: Prompt, chat: LimitedChat
) -> list[Pair]:
    """Return pairs of a revision prompt for a criticised answer and the best answer to its prompt.

    ILF trains its refiner this way on the model's own answers (Chen et al. 2024).

    Raises:
        UserError: no prompt has both.
    """
    best = {question(record): record.response for record in select_answers(good, Choice(best=True))}
    pairs = [
        Pair(case.example.id, tuple(revision_messages(prompt.text, case, chat.excess)), response)
        for case in cases_of(records)
        if (response := best.get(question_key(case.example)))
    ]
    if not pairs:
        raise UserError("no prompt has both a passing answer and one to revise", MORE_ANSWERS)
    return pairs


def select_answers(records: Sequence[Feedback], choice: Choice) -> list[Feedback]:
    """Return the answers that are good enough, in order; the first wins a tie for the best."""
    good = [record for record in records if record.score is not None and record.score > choice.above]
    if not choice.best:
        return good
    best: dict[str, Feedback] = {}
    for record in good:
        previous = best.get(question(record))
        if previous is None or (record.score or 0.0) > (previous.score or 0.0):
            best[question(record)] = record
    return list(best.values())


def question(record: Feedback) -> str:
    """Return the key of a record's question."""
    return question_key(record)
