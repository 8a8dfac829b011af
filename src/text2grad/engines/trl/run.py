"""A run of TRL's trainer in a run folder: the files of the local loop, transformers' checkpoints,
and resuming."""

from __future__ import annotations

import json
import random
import shutil
import sys
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
from text2grad.durable.identity import describe_changes, flatten, hash_custom_code, refuse_changed
from text2grad.durable.log import RunLog
from text2grad.durable.run import CHECKPOINTS, Cures, RunOptions, write_final_policy
from text2grad.engines.processes import joined
from text2grad.engines.trl import STATE
from text2grad.engines.trl.fields import make_args, shape_of, shared_fields
from text2grad.engines.trl.trainer import Recipe, RecipeTrainer, agreed
from text2grad.errors import UsageError, UserError, first_line
from text2grad.feedback import Critic, Example
from text2grad.json_text import to_json
from text2grad.policy.encode import encode_prompts
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.signals import StopRequest, exit_for_signal
from text2grad.train.ppo import CHECKPOINT_EVERY, SAMPLES_EVERY, STRIPS, data_identity, prompt_order
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
    """Train `policy` in place as `train.ppo.train_ppo` does, by TRL's trainer; `fields` are of its
    `GRPOConfig`.

    Each of several processes calls this with the same arguments; a step is that of all of them. The
    first one writes. An unfinished run in the folder is resumed from its last checkpoint.

    Raises:
        UserError: no examples, a prompt that does not fit, too many failed critiques, numbers that
            are not finite, a policy that has diverged, or an unfinished run with other settings.
    """
    if not examples:
        raise UserError("no prompts to train on", "check task.data, task.limit and the split")
    processes = joined(policy.device).num_processes
    prompts = encode_prompts(policy.tokenizer, examples, policy.context, generation.max_new_tokens)
    loop = {
        "run.processes": str(processes),
        **flatten(ppo=settings, credit=credit, generation=generation),
        **hash_custom_code("the credit scheme", credit.scheme),
        **data_identity(policy, examples, critic),
    }
    refuse_unlike(identity := options.identity(loop))
    shared = shared_fields(options, shape_of(settings, processes), policy.device)
    args = make_args(fields, settings, generation, shared)
    refuse_lost_steps(policy, args)
    if args.use_vllm:
        args.generation_kwargs = {"stop_token_ids": policy.stop_ids}
    recipe = Recipe(policy, examples, prompts, critic, settings, credit, generation, options.seed, environment)
    order = prompt_order(len(examples), settings, random.Random(options.seed))
    try:
        trainer = RecipeTrainer(recipe, args, order, settings.kl_coefficient)
    except (ImportError, ValueError) as error:
        raise UsageError(f"engine.trl: {first_line(error)}", "see TRL's GRPOTrainer") from error
    refuse_split(trainer)
    with only_first(options.folder), StopRequest() as stop:
        Steps(trainer, options, identity, stop).train()


def refuse_unlike(identity: Mapping[str, str]) -> None:
    """Refuse processes that do not train the same policy on the same data.

    Raises:
        UserError: names the process and what differs.
    """
    mine, *others = gather_object([dict(identity)])
    for process, other in enumerate(others, start=1):
        if changes := describe_changes(mine, other):
            raise UserError(
                f"process {process} has other settings or inputs than process 0: {', '.join(changes[:3])}",
                "start all with the same command, and with the same files in reach",
            )


def refuse_split(trainer: RecipeTrainer) -> None:
    """Refuse what one process does alone with the policy, where no process has all of its weights.

    Raises:
        UserError: episodes, or measuring or keeping the policy on the way; or episodes with vLLM.
    """
    settings = trainer.recipe.settings
    if trainer.recipe.environment is not None and (trainer.split or trainer.use_vllm):
        raise UserError(
            "episodes need whole weights and transformers' sampling", "a profile of DDP, or --engine verl"
        )
    if trainer.split and (settings.heldout_every or settings.keep_every):
        raise UserError("ppo.heldout_every and keep_every need whole weights in each process", "leave them out")


