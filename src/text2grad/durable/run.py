"""A training run: its folder, its checkpoints, and how it resumes."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from text2grad.durable import checkpoint
from text2grad.durable.guard import lock_folder, report_disk_errors
from text2grad.durable.identity import package_versions, refuse_changed
from text2grad.durable.log import RunLog
from text2grad.durable.settings import CourseSettings
from text2grad.durable.state import Randomness, Training
from text2grad.errors import Diverged, UserError, is_out_of_memory
from text2grad.json_text import to_json
from text2grad.policy.files.manifest import write_manifest
from text2grad.policy.files.save import write_policy
from text2grad.policy.model import Policy
from text2grad.signals import Stopped, StopRequest, exit_for_signal, no_stop

D = TypeVar("D")
ResumeMode = Literal["auto", "restart", "force"]
OnStep = Callable[[int, dict[str, float]], None]

CHECKPOINTS, DIVERGED = "checkpoints", "diverged.jsonl"
PATIENCE = 8.0
"""Seconds for which a stopping run waits for pending paid requests."""
CPU_COPY_BYTES, GPU_COPY_BYTES = 2 * 2**30, 256 * 2**20
"""Largest state in bytes that is copied before an update, so that the step can be dropped.

On a CPU this covers a model of 170 million parameters and takes less than a second. On a GPU, where
an update takes seconds, it covers adapters.
"""


class PolicySelector(Protocol):
    """Selects the final policy among those of a run's steps."""

    def begin(self, step: int) -> None:
        """Start a new selection at step 0, or resume the stored one after `step` steps."""

    def write(self, folder: Path) -> None:
        """Write the selected policy to a new folder."""

    def end(self) -> None:
        """Remove the stored candidates after the final policy is written."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that its loop passes on to `Run`.

    An unfinished run in the folder is resumed if its identity is unchanged (`auto`), resumed anyway
    (`force`), or started over (`restart`).

    Attributes:
        folder: receives metrics, samples, checkpoints and finally the policy.
        title: the name of the run in its progress lines.
        seed: the seed of the order of the data.
        inputs: dependencies other than the loop's arguments, as part of the identity.
        on_step: called after each step with its number and its metrics, which it may extend.
        loggers: further trackers for the metrics (`durable.loggers`).
        checkpoint_every: steps between checkpoints; 0: only when stopped; None: the loop's default.
        course: schedule and weight decay of training on a fixed set of examples.
        selector: selects the final policy; None: the last one.
    """

    folder: Path
    title: str
    seed: int = 0
    resume: ResumeMode = "auto"
    inputs: Mapping[str, str] = field(default_factory=dict)
    on_step: OnStep | None = None
    loggers: Sequence[str] = ()
    checkpoint_every: int | None = None
    course: CourseSettings = field(default_factory=CourseSettings)
    selector: PolicySelector | None = None

    def identity(self, loop: Mapping[str, str]) -> dict[str, str]:
        """Return what must be unchanged for the run to resume, including the loop's own part."""
        return {"run.name": self.title, "run.seed": str(self.seed), **loop, **self.inputs}


class Cures(NamedTuple):
    """Advice to print when memory runs out and when numbers are not finite."""

    memory: str
    numbers: str

    def user_error(self, error: BaseException | None, where: str, retry: str) -> UserError | None:
        """Return a one-line error with advice, or None for an unexpected error.

        `where` names the run and its step; `retry` tells how to continue after the advice.
        """
        if is_out_of_memory(error):
            return UserError(f"{where}: out of memory", f"{self.memory}, then {retry}")
        if isinstance(error, FloatingPointError):
            return Diverged(f"{where}: {error}", f"{self.numbers}, then {retry}")
        return None


