"""`train`: PPO against the configured critic, or offline from annotated answers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from text2grad.config import Config, dump_config
from text2grad.critics.probes import Probe, ProbedCritic, hacking
from text2grad.durable.run import OnStep, ResumeMode
from text2grad.engines import verl
from text2grad.errors import UsageError, UserError
from text2grad.eval.measures import TaskMeasure
from text2grad.feedback import Critic, Critique, Example, Feedback, Transcript
from text2grad.policy.encode import encode_prompt, encode_prompts, encode_target
from text2grad.policy.episode import encode_turns
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy, context_of
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import (
    CriticFactory,
    critic_factory,
    critic_inputs,
    critic_of_worker,
    environment_of_worker,
)
from text2grad.stages.evaluate.heldout import HeldoutCurve
from text2grad.stages.reward_model.data import splits_of
from text2grad.stages.reward_model.gate import refuse_unfit_reward_model
from text2grad.stages.run_folder import RunFolder, read_choice, read_feedback
from text2grad.stages.sampling import TOKEN_IDS
from text2grad.stages.training import (
    TrainingRun,
    TrainingStage,
    facts_of_pairs,
    facts_of_prompts,
    leave_other_engines,
    prepare_training,
)
from text2grad.tasks.base import Task, environment_of, question_of, split_of, words_of
from text2grad.train.offline import LoggedAnswer, train_offline
from text2grad.train.pairs import Pair
from text2grad.train.ppo import train_ppo
from text2grad.train.watch.probes import PROBE_EVERY
from text2grad.train.watch.steps import combined, kept_policies, length_watched, variety_watched


def counts_of(critic: Critic) -> OnStep | None:
    """Add to the metrics of a step what the critic counted since the last one, where it has a
    method `counts`."""
    counts = getattr(critic, "counts", None)
    return (lambda step, metrics: metrics.update(counts())) if counts else None


def probes_of(critic: Critic) -> OnStep | None:
    """Probe the critic every `PROBE_EVERY` steps: adds what is found to the metrics, and names
    reward hacking once.

    What a probe draws at random, training does not notice. Later probes are compared with the first
    one since the run was started or resumed.
    """
    if not isinstance(critic, ProbedCritic):
        return None
    probes: list[Probe] = []
    named: list[str] = []

    def look(step: int, metrics: dict[str, float]) -> None:
        if step % PROBE_EVERY:
            return
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            now = critic.probe(step, metrics["delta_sum"])
        found = {"probe_spoiled": now.spoiled_praised, "probe_likeness": now.likeness}
        metrics.update({name: value for name, value in found.items() if value is not None})
        probes.append(now)
        if (words := hacking(probes[0], now)) and not named:
            print(f"{words} (text2grad sample shows answers; raise ppo.kl_coefficient, or stop)", file=sys.stderr)
            named.append(words)

    return look


@dataclass(frozen=True, kw_only=True)
class TrainSummary(Summary):
    """Number of steps, the folder of the policy, and which it is where the run has a held-out
    curve.

    `chosen`: `step` of `steps`, 0 being the policy before training; the `measure`, on how many
    held-out `prompts`, and its `value` there, at the `start` and after the `last` step.
    """

    steps: int
    out: str
    chosen: Mapping[str, Any] | None = None


def loop_of(config: Config) -> Callable[..., None]:
    """The loop of the engine `local` or `trl`, with what is passed on to it.

    Raises:
        UserError: it is not installed, or cannot do what the configuration asks for.
    """
    if config.engine.name == "local":
        return train_ppo
    from text2grad.engines.trl.fields import refuse_unfit  # TRL is an extra

    refuse_unfit(config.engine.trl, config.ppo, config.generation)
    from text2grad.engines.trl.run import train_trl

    return partial(train_trl, fields=config.engine.trl)


def run_train(config: Config, name: str, resume: ResumeMode = "auto", plan: bool = False) -> TrainSummary:
    """NL-gradient PPO against the critic; writes `ppo/<name>`, or resumes an unfinished one.

    With `plan` the engine verl only writes and prints what it would run.
    """
    if config.engine.name == "verl":
        return train_with_verl(config, name, resume, plan)
    if plan:
        raise UsageError("--plan prints what the engine verl would run", "--engine verl")
    train = loop_of(config)
    stage = prepare_training(config, "ppo", f"ppo/{name}", resume, several=config.engine.name == "trl")
    leave_other_engines(stage, config.engine.name)
    with critic_factory(config) as factory:
        task, examples = checked_prompts(stage, factory)
        with stage.in_turn():
            examples = factory.admitted(examples)
            policy = load_policy(stage.folder.policy())
            run = stage.settle(policy, facts_of_prompts(policy, examples))
        settings, factory = run.config, replace(factory, config=run.config)
        with critic_in_training(factory, task, policy, stage) as critic:
            curve = HeldoutCurve.of(settings, TaskMeasure(task, factory.runner), policy, stage.place)
            on_step = combined(
                counts_of(critic.critic if isinstance(critic, ProbedCritic) else critic),
                curve.on_step if curve else None,
                kept_policies(settings.ppo.keep_every, policy, stage.place),
                probes_of(critic),
                length_watched(),
                variety_watched(settings.ppo),
            )
            with run.begin(inputs=critic_inputs(settings), on_step=on_step, choice=curve) as options:
                how = settings.ppo, settings.credit, settings.generation
                train(policy, examples, critic, *how, options, environment_of(task))
    stage.leave_others()
    policy_folder = stage.place / "policy"
    return TrainSummary(steps=settings.ppo.steps, out=str(policy_folder), chosen=read_choice(policy_folder))


def checked_prompts(stage: TrainingStage, factory: CriticFactory) -> tuple[Task, list[Example]]:
    """Return the task and its training prompts.

    Raises:
        UserError: no step would change the policy, or the critic cannot judge these prompts.
    """
    ppo = stage.config.ppo
    if reason := ppo.no_update_reason:
        raise UserError(reason, f"--ppo.value_warmup {ppo.steps // 4}, or more steps")
    task = stage.folder.task()
    examples = task.examples("train")
    factory.refuse_unfit(examples)
    refuse_unfit_reward_model(stage.config)
    return task, examples


def train_with_verl(config: Config, name: str, resume: ResumeMode, plan: bool) -> TrainSummary:
    """The same by verl, in the environment of `engine.verl.python` (docs/engines.md)."""
    python = str(config.engine.verl.python or sys.executable)
    stage = prepare_training(config, "ppo", f"ppo/{name}", resume)
    with critic_factory(config) as factory:
        if factory.spec.kind == "reward_model" and not config.critic.reward_model.base_url:
            problem = "verl's workers load no reward model"
            raise UserError(problem, "serve it: text2grad serve, then --critic.reward_model.base_url URL")
        if not plan:
            leave_other_engines(stage, config.engine.name)
            verl.check_python(python)
        task, examples = checked_prompts(stage, factory)
        examples = factory.admitted(examples)
        policy = verl.Skeleton.of(stage.folder.policy())
        prompts = encode_prompts(
            policy.tokenizer, examples, context_of(policy.model), config.generation.max_new_tokens
        )
        longest, plays = max(map(len, prompts)), environment_of(task) is not None
        verl.refuse_unfit(verl_job(config, stage, longest, plays))
        settings = stage.settle(policy, facts_of_prompts(policy, examples)).config
        job = verl_job(settings, stage, longest, plays)
        verl.refuse_unfit(job)
        if plan:
            verl.settle(job, examples)
            print(verl.plan(job, python))
        else:
            with TrainingRun(stage, settings).begin():
                verl.train(job, examples, python, resume)
    return TrainSummary(steps=settings.ppo.steps, out=str(stage.place / "policy"))


def verl_job(config: Config, stage: TrainingStage, longest: int, plays: bool) -> verl.Job:
    """Return the run for verl; `longest` counts the tokens of the longest prompt, `plays`: in an
    environment."""
    module = critic_of_worker.__module__
    return verl.Job(
        place=stage.place,
        policy=stage.folder.policy(),
        ppo=config.ppo,
        credit=config.credit,
        generation=config.generation,
        verl=config.engine.verl,
        seed=config.run.seed,
        settings=dump_config(config),
        critic=f"{module}:{critic_of_worker.__name__}",
        environment=f"{module}:{environment_of_worker.__name__}" if plays else "",
        prompt_tokens=longest,
        loggers=config.run.loggers,
    )


@contextmanager
def critic_in_training(
    factory: CriticFactory, task: Task, policy: Policy, stage: TrainingStage
) -> Iterator[Critic]:
    """The critic of a run, with its journal in the run's folder; a reward model's is probed."""
    journal = "critic.journal" if stage.first else f"critic.{stage.process}.journal"
    with factory.open(task, policy, stage.place / journal) as critic:
        yield ProbedCritic(critic, factory.config.run.seed) if factory.kind == "reward_model" else critic


def answers_in(path: Path, run: RunFolder) -> tuple[list[Feedback], dict[str, int]]:
    """The records to train on, in their order, and how many of the file are left out, by reason.

    Failed critiques are, and records about prompts that the task holds out.

    Raises:
        UserError: the file holds no such record, one without a response, or none about a prompt of
            the task.
    """
    records = read_feedback(path)
    if empty := [record.id for record in records if not record.response.strip()]:
        problem = f"{path}: {len(empty)} of {len(records)} records have no response, {empty[0]!r} first"
        raise UserError(problem, "leave them out: there is nothing to learn from")
    settings = run.task_settings
    splits = splits_of(run.task(), settings)
    words = [words_of(question_of(record)) for record in records]
    if not any(each in splits for each in words):
        raise UserError(
            f"{path}: none of {len(records)} records is about a prompt of the task {settings.name!r}",
            "take the configuration they were made with, or --task.data imported after text2grad import",
        )
    kept, left_out = [], Counter[str](failed_records=0, heldout_records=0)
    for record, question in zip(records, words, strict=True):
        if record.error is not None:
            left_out["failed_records"] += 1
        elif splits.get(question, split_of(question, settings)) == "heldout":
            left_out["heldout_records"] += 1
        else:
            kept.append(record)
    if not kept:
        reasons = " and ".join(f"{count} {name.replace('_', ' ')}" for name, count in left_out.items() if count)
        raise UserError(f"{path}: nothing to train on, {reasons}", "text2grad annotate makes more")
    return kept, dict(left_out)


@dataclass(frozen=True, kw_only=True)
class OfflineSummary(Summary):
    """Answers that were learned from, the spans on them, records left out by reason, and the
    policy's folder."""

    answers: int
    spans: int
    left_out: Mapping[str, int] = inlined()
    metrics: Mapping[str, float] = inlined()
    out: str


