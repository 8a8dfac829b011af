"""Run TRL's trainer in a run folder, with the local loop's files and transformers' checkpoints."""

from __future__ import annotations

import json
import random
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback

from text2grad.align import CreditSettings
from text2grad.durable.guard import lock_folder, report_disk_errors
from text2grad.durable.identity import describe_changes, refuse_changed
from text2grad.durable.log import RunLog
from text2grad.durable.run import CHECKPOINTS, Cures, RunOptions, write_final_policy
from text2grad.engines.processes import join_processes
from text2grad.engines.trl import STATE
from text2grad.engines.trl.fields import make_args, plan_passes, shared_fields
from text2grad.engines.trl.trainer import Recipe, RecipeTrainer, fail_together
from text2grad.errors import UsageError, UserError, first_line
from text2grad.feedback import Critic, Example, get_overlap
from text2grad.json_text import to_json
from text2grad.jsonl import whole_file
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.signals import StopRequest, exit_for_signal
from text2grad.train.ppo import CHECKPOINT_EVERY, PRINTED, SAMPLES_EVERY, STRIPS, prepare_prompts, prompt_order
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.report import compute_metrics, is_due, token_strips
from text2grad.train.update import next_coefficient


def train_trl(
    policy: Policy,
    examples: Sequence[Example],
    critic: Critic,
    settings: PPOSettings,
    credit: CreditSettings,
    generation: GenerationSettings,
    options: RunOptions,
    environment: MakeEnvironment | None = None,
    *,
    fields: Mapping[str, Any],
) -> None:
    """Train `policy` in place with TRL's trainer, like `train.ppo.train_ppo`.

    All processes call this with the same arguments and share each step; the first one writes. An
    unfinished run in the folder is resumed from its last checkpoint.

    `fields` are fields of TRL's `GRPOConfig`.

    Raises:
        UserError: there are no examples, a prompt does not fit, too many critiques failed, numbers
            are not finite, the policy diverged, or the settings of an unfinished run changed.
    """
    processes = join_processes(policy.device).num_processes
    prompts, inputs = prepare_prompts(policy, examples, critic, settings, credit, generation)
    refuse_differing_processes(identity := options.identity({"run.processes": str(processes), **inputs}))
    shared = shared_fields(options, plan_passes(settings, processes), policy.device)
    args = make_args(fields, settings, generation, shared)
    refuse_rounded_steps(policy, args)
    if args.use_vllm:
        args.generation_kwargs = {"stop_token_ids": policy.stop_ids}
    recipe = Recipe(policy, examples, prompts, critic, settings, credit, generation, options.seed, environment)
    order = prompt_order(len(examples), settings, random.Random(options.seed))
    try:
        trainer = RecipeTrainer(recipe, args, order, settings.kl_coefficient)
    except (ImportError, ValueError) as error:
        raise UsageError(f"engine.trl: {first_line(error)}", "see TRL's GRPOTrainer") from error
    refuse_sharded(trainer)
    with lock_in_first_process(options.folder), StopRequest() as stop:
        PPORun(trainer, options, identity, stop).train()


def refuse_differing_processes(identity: Mapping[str, str]) -> None:
    """Raise a `UserError` if the settings or inputs of the processes differ."""
    first, *others = gather_object([dict(identity)])
    for process, other in enumerate(others, start=1):
        if changes := describe_changes(first, other):
            raise UserError(
                f"process {process} has other settings or inputs than process 0: {', '.join(changes[:3])}",
                "start all processes with the same command and the same files",
            )


def refuse_sharded(trainer: RecipeTrainer) -> None:
    """Refuse features that need the full weights in one process, if the weights are sharded.

    Raises:
        UserError: the run has episodes (also with vLLM), uses intermediate policies, or its critic
            uses the policy's weights.
    """
    settings = trainer.recipe.settings
    if trainer.recipe.environment is not None and (trainer.split or trainer.use_vllm):
        raise UserError(
            "episodes need unsharded weights and transformers' sampling", "use DDP without vLLM, or --engine verl"
        )
    if trainer.split and (settings.heldout_every or settings.keep_every):
        raise UserError("ppo.heldout_every and ppo.keep_every need unsharded weights", "leave them out")
    if trainer.split and get_overlap(trainer.recipe.critic) == "never":
        cure = "--reward_model.shared false (docs/reward-models.md), or serve it (docs/serving.md)"
        raise UserError("a reward model that shares the policy's weights needs them unsharded", cure)


