"""`train`: PPO against the configured critic, or offline from annotated answers."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from text2grad.config import Config, dump_config
from text2grad.critics.probes import Probe, ProbedCritic, describe_hacking
from text2grad.durable.run import OnStep, ResumeMode
from text2grad.engines import verl
from text2grad.errors import UsageError, UserError
from text2grad.eval.measures import TaskMeasure
from text2grad.eval.metrics import mean
from text2grad.feedback import Critic, Critique, Example, Feedback, Transcript
from text2grad.page.runs import read_metrics
from text2grad.page.signs import metric_warnings, quote_warnings
from text2grad.policy.encode import encode_prompt, encode_prompts, encode_target
from text2grad.policy.episode import encode_turns
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy, context_length
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
    TrainingStage,
    facts_of_pairs,
    facts_of_prompts,
    prepare_training,
    refuse_other_engines,
)
from text2grad.tasks.base import Task, assign_split, get_environment_factory, question_key
from text2grad.train.offline import LoggedAnswer, train_offline
from text2grad.train.pairs import Pair
from text2grad.train.ppo import train_ppo
from text2grad.train.watch.probes import PROBE_EVERY
from text2grad.train.watch.steps import check_variety, combine_hooks, save_every, warn_if_length_rewarded

QUOTE_STEPS = 10
"""Steps over which the share of quotes that are not in the answers is averaged."""


def probe_critic(critic: Critic) -> OnStep | None:
    """Return a callback that probes the critic every `PROBE_EVERY` steps; None if not probed.

    It adds the results to the metrics, and warns once about reward hacking. Later probes are
    compared with the first one since the run was started or resumed. The random numbers of a probe
    do not affect training.
    """
    if not isinstance(critic, ProbedCritic):
        return None
    probes: list[Probe] = []
    warnings: list[str] = []

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if step % PROBE_EVERY or "delta_sum" not in metrics:  # every critique failed
            return
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            probe = critic.probe(step, metrics["delta_sum"])
        values = {"probe_spoiled": probe.corrupted_praised, "probe_likeness": probe.likeness}
        metrics.update({name: value for name, value in values.items() if value is not None})
        probes.append(probe)
        if (warning := describe_hacking(probes[0], probe)) and not warnings:
            print(
                f"{warning} (see answers with text2grad sample; raise ppo.kl_coefficient, or stop)", file=sys.stderr
            )
            warnings.append(warning)

    return on_step


def watch_quotes(limit: float) -> OnStep:
    """Return a callback that warns, and then ends the run, if quotes are not in the answers.

    The share is the mean over `QUOTE_STEPS` steps, because a step has few quotes. It warns once.
    """
    shares: deque[float] = deque(maxlen=QUOTE_STEPS)
    warnings: list[str] = []

    def on_step(step: int, metrics: dict[str, float]) -> None:
        shares.append(metrics["unmatched_share"])
        share = mean(shares) if len(shares) == QUOTE_STEPS else 0.0
        if share > limit:
            problem = f"{share:.1%} of the quotes of {QUOTE_STEPS} steps are not in the answers (ppo.max_unmatched)"
            raise UserError(problem, "ask for exact quotes, ground the decoding, or raise ppo.max_unmatched")
        if not warnings:
            warnings.extend(quote_warnings(share, f"of the last {QUOTE_STEPS} steps"))
            for line in warnings:
                print(f"warning: {line}", file=sys.stderr)

    return on_step


def training_loop(config: Config) -> Callable[..., None]:
    """Return the PPO loop of the engine `local` or `trl`.

    Raises:
        UserError: TRL is not installed, or does not support the configuration.
    """
    if config.engine.name == "local":
        return train_ppo
    from text2grad.engines.trl.fields import refuse_unfit  # TRL is an extra

    refuse_unfit(config.engine.trl, config.ppo, config.generation)
    from text2grad.engines.trl.run import train_trl

    return partial(train_trl, fields=config.engine.trl)


def run_train(config: Config, name: str, resume: ResumeMode = "auto", plan: bool = False) -> dict[str, Any]:
    """Train with NL-gradient PPO against the critic: start or resume the run `ppo/<name>`.

    With `plan` the engine verl only writes and prints what it would run.

    Returns:
        The number of steps and the folder of the policy. `chosen`, of a run with a held-out curve,
        describes the selected policy: its `step` of `steps` (0: before training), the `measure`,
        the number of held-out `prompts`, and the `value` of the measure for this policy, at the
        `start` and after the `last` step.
    """
    if config.engine.name == "verl":
        return train_with_verl(config, name, resume, plan)
    if plan:
        raise UsageError("--plan prints what the engine verl would run", "--engine verl")
    train = training_loop(config)
    stage = prepare_training(config, "ppo", f"ppo/{name}", resume, engines=("local", "trl"))
    refuse_other_engines(stage)
    with critic_factory(config) as factory:
        task, examples = load_prompts(stage, factory)
        with stage.main_process_first():
            examples = factory.admitted(examples)
            policy = load_policy(stage.run.policy())
            run = stage.finalise(policy, facts_of_prompts(policy, examples))
        settings, factory = run.config, replace(factory, config=run.config)
        journal = "critic.journal" if stage.is_main_process else f"critic.{stage.process}.journal"
        with factory.open(task, policy, stage.folder / journal) as opened:
            critic = ProbedCritic(opened, settings.run.seed) if factory.kind == "reward_model" else opened
            counts = getattr(opened, "counts", None)
            curve = HeldoutCurve.of(settings, TaskMeasure(task, factory.runner), policy, stage.folder)
            on_step = combine_hooks(
                (lambda step, metrics: metrics.update(counts())) if counts else None,
                curve.on_step if curve else None,
                save_every(settings.ppo.keep_every, policy, stage.folder),
                probe_critic(critic),
                warn_if_length_rewarded(),
                watch_quotes(settings.ppo.max_unmatched),
                check_variety(settings.ppo),
            )
            inputs = critic_inputs(settings, opened)
            with run.begin(inputs=inputs, on_step=on_step, choice=curve) as options:
                train(
                    policy,
                    examples,
                    critic,
                    settings.ppo,
                    settings.credit,
                    settings.generation,
                    options,
                    get_environment_factory(task),
                )
    stage.exit_other_processes()
    _print_warnings(stage.folder)
    policy_folder = stage.folder / "policy"
    choice = read_choice(policy_folder)
    return {"steps": settings.ppo.steps, "out": str(policy_folder), **({"chosen": choice} if choice else {})}


def _print_warnings(folder: Path) -> None:
    """Print signs of failure in the metrics of a finished run on stderr."""
    for line in metric_warnings(read_metrics(folder / "metrics.jsonl")):
        print(f"warning: {line}", file=sys.stderr)


def load_prompts(stage: TrainingStage, factory: CriticFactory) -> tuple[Task, list[Example]]:
    """Load the task and its training prompts.

    Raises:
        UserError: no step would change the policy, or the critic is unable to judge these prompts.
    """
    ppo = stage.config.ppo
    if reason := ppo.no_update_reason:
        raise UserError(reason, f"--ppo.value_warmup {ppo.steps // 4}, or more steps")
    task = stage.run.task()
    examples = task.examples("train")
    factory.refuse_unfit(examples)
    refuse_unfit_reward_model(stage.config)
    return task, examples


def train_with_verl(config: Config, name: str, resume: ResumeMode, plan: bool) -> dict[str, Any]:
    """Train with verl in the environment of `engine.verl.python` (docs/engines.md)."""
    python = str(config.engine.verl.python or sys.executable)
    stage = prepare_training(config, "ppo", f"ppo/{name}", resume, engines=("verl",))
    with critic_factory(config) as factory:
        if factory.spec.kind == "reward_model" and not config.critic.reward_model.base_url:
            problem = "the workers of verl do not load a reward model"
            cure = f"run text2grad serve {stage.run.path}, and set --critic.kind to the address that it prints"
            raise UserError(problem, cure)
        if not plan:
            refuse_other_engines(stage)
            verl.check_python(python)
        task, examples = load_prompts(stage, factory)
        examples = factory.admitted(examples)
        policy = verl.Skeleton.load(stage.run.policy())
        prompts = encode_prompts(
            policy.tokenizer, examples, context_length(policy.model), config.generation.max_new_tokens
        )
        prompt_tokens, has_environment = max(map(len, prompts)), get_environment_factory(task) is not None
        verl.refuse_unfit(verl_job(config, stage, prompt_tokens, has_environment))
        stage = stage.finalise(policy, facts_of_prompts(policy, examples))
        job = verl_job(stage.config, stage, prompt_tokens, has_environment)
        verl.refuse_unfit(job)
        if plan:
            verl.write_inputs(job, examples)
            print(verl.plan(job, python))
        else:
            with stage.begin():
                verl.train(job, examples, python, resume)
            _print_warnings(stage.folder)
    return {"steps": stage.config.ppo.steps, "out": str(stage.folder / "policy")}


def verl_job(config: Config, stage: TrainingStage, prompt_tokens: int, has_environment: bool) -> verl.Job:
    """Return the run for verl; `prompt_tokens` is the length of the longest prompt."""
    module = critic_of_worker.__module__
    return verl.Job(
        place=stage.folder,
        policy=stage.run.policy(),
        ppo=config.ppo,
        credit=config.credit,
        generation=config.generation,
        verl=config.engine.verl,
        seed=config.run.seed,
        settings=dump_config(config),
        critic=f"{module}:{critic_of_worker.__name__}",
        environment=f"{module}:{environment_of_worker.__name__}" if has_environment else "",
        prompt_tokens=prompt_tokens,
        loggers=config.run.loggers,
    )


def read_training_records(path: Path, run: RunFolder) -> tuple[list[Feedback], dict[str, int]]:
    """Return the records to train on in file order, and the number of others by reason.

    Failed critiques and records about held-out prompts are left out.

    Raises:
        UserError: the file has no such record, a record without a response, or no record about a
            prompt of the task.
    """
    records = read_feedback(path)
    if empty := [record.id for record in records if not record.response.strip()]:
        problem = f"{path}: {len(empty)} of {len(records)} records have no response, the first is {empty[0]!r}"
        raise UserError(problem, "remove them from the file")
    settings = run.task_settings
    splits = splits_of(run.task(), settings)
    questions = [question_key(record) for record in records]
    if not any(question in splits for question in questions):
        raise UserError(
            f"{path}: none of {len(records)} records is about a prompt of the task {settings.name!r}",
            "use the configuration of their run, or --task.data imported after text2grad import",
        )
    training, left_out = [], Counter[str](failed_records=0, heldout_records=0)
    for record, question in zip(records, questions, strict=True):
        if record.error is not None:
            left_out["failed_records"] += 1
        elif splits.get(question, assign_split(question, settings)) == "heldout":
            left_out["heldout_records"] += 1
        else:
            training.append(record)
    if not training:
        reasons = " and ".join(f"{count} {name.replace('_', ' ')}" for name, count in left_out.items() if count)
        raise UserError(f"{path}: nothing to train on, {reasons}", "text2grad annotate makes more records")
    return training, dict(left_out)


def run_train_offline(
    config: Config, source: Path, name: str, resume: ResumeMode = "auto", on_step: OnStep | None = None
) -> dict[str, Any]:
    """Learn from the annotated answers in `source`: start or resume the run `ppo/<name>`.

    `on_step` is called after each update, as in `RunOptions`.

    Returns:
        Counts of answers, spans and excluded records, the last metrics, and the policy's folder.

    Raises:
        UserError: the file has no record to learn from (`read_training_records`), no record marks
            words or turns, or another engine is configured.
    """
    if config.engine.name != "local":
        raise UserError(f"the engine {config.engine.name} does not support --offline", "--engine local")
    stage = prepare_training(config, "offline", f"ppo/{name}", resume)
    refuse_other_engines(stage)
    records, left_out = read_training_records(source, stage.run)
    turn_scores = (score for record in records for score in record.meta.get("turn_scores", ()))
    has_marks = any(record.spans for record in records) or any(score is not None for score in turn_scores)
    if not has_marks and not config.credit.by_score:
        cure = "text2grad annotate --anchor finds the words that a critique is about; import reads marked words"
        raise UserError(f"{source}: no words are marked in any of {len(records)} records", cure)
    policy, count = load_policy(stage.run.policy()), len(records)
    records, problem = select_fitting(policy, records)
    if problem:
        print(f"left out: {problem}", file=sys.stderr)
    left_out = {**left_out, "too_long": count - len(records)}
    answers = [Pair(record.id, record.prompt, record.response) for record in records]
    run = stage.finalise(policy, facts_of_pairs(policy, answers))
    with run.begin(on_step=on_step) as options:
        settings, logged = run.config, [logged_answer(record) for record in records]
        metrics = train_offline(policy, logged, settings.offline, settings.credit, options)
    return {
        "answers": len(records),
        "spans": sum(len(record.spans) for record in records),
        **left_out,
        **metrics,
        "out": str(stage.folder / "policy"),
    }


def select_fitting(policy: Policy, records: Sequence[Feedback]) -> tuple[list[Feedback], str]:
    """Return the records that fit the model's context, and a line about the others, if any.

    Raises:
        UserError: no record fits.
    """
    limit = policy.context
    lengths = [_count_tokens(policy, record) for record in records]
    fitting = [record for record, tokens in zip(records, lengths, strict=True) if tokens <= (limit or tokens)]
    if len(fitting) == len(records):
        return fitting, ""
    index, tokens = next((index, tokens) for index, tokens in enumerate(lengths) if tokens > (limit or tokens))
    problem = (
        f"{len(records) - len(fitting)} of {len(records)} answers exceed {limit} tokens with their prompts;"
        f" {records[index].id!r} has {tokens}"
    )
    if not fitting:
        raise UserError(f"nothing to train on: {problem}", "shorten them, or use a model with a longer context")
    return fitting, problem


def _count_tokens(policy: Policy, record: Feedback) -> int:
    """Count the tokens of a prompt and its answer."""
    ids = _sampled_ids(record)
    if isinstance(record.response, Transcript):
        return len(encode_turns(policy.tokenizer, record.prompt, record.response, ids).all_ids)
    answer = ids or encode_target(policy.tokenizer, record.response)
    return len(encode_prompt(policy.tokenizer, record.prompt)) + len(answer)


def logged_answer(record: Feedback) -> LoggedAnswer:
    """Return a record as an answer for offline training."""
    critique = record.judgement()
    assert isinstance(critique, Critique)
    return LoggedAnswer(record.id, record.prompt, record.response, critique, tuple(_sampled_ids(record)))


def _sampled_ids(record: Feedback) -> Sequence[Any]:
    """Return the ids of an answer as sampled, a list per turn of a transcript; () if unknown."""
    ids = record.meta.get(TOKEN_IDS) or ()
    has_turns = isinstance(record.response, Transcript)
    return ids if all(isinstance(item, list) == has_turns for item in ids) else ()