def refuse_lost_steps(policy: Policy, args: Any) -> None:
    """Refuse weights of a half type that are stepped themselves: small steps would be rounded away.

    Raises:
        UserError: they are, or continuous batching would turn them into such, and no engine keeps
            float32 copies.
    """
    half = any(weight.dtype in (torch.bfloat16, torch.float16) for weight in policy.policy_parameters())
    if half and (args.deepspeed_plugin is None or not args.bf16):
        cure = "--policy.dtype float32 --engine.trl.bf16 true computes in bfloat16; or adapters (policy.lora)"
        raise UserError("TRL steps weights in policy.dtype, where most of a step is rounded away", cure)
    batching = getattr(args, "use_transformers_continuous_batching", False)  # SFT samples nothing
    if batching and (args.bf16 or args.fp16) and args.deepspeed_plugin is None:
        problem = "use_transformers_continuous_batching with bf16 or fp16 turns the trained weights into that type"
        raise UserError(f"engine.trl.{problem}", "leave out engine.trl.bf16; adapters compute in policy.dtype")


@contextmanager
def only_first(folder: Path) -> Iterator[None]:
    """Hold the folder, in the first process; all must enter.

    Raises:
        UserError: another run trains there.
    """
    if not PartialState().is_main_process:
        agreed(lambda: None)
        yield
        return
    hold = lock_folder(folder)
    agreed(hold.__enter__)
    try:
        yield
    finally:
        hold.__exit__(None, None, None)


def newest_checkpoint(options: RunOptions, identity: Mapping[str, str]) -> Path | None:
    """Return the newest complete checkpoint of this run; with `restart` none, and they are removed.

    Raises:
        UserError: the run was another.
    """
    place = options.folder / CHECKPOINTS
    if options.resume == "restart":
        if PartialState().is_main_process:
            shutil.rmtree(place, ignore_errors=True)
        return None
    steps = {int(path.name.rpartition("-")[2]): path for path in place.glob("checkpoint-*") if path.is_dir()}
    complete = [path for _, path in sorted(steps.items()) if (path / STATE).is_file()]
    if not complete:
        return None
    before = json.loads((complete[-1] / STATE).read_text(encoding="utf-8"))["identity"]
    if options.resume != "force":
        refuse_changed(options.folder, before, identity)
    return complete[-1]