def refuse_rounded_steps(policy: Policy, args: Any) -> None:
    """Refuse to update half-precision weights directly, because small updates are rounded away.

    Raises:
        UserError: the weights are half-precision, or continuous batching would cast them, and
            DeepSpeed keeps no float32 copies.
    """
    is_half = any(weight.dtype in (torch.bfloat16, torch.float16) for weight in policy.policy_parameters())
    if is_half and (args.deepspeed_plugin is None or not args.bf16):
        cure = "use --policy.dtype float32 --engine.trl.bf16 true to compute in bfloat16, or adapters (policy.lora)"
        raise UserError("TRL updates weights in policy.dtype, where most of an update is rounded away", cure)
    batching = getattr(args, "use_transformers_continuous_batching", False)  # absent for SFT
    if batching and (args.bf16 or args.fp16) and args.deepspeed_plugin is None:
        problem = "use_transformers_continuous_batching with bf16 or fp16 casts the trained weights to that type"
        raise UserError(f"engine.trl.{problem}", "leave out engine.trl.bf16; adapters compute in policy.dtype")


@contextmanager
def lock_in_first_process(folder: Path) -> Iterator[None]:
    """Lock the folder in the first process; all must enter, and get its `UserError`."""
    if not PartialState().is_main_process:
        fail_together(lambda: None)
        yield
        return
    lock = lock_folder(folder)
    fail_together(lock.__enter__)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def newest_checkpoint(options: RunOptions, identity: Mapping[str, str]) -> Path | None:
    """Return the newest complete checkpoint of this run; with `restart` remove all and return None.

    A damaged one is skipped and reported on stderr.

    Raises:
        UserError: the settings or inputs of the run changed.
    """
    folder = options.folder / CHECKPOINTS
    if options.resume == "restart":
        if PartialState().is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    steps = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*") if path.is_dir()}
    complete = (path for _, path in sorted(steps.items(), reverse=True) if (path / STATE).is_file())
    for path in complete:
        try:
            before = read_state(path)["identity"]
        except ValueError as error:
            print(f"skipped the damaged checkpoint {path} ({error})", file=sys.stderr)
            continue
        if options.resume != "force":
            refuse_changed(options.folder, before, identity)
        return path
    return None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read our part of a checkpoint."""
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state


class EngineRun(ABC, TrainerCallback):
    """A run of one of TRL's trainers in its folder: log, checkpoints, signals, final policy.

    A subclass logs each step and calls `end_step`; `state` and `restore` save and restore its
    part of a checkpoint.

    Args:
        identity: settings and inputs that must be equal to resume.
        every: the default number of steps between checkpoints.
    """

    def __init__(
        self,
        trainer: Any,
        policy: Policy,
        options: RunOptions,
        identity: Mapping[str, str],
        stop: StopRequest,
        *,
        total: int,
        every: int,
        show: tuple[str, ...],
        cures: Cures,
    ) -> None:
        self.trainer, self.policy, self.options = trainer, policy, options
        self.identity, self.stop, self.total, self.cures = identity, stop, total, cures
        self.first = PartialState().is_main_process
        self.log = RunLog(options.folder, options.title, total, show, silent=not self.first)
        self.every = every if options.checkpoint_every is None else options.checkpoint_every
        self.done = 0
        self.stopped = 0

    def train(self) -> None:
        """Train from the newest checkpoint, if any, and write the policy; all processes must call.

        Raises:
            UserError: memory is exhausted, numbers are not finite, or the settings of an unfinished
                run changed.
        """
        self.stop.hold()  # obey signals only after a step, so that all processes stop together
        saved = fail_together(lambda: newest_checkpoint(self.options, self.identity))
        if saved is not None:
            self.resume(saved)
        with self.log, as_user_error(self):
            self.trainer.add_callback(self)
            self.trainer.train(resume_from_checkpoint=None if saved is None else str(saved))
            self.finish()

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return our part of a checkpoint as JSON."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""

    def resume(self, saved: Path) -> None:
        """Restore our part of a checkpoint."""
        state = read_state(saved)
        self.done = state["step"]
        self.restore(state)
        self.log.rewind(state["logs"], saved)
        self._report(f"resumes after step {self.done} of {self.total}")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the trackers, and start the selection of the final policy."""

        def begin() -> None:
            self.log.open_loggers(self.options.loggers, self.done)
            if self.options.selector and self.first:
                self.options.selector.begin(self.done)

        fail_together(begin)

    def write_metrics(self, number: int, metrics: dict[str, float]) -> None:
        """Write the metrics of a step in the first process."""
        if self.first:
            if self.options.on_step:
                self.options.on_step(number, metrics)
            self.log.metrics(number, metrics)

    def end_step(self, control: Any) -> None:
        """Count a logged step, and request saving or stopping."""
        self.done += 1
        last = self.done == self.total
        if (signal := max(gather_object([self.stop.signal]))) and not last:
            self.stopped, control.should_training_stop = signal, True
        control.should_save = not last and bool(self.stopped or (self.every and self.done % self.every == 0))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Complete a checkpoint of transformers with our part."""
        PartialState().wait_for_everyone()
        if self.first:
            file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            ours = {**self.state(), "step": self.done, "identity": self.identity}
            with whole_file(file) as out:
                out.write(to_json({**ours, "logs": self.log.positions()}))

    def finish(self) -> None:
        """Write the policy and remove the checkpoints, or exit if a signal stopped the run."""
        if self.stopped:
            self._report(f"stopped after step {self.done} of {self.total}; the same command resumes it")
            exit_for_signal(self.stopped)
        weights = self.trainer.gathered_weights()
        fail_together(lambda: self._finish(weights))
        if self.stop.signal:
            exit_for_signal(self.stop.signal)

    def _finish(self, weights: Mapping[str, Tensor] | None) -> None:
        if not self.first:
            return
        with report_disk_errors(self.options.folder / "policy"):
            write_final_policy(self.policy, self.options.folder / "policy", self.options.selector, weights)
        self.log.finish()
        shutil.rmtree(self.options.folder / CHECKPOINTS, ignore_errors=True)
        if self.options.selector:
            self.options.selector.end()

    def _report(self, line: str) -> None:
        if self.first:
            print(f"{self.options.title}: {line}", file=sys.stderr, flush=True)


class PPORun(EngineRun):
    """A run of PPO: logs the metrics and samples of each step after its last update."""

    def __init__(
        self, trainer: RecipeTrainer, options: RunOptions, identity: Mapping[str, str], stop: StopRequest
    ) -> None:
        self.settings = settings = trainer.recipe.settings
        memory = f"lower ppo.micro_batch_size ({settings.micro_batch_size})"
        cures = Cures(memory, f"lower ppo.lr ({settings.lr:g}), or raise ppo.kl_coefficient")
        super().__init__(
            trainer,
            trainer.recipe.policy,
            options,
            identity,
            stop,
            total=settings.steps,
            every=CHECKPOINT_EVERY,
            show=PRINTED,
            cures=cures,
        )

    def state(self) -> dict[str, Any]:
        """Return the KL coefficient, which `ppo.kl_target` adapts."""
        return {"kl_coefficient": self.trainer.coefficient}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the KL coefficient."""
        self.trainer.coefficient = state["kl_coefficient"]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log a step after its last update, and request saving or stopping."""
        trainer, step = self.trainer, self.trainer.step
        assert step is not None
        if state.global_step % trainer.updates:
            return
        terms = trainer.average_terms()
        metrics = compute_metrics(step.responses, step.rollout, step.coefficient) | terms | step.watch.seconds
        fail_together(lambda: self._write(step.number, metrics))
        trainer.coefficient = next_coefficient(step.coefficient, metrics["kl"], self.settings)
        self.end_step(control)

    def _write(self, number: int, metrics: dict[str, float]) -> None:
        self.write_metrics(number, metrics)
        step = self.trainer.step
        assert step is not None
        if self.first and is_due(number, self.settings.steps, SAMPLES_EVERY):
            for strip in token_strips(number, step.responses, step.rollout, STRIPS, valued=False):
                self.log.sample(strip)


@contextmanager
def as_user_error(run: EngineRun) -> Iterator[None]:
    """Turn exhausted memory and non-finite numbers into one-line errors."""
    try:
        yield
    except (FloatingPointError, RuntimeError, MemoryError) as error:
        where = f"{run.options.title}: step {run.done + 1} of {run.total}"
        if user_error := run.cures.user_error(error, where, "start the same command again"):
            raise user_error from error
        raise