def run_train_offline(config: Config, source: Path, name: str, resume: ResumeMode = "auto") -> OfflineSummary:
    """Learn from the annotated answers in `source`; writes `ppo/<name>`, or resumes an unfinished
    one.

    Raises:
        UserError: the file has nothing to learn from (`answers_in`), or no record marks words or
            turns; or another engine is set.
    """
    if config.engine.name != "local":
        raise UserError(f"engine.name {config.engine.name} learns from no file", "--engine local")
    stage = prepare_training(config, "offline", f"ppo/{name}", resume)
    records, left_out = answers_in(source, stage.folder)
    if not any(map(_is_marked, records)) and not config.credit.by_score:
        cure = "text2grad annotate --anchor finds the words a critique is about; import reads marked words"
        raise UserError(f"{source}: no words are marked in any of {len(records)} records", cure)
    policy, count = load_policy(stage.folder.policy()), len(records)
    records, problem = fitting(policy, records)
    if problem:
        print(f"left out: {problem}", file=sys.stderr)
    left_out = {**left_out, "too_long": count - len(records)}
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


def fitting(policy: Policy, records: Sequence[Feedback]) -> tuple[list[Feedback], str]:
    """The records whose prompt and answer fit the model; and of the others how many, the first and
    its length.

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
    """The ids of an answer as it was sampled, of a transcript a list for each turn; none where they
    do not say."""
    ids = record.meta.get(TOKEN_IDS) or ()
    several = isinstance(record.response, Transcript)
    return ids if all(isinstance(each, list) == several for each in ids) else ()