class EngineRun(TrainerCallback):
    """A run of one of TRL's trainers in its folder: progress, checkpoints, signals, and at its end
    the policy.

    A subclass writes each of the `total` steps and calls `end_step`; `state` is what it adds to a
    checkpoint, and `take_over` takes that. `every`: steps between checkpoints. `show` names the
    metrics on the line of progress. `cures` are of the section of the settings.
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
        """Train, from the newest checkpoint if there is one, and write the policy; all processes
        must call.

        Raises:
            UserError: out of memory, numbers that are not finite, or an unfinished run with other
                settings.
        """
        self.stop.hold()  # a step is finished before a signal is obeyed: all processes must stop at one place
        saved = agreed(lambda: newest_checkpoint(self.options, self.identity))
        if saved is not None:
            self.resume(saved)
        with self.log, as_user_error(self):
            self.trainer.add_callback(self)
            self.trainer.train(resume_from_checkpoint=None if saved is None else str(saved))
            self.finish()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides transformers' own state, as JSON."""
        raise NotImplementedError

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        raise NotImplementedError

    def resume(self, saved: Path) -> None:
        """Take over our part of a checkpoint's state."""
        state = json.loads((saved / STATE).read_text(encoding="utf-8"))
        self.done = state["step"]
        self.take_over(state)
        self.log.rewind(state["logs"], saved)
        self._say(f"resumes after step {self.done} of {self.total}")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open other places for the metrics, where the run has some, and begin the choice of a
        policy."""
        agreed(self._begin)

    def _begin(self) -> None:
        self.log.open_loggers(self.options.loggers, self.done)
        if self.options.selector and self.first:
            self.options.selector.begin(self.done)

    def end_step(self, control: Any) -> None:
        """Count a step that is written, and say whether to save or to stop."""
        self.done += 1
        last = self.done == self.total
        if (signal := max(gather_object([self.stop.signal]))) and not last:
            self.stopped, control.should_training_stop = signal, True
        control.should_save = not last and bool(self.stopped or (self.every and self.done % self.every == 0))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add our part to a checkpoint that transformers has written; it is complete then."""
        PartialState().wait_for_everyone()
        if self.first:
            place = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            ours = {**self.state(), "step": self.done, "identity": self.identity}
            with report_disk_errors(place):
                place.write_text(to_json({**ours, "logs": self.log.positions()}), encoding="utf-8")

    def finish(self) -> None:
        """Write the policy and remove the checkpoints; or leave, where a signal asked for it."""
        if self.stopped:
            self._say(f"stopped after step {self.done} of {self.total}; the same command resumes it")
            exit_for_signal(self.stopped)
        weights = self.trainer.gathered_weights()
        agreed(lambda: self._finish(weights))
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

    def _say(self, line: str) -> None:
        if self.first:
            print(f"{self.options.title}: {line}", file=sys.stderr, flush=True)


class Steps(EngineRun):
    """A run of PPO: writes the metrics and samples of each step, after its last update."""

    def __init__(
        self, trainer: RecipeTrainer, options: RunOptions, identity: Mapping[str, str], stop: StopRequest
    ) -> None:
        self.settings = settings = trainer.recipe.settings
        memory = f"lower ppo.micro_batch_size ({settings.micro_batch_size})"
        cures = Cures(memory, f"lower ppo.lr ({settings.lr:g}), or raise ppo.kl_coefficient")
        how: dict[str, Any] = {"total": settings.steps, "every": CHECKPOINT_EVERY, "cures": cures}
        show = ("score", "kl", "wrong_sign_rate")
        super().__init__(trainer, trainer.recipe.policy, options, identity, stop, show=show, **how)

    def state(self) -> dict[str, Any]:
        """Return beta, which `ppo.kl_target` moves."""
        return {"kl_coefficient": self.trainer.coefficient}

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Take over beta."""
        self.trainer.coefficient = state["kl_coefficient"]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the last update of a step: write it, and say whether to save or to stop."""
        trainer, step = self.trainer, self.trainer.step
        assert step is not None
        if state.global_step % trainer.updates:
            return
        terms = trainer.means_of_step()
        metrics = compute_metrics(step.responses, step.rollout, step.coefficient) | terms | step.watch.seconds
        agreed(lambda: self._write(step.number, metrics))
        trainer.coefficient = next_coefficient(step.coefficient, metrics["kl"], self.settings)
        self.end_step(control)

    def _write(self, number: int, metrics: dict[str, float]) -> None:
        if not self.first:
            return
        step = self.trainer.step
        assert step is not None
        if self.options.on_step:
            self.options.on_step(number, metrics)
        self.log.metrics(number, metrics)
        if is_due(number, self.settings.steps, SAMPLES_EVERY):
            for strip in token_strips(number, step.responses, step.rollout, STRIPS, valued=False):
                self.log.sample(strip)


@contextmanager
def as_user_error(run: EngineRun) -> Iterator[None]:
    """Show a lack of memory, and numbers that are not finite, as one line."""
    try:
        yield
    except (FloatingPointError, RuntimeError, MemoryError) as error:
        where = f"{run.options.title}: step {run.done + 1} of {run.total}"
        if user_error := run.cures.user_error(error, where, "start the same command again"):
            raise user_error from error
        raise