class Run:
    """A context manager for a run in its folder: log, checkpoints, and finally the policy.

    Entering resumes an unfinished run: `training` is restored to the last saved step. Leaving
    without an error writes the policy and removes the checkpoints. These are one-line errors:
    another process in the folder, changed settings or inputs, exhausted memory, a full disk.

    A signal is obeyed at the next boundary (`signals.stop_here`): the unfinished step is dropped,
    and the run is saved in the state before it.

    Args:
        steps: the number of steps of the whole run.
        identity: the loop's arguments, which must be equal to resume.
        every: the default number of steps between checkpoints.
        show: the metrics in the progress line.
    """

    def __init__(
        self,
        options: RunOptions,
        steps: int,
        training: Training,
        identity: Mapping[str, str],
        cures: Cures,
        every: int,
        show: tuple[str, ...] = ("loss",),
    ) -> None:
        self.folder = options.folder
        self.title = options.title
        self.mode = options.resume
        self.total = steps
        self.training = training
        self.identity = options.identity(identity)
        self.cures = cures
        self.every = every if options.checkpoint_every is None else options.checkpoint_every
        self.show = show
        self._on_step = options.on_step
        self._selector = options.selector
        self._loggers = options.loggers
        self._saved = 0
        self._stop = StopRequest(PATIENCE)
        self._step_start: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._holds_signal = False
        self._stack = ExitStack()

    def __enter__(self) -> Run:
        with ExitStack() as stack:
            stack.enter_context(lock_folder(self.folder))
            if self.mode == "restart":
                checkpoint.remove_checkpoints(self.folder / CHECKPOINTS)
            self.log = RunLog(self.folder, self.title, self.total, self.show)
            if (saved := checkpoint.newest_checkpoint(self.folder / CHECKPOINTS)) is not None:
                self._resume_from(saved)
            self._random = Randomness.capture()
            stack.enter_context(self.log)
            self.log.open_loggers(self._loggers, self.training.step)
            stack.enter_context(self._stop)
            if self._selector:
                self._selector.begin(self.training.step)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        with self._stack:
            if isinstance(error, Stopped):
                self._save_and_leave(error.signal)
            if kind is None:
                self._finish()
                if self._stop.signal:  # it came after the last boundary: do not start the next stage
                    exit_for_signal(self._stop.signal)
        where = f"{self.title}: step {self.training.step + 1} of {self.total}"
        retry = f"--force resumes from step {self._saved}" if self._saved else "start again"
        if user_error := self.cures.user_error(error, where, retry):
            raise user_error from error

    def _finish(self) -> None:
        with report_disk_errors(self.folder / "policy"):
            write_final_policy(self.training.policy, self.folder / "policy", self._selector)
        self.log.finish()
        checkpoint.remove_checkpoints(self.folder / CHECKPOINTS)
        if self._selector:
            self._selector.end()
        (self.folder / DIVERGED).unlink(missing_ok=True)

    def steps(self, data: Iterable[D]) -> Iterator[tuple[int, D]]:
        """Yield the number and the data of each remaining step, and write due checkpoints."""
        for batch in itertools.islice(data, self.training.step, self.total):
            yield self.training.step, batch
            self._step_start = None
            if self._holds_signal:
                self._holds_signal = False
                self._stop.release()
            self.training.step += 1
            self._random = Randomness.capture()
            if self.training.step == self.total:
                return
            if self._stop.signal:
                self._save_and_leave(self._stop.signal)
            if self.every and self.training.step % self.every == 0:
                self.save()

    def prepare_update(self) -> None:
        """Prepare to update the policy in this step.

        A small state (`CPU_COPY_BYTES`) is copied, so that a signal can still drop the step.
        Otherwise a signal is obeyed after the step.
        """
        if self._stop.signal:
            raise Stopped(self._stop.signal)
        tensors = self.training.tensors()
        limit = CPU_COPY_BYTES if self.training.policy.device.type == "cpu" else GPU_COPY_BYTES
        if sum(tensor.nbytes for tensor in tensors.values()) > limit:
            self._holds_signal = True
            self._stop.hold()
        else:
            copies = {name: torch.empty_like(x, device="cpu").copy_(x) for name, x in tensors.items()}
            self._step_start = copies, self.training.numbers()

    def begin_phase(self, phase: str) -> None:
        """Show in the progress line that a phase of this step begins."""
        self.log.progress.begin_phase(self.training.step, phase)

    def record_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Pass the metrics of a step to `on_step`, and log them."""
        with no_stop():
            if self._on_step:
                self._on_step(step, metrics)
            self.log.metrics(step, metrics)

    @contextmanager
    def guard_step(self, batch: Callable[[], Iterable[Mapping[str, Any]] | None]) -> Iterator[None]:
        """Save the run, or the batch that made it diverge, when a step fails.

        A failure before the update saves the run at the start of this step. A non-finite number
        during the update writes the batch to `diverged.jsonl`. The function `batch` returns the
        records of the step, or None before the update.
        """
        try:
            yield
        except Exception as error:
            records, diverged = batch(), isinstance(error, FloatingPointError)
            if diverged and records is not None:
                path = self.folder / DIVERGED
                with no_stop(), report_disk_errors(path):
                    lines = [to_json(record) + "\n" for record in records]
                    path.write_text("".join(lines), encoding="utf-8")
                raise FloatingPointError(f"{error} (the batch is in {path})") from error
            if records is None and not diverged:
                if self._stop.signal:
                    self._save_and_leave(self._stop.signal)
                self.save()
                if self._saved:
                    self._report(f"step {self._saved} is saved; the same command resumes it")
            raise

    def save(self) -> None:
        """Write a checkpoint of the state at the start of this step, unless there is one.

        Raises:
            UserError: the disk is full or cannot be written to.
        """
        if self.training.step == self._saved:
            return
        tensors, numbers = self._step_start or (self.training.tensors(), self.training.numbers())
        with report_disk_errors(f"checkpoint {self.training.step} of {self.folder}"):
            state = {
                **numbers,
                "random": self._random.numbers(),
                "logs": self.log.positions(),
                "identity": self.identity,
                "versions": package_versions(),
            }
            tensors = {**tensors, **self._random.tensors()}
            checkpoint.write_checkpoint(self.folder / CHECKPOINTS, self.training.step, tensors, state)
        self._saved = self.training.step

    def _save_and_leave(self, signal: int) -> None:
        self.save()
        self._report(f"stopped after step {self.training.step} of {self.total}; the same command resumes it")
        exit_for_signal(signal)

    def _report(self, line: str) -> None:
        print(f"{self.title}: {line}", file=sys.stderr, flush=True)

    def _resume_from(self, saved: checkpoint.Checkpoint) -> None:
        state, forced = saved.state, self.mode == "force"
        if not forced:
            refuse_changed(self.folder, state["identity"], self.identity)
        self.training.restore(saved.tensors, state)
        self.log.rewind(state["logs"], saved.path)
        Randomness.restore(saved.tensors, state["random"])
        if not forced:
            torch.set_num_threads(state["threads"])  # the order of sums
        self._saved, current = saved.step, package_versions()
        other = [f"{name} {old}" for name, old in state["versions"].items() if current.get(name) != old]
        remark = f" (saved with {', '.join(other)}: not bit-identical)" if other else ""
        self._report(f"resumes after step {saved.step} of {self.total}{remark}")


def save_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Replace `folder` by a policy; a crash never leaves an incomplete model there.

    `weights` are the gathered weights, if they are sharded over processes.
    """
    replace_folder(folder, lambda partial: write_policy(policy, partial, weights))


def write_final_policy(
    policy: Policy, folder: Path, selector: PolicySelector | None, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write the selected policy of a finished run, or the last one without a selector."""
    if selector:
        replace_folder(folder, selector.write)
    else:
        save_policy(policy, folder, weights)


def replace_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Replace a model's folder atomically: write it under a temporary name, then rename it."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    write_manifest(partial)
    for path in (*partial.rglob("*"), partial):
        checkpoint.sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    checkpoint.sync(folder.parent)
