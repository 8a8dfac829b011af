"""Run the steps of a plan, and keep the better policy."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from text2grad.config import Config, dump_config, preset_settings
from text2grad.config.derive import FEW_ANSWERS
from text2grad.config.estimate import Estimate, estimate
from text2grad.data.records import merge_feedback
from text2grad.errors import UsageError, UserError
from text2grad.eval.improvement import Comparison
from text2grad.feedback import Feedback
from text2grad.json_text import record_json, to_json
from text2grad.jsonl import write_jsonl
from text2grad.stages import Summary
from text2grad.stages.improve.anchor import anchor_comments
from text2grad.stages.improve.plan import HELDOUT, OFFLINE, QUESTIONS, Plan, make_plan, with_settings
from text2grad.stages.improve.source import Choose, ImproveOptions, Source, describe, read_source
from text2grad.stages.improve.steps import Steps
from text2grad.stages.run_folder import BASE, SFT, RunFolder, write_atomically
from text2grad.tasks.base import digest, question_key

SETTINGS, INBOX = "improve.yaml", "inbox.json"
"""The settings of the steps, and the state of `improve --inbox`, in the run."""
POLICY = "policy"
"""The folder of the better policy, in the run."""
SPEED_SECONDS = 0.3
"""Duration of the measurement of this machine's speed."""

Confirm = Callable[[str], bool]
"""Ask the user yes or no."""


@dataclass(frozen=True, kw_only=True)
class ImproveSummary(Summary):
    """The steps, the measures before and after on held-out questions, and the better policy.

    `better` is None if nothing was trained, or if too few questions are held out to tell.
    """

    rows: int
    records: int
    steps: Sequence[str] = field(default_factory=tuple)
    reason: str = ""
    heldout: int = 0
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    better: bool | None = None
    kept: str = ""
    estimated_minutes: float | None = None
    minutes: float | None = None
    out: str | None = None


def run_improve(
    config: Config,
    path: Path,
    options: ImproveOptions,
    confirm: Confirm | None = None,
    choose: Choose | None = None,
) -> ImproveSummary:
    """Read feedback, train on it, and keep the better policy.

    Args:
        confirm: called before anything is written; None writes without asking.
        choose: called where a column or scale is ambiguous; None refuses it.

    Raises:
        UserError: the file cannot be read, a step failed, or the run is of an inbox or in use.
        UsageError: a column is ambiguous, or another engine is set.
    """
    from text2grad.durable.guard import lock_folder

    refuse_other_engine(config)
    source = read_source(config, path, options, choose)
    for line in describe(source):
        print(line, file=sys.stderr)
    records = source.records
    if options.annotator:
        approve = partial(_approve, options, confirm)
        records = anchor_comments(config, options.annotator, records, approve)
    plan = make_plan(records, str(path))
    summary = ImproveSummary(
        rows=source.rows,
        records=len(records),
        steps=plan.steps,
        reason=plan.reason,
        heldout=len(plan.heldout),
    )
    if not plan.steps:
        print(f"{plan.reason}. Nothing was written.", file=sys.stderr)
        return summary
    config = with_settings(config, plan, records)
    expected = print_plan(config, plan, records)
    summary = replace(summary, estimated_minutes=round(expected.minutes, 1))
    if not _approve(options, confirm, "Go ahead?"):
        return summary
    run = RunFolder.of(config)
    run.refuse_unwritable()
    if (run.path / INBOX).is_file():
        raise UserError(f"{run.path} is the run of an inbox, not of a single file", "set another --run.folder")
    with lock_folder(run.path):
        steps = Steps(run.path, identity(records, config), options.restart, expected)
        if options.restart:
            run.feedback_file.unlink(missing_ok=True)
        write_feedback = partial(_write_feedback, config, source, records, steps)
        comparison, best = train(config, plan, records, steps, write_feedback)
        target = _keep_better(run, comparison, best)
    for line in _next_commands(run, target, len(records)):
        print(line, file=sys.stderr)
    return replace(summary, **outcome(comparison, best, steps), out=str(target) if target else None)


def _keep_better(run: RunFolder, comparison: Comparison, best: str) -> Path | None:
    """Print the verdict, and return the folder of the new policy if it is better."""
    target = run.path / POLICY if comparison.better else None
    if target is not None:
        copy_policy(run, best, target)
    kept = f" as {target}" if target else ""
    print(f"{describe_verdict(comparison, best)}{kept}", file=sys.stderr)
    return target


def _approve(options: ImproveOptions, confirm: Confirm | None, question: str) -> bool:
    return not options.plan and (confirm is None or confirm(question))


def refuse_other_engine(config: Config) -> None:
    """Refuse engines that cannot train offline.

    Raises:
        UsageError: names the engine.
    """
    if config.engine.name != "local":
        raise UsageError(f"engine.name {config.engine.name} cannot train offline", "--engine.name local")


def print_plan(config: Config, plan: Plan, records: Sequence[Feedback]) -> Estimate:
    """Estimate the time of a plan, and print both."""
    questions = {question_key(example) for example in plan.training}
    trained_on = [record for record in records if question_key(record) in questions]
    expected = estimate(config, plan.training, plan.heldout, trained_on, plan.steps, machine_speed(config))
    counts = f"{len(plan.training)} questions for training, {len(plan.heldout)} held out"
    print(f"plan: {counts} · {plan.reason} · about {expected.words}", file=sys.stderr)
    return expected


def machine_speed(config: Config) -> float:
    """Measure floating point operations per second in products of a small model's shapes."""
    import torch

    from text2grad.durable.machine import derive_threads
    from text2grad.policy.load import choose_device, choose_dtype

    torch.set_num_threads(config.run.threads or derive_threads()[0])
    device = choose_device(config.policy.device)
    dtype = getattr(torch, choose_dtype(config.policy.dtype, device))
    features = torch.ones(512, 576, dtype=dtype, device=device)
    weights = torch.ones(576, 1536, dtype=dtype, device=device)
    (features @ weights).sum().item()
    products, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SPEED_SECONDS:
        (features @ weights)[0, 0].item()
        products += 1
    return products * 2.0 * 512 * 576 * 1536 / elapsed


def train(
    config: Config, plan: Plan, records: Sequence[Feedback], steps: Steps, write_feedback: Callable[[], object]
) -> tuple[Comparison, str]:
    """Run the steps of a plan, and return the best policy's comparison with the base, and its name.

    Answers are measured by `records`. `write_feedback` is the step that writes the run's feedback.
    """
    from text2grad.page.report import build_report
    from text2grad.stages.evaluate.policy import run_evaluate
    from text2grad.stages.improve.verdict import best_policy
    from text2grad.stages.sft import is_finished, run_sft
    from text2grad.stages.train import run_train_offline

    run = RunFolder.of(config)
    write_atomically(run.path / SETTINGS, dump_config(config, only_set=True))
    for name, examples in ((QUESTIONS, plan.training), (HELDOUT, plan.heldout)):
        rows = [example.model_dump(mode="json", include={"id", "prompt", "reference"}) for example in examples]
        write_atomically(run.path / name, "".join(f"{to_json(row)}\n" for row in rows))
    steps.save()
    write_feedback()
    with_config = ["--config", str(run.path / SETTINGS)]
    if SFT in plan.steps:
        on_update = steps.forecast.on_update(SFT)
        # A run that was stopped after its last update has a policy that its state does not record.
        is_trained = is_finished(run.path / SFT)
        steps.run(SFT, ["sft", *with_config], lambda: None if is_trained else run_sft(config, on_step=on_update))
    if OFFLINE in plan.steps:
        command = ["train", "--offline", str(run.feedback_file), *with_config]
        steps.run(
            OFFLINE,
            command,
            lambda: run_train_offline(
                config, run.feedback_file, OFFLINE, on_step=steps.forecast.on_update(OFFLINE)
            ),
        )
    for name in (BASE, *plan.steps):
        steps.run(f"evaluate {name}", ["evaluate", name, *with_config], partial(run_evaluate, config, name))
    comparison, best = best_policy(config, run, records, plan)
    print(comparison.line, file=sys.stderr)
    steps.save(**{name: value for name, value in outcome(comparison, best, steps).items() if name != "minutes"})
    # The page opens with the outcome that was just saved.
    print(
        f"page: {build_report(run.path, presets=preset_settings())}, or text2grad view {run.path}", file=sys.stderr
    )
    return comparison, best


def outcome(comparison: Comparison, best: str, steps: Steps) -> dict[str, Any]:
    """Return the fields of a summary that tell how training ended."""
    return {
        "before": dict(comparison.before),
        "after": dict(comparison.after),
        "better": None if comparison.gain is None else comparison.better,
        "kept": best if comparison.better else BASE,
        "minutes": round(steps.minutes, 1),
    }


def _write_feedback(config: Config, source: Source, records: Sequence[Feedback], steps: Steps) -> None:
    """Write the records of the file, then replace them by those with marked comments."""
    from text2grad.stages.intake import store_import

    run = RunFolder.of(config)
    command = ["import", str(source.path), *source.arguments, "--config", str(run.path / SETTINGS)]
    steps.run("import", command, lambda: store_import(run, source.imported))
    if records != source.records:
        write_jsonl(run.feedback_file, merge_feedback(run.feedback(), records))


def identity(records: Sequence[Feedback], config: Config) -> str:
    """Return a digest of feedback and settings, which change what a run trains."""
    return digest("\n".join([*map(record_json, records), dump_config(config, only_set=True)])).hex()[:16]


def describe_verdict(comparison: Comparison, best: str) -> str:
    """Return a sentence on whether the new policy is better, and which one is kept."""
    if comparison.gain is None:
        reason = "too few held-out questions to tell" if comparison.questions else "nothing to measure by"
        return f"{reason}: the old policy is kept, the new ones stay in the run"
    mean, low, high = comparison.gain
    interval = f"{mean:+.2f} of 1 per question, 95 % interval {low:+.2f} to {high:+.2f}"
    if not comparison.better:
        return f"not better beyond chance ({interval}): the old policy is kept"
    return f"better ({interval}): {best} is kept"


def copy_policy(run: RunFolder, name: str, target: Path) -> None:
    """Copy a policy of the run to a folder; a crash leaves no half copy."""
    from text2grad.durable.run import replace_folder

    replace_folder(target, partial(shutil.copytree, run.find_policy(name)))


def _next_commands(run: RunFolder, policy: Path | None, records: int) -> list[str]:
    lines = []
    if policy is not None:
        merged = f"{run.path}/merged"
        lines.append(
            f"serve: text2grad merge {policy} --out {merged} --run.folder {run.path}, then vllm serve {merged}"
        )
    if records >= FEW_ANSWERS:
        settings = f"--config {run.path / SETTINGS}"
        lines.append(f"{records} records are enough for a critic: text2grad train-reward {settings}, then train")
    return lines
