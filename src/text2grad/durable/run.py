"""A training run: its folder, its checkpoints, and how it resumes after it was stopped."""

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
from text2grad.durable.guard import is_out_of_memory, only_run_in, writing
from text2grad.durable.identity import refuse_changed, versions
from text2grad.durable.log import RunLog
from text2grad.durable.settings import CourseSettings
from text2grad.durable.state import Randomness, Training
from text2grad.errors import Diverged, UserError
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
"""Seconds for which a run that is to stop awaits answers that are paid for."""
KEPT_ON_CPU, KEPT_ON_GPU = 2 * 2**30, 256 * 2**20
"""Bytes of state of which a step keeps a copy while it changes the policy.

On a CPU that is all of a model of 170 million parameters, in less than a second; on a GPU, where a
whole update takes seconds, adapters.
"""


class Choice(Protocol):
    """Chooses the policy that a run hands over, of those on its way."""

    def begin(self, step: int) -> None:
        """Begin before the first step; or take over what is noted until `step`, after which the run
        resumes."""

    def write(self, folder: Path) -> None:
        """Write the chosen policy to a new folder."""

    def end(self) -> None:
        """Remove what was kept on the way: the policy is handed over."""


@dataclass(frozen=True)
class RunOptions:
    """The place and manner of a run; nothing here changes what is learned.

    `folder` gets metrics, samples, checkpoints and at the end the policy. `title` names the run in
    what it says, `seed` is that of the order of the data. `on_step` is called after every step with
    its number and its metrics, to which it may add. `loggers` are other places for the metrics
    (`durable.loggers`). `checkpoint_every`: steps between checkpoints; 0: only when the run is
    stopped; None: the loop's own interval. `course`: schedule and weight decay of training on a
    fixed set of examples. `choice`: None: the last policy.

    An unfinished run in the folder is resumed (`auto`) if the loop's arguments and `inputs`, its
    other dependencies, are unchanged; resumed whatever has changed (`force`); or started over
    (`restart`).
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
    choice: Choice | None = None

    def identity(self, loop: Mapping[str, str]) -> dict[str, str]:
        """Return what must be unchanged for the run to resume; `loop` is the part that its loop
        knows."""
        return {"run.name": self.title, "run.seed": str(self.seed), **loop, **self.inputs}


class Cures(NamedTuple):
    """The cures for a lack of memory, and for numbers that are not finite."""

    memory: str
    numbers: str

    def user_error(self, error: BaseException | None, where: str, again: str) -> UserError | None:
        """Return a failure that has a cure as a line for the user; `again` is the step that follows
        the cure."""
        if is_out_of_memory(error):
            return UserError(f"{where}: out of memory", f"{self.memory}, then {again}")
        if isinstance(error, FloatingPointError):
            return Diverged(f"{where}: {error}", f"{self.numbers}, then {again}")
        return None


class Run:
    """A run in its folder: metrics, samples, checkpoints, and at its end the policy. Used as a
    context.

    On entering, an unfinished run is resumed: `training` gets its state after the last saved step.
    Leaving without an error writes the policy and removes the checkpoints. Another process in this
    folder, settings or inputs that changed, a lack of memory and a full disk are errors of one
    line.

    `identity` must be equal for a run to resume. `every`: steps between checkpoints, where the
    options do not say. `show` names the metrics on the line of progress.

    A signal is obeyed at the next boundary (`signals.stop_here`): the unfinished step is dropped,
    and the run is saved in its state before it.
    """

    def __init__(
        self,
        options: RunOptions,
        steps: int,
        training: Training,
        identity: Mapping[str, str],
        cures: Cures,
        every: int = 0,
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
        self._choice = options.choice
        self._loggers = options.loggers
        self._saved = 0
        self._stop = StopRequest(PATIENCE)
        self._before: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._holding = False
        self._stack = ExitStack()

    def __enter__(self) -> Run:
        with ExitStack() as stack:
            stack.enter_context(only_run_in(self.folder))
            if self.mode == "restart":
                checkpoint.remove_checkpoints(self.folder / CHECKPOINTS)
            self.log = RunLog(self.folder, self.title, self.total, self.show)
            if (saved := checkpoint.newest_checkpoint(self.folder / CHECKPOINTS)) is not None:
                self._resume_from(saved)
            self._random = Randomness.now()
            stack.enter_context(self.log)
            self.log.open_loggers(self._loggers, self.training.step)
            stack.enter_context(self._stop)
            if self._choice:
                self._choice.begin(self.training.step)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        with self._stack:
            if isinstance(error, Stopped):
                self._save_and_leave(error.signal)
            if kind is None:
                self._finish()
                if self._stop.signal:  # after the last boundary: what would follow must not begin
                    exit_for_signal(self._stop.signal)
        if user_error := self._as_user_error(error):
            raise user_error from error

    def _finish(self) -> None:
        with writing(self.folder / "policy"):
            hand_over(self.training.policy, self.folder / "policy", self._choice)
        self.log.finish()
        checkpoint.remove_checkpoints(self.folder / CHECKPOINTS)
        if self._choice:
            self._choice.end()
        (self.folder / DIVERGED).unlink(missing_ok=True)

    def steps(self, data: Iterable[D]) -> Iterator[tuple[int, D]]:
        """Yield the remaining steps, each with its part of `data`; after each write a checkpoint if
        it is time."""
        for part in itertools.islice(data, self.training.step, self.total):
            yield self.training.step, part
            self._before = None
            if self._holding:
                self._holding = False
                self._stop.release()
            self.training.step += 1
            self._random = Randomness.now()
            if self.training.step == self.total:
                return
            if self._stop.signal:
                self._save_and_leave(self._stop.signal)
            if self.every and self.training.step % self.every == 0:
                self.save()

    def changing(self) -> None:
        """Prepare for this step's change of the policy.

        The state before is kept, so that the step can still be dropped, if that is cheap
        (`KEPT_ON_CPU`). Otherwise the step is finished before a signal is obeyed.
        """
        if self._stop.signal:
            raise Stopped(self._stop.signal)
        tensors = self.training.tensors()
        limit = KEPT_ON_CPU if self.training.policy.device.type == "cpu" else KEPT_ON_GPU
        if sum(tensor.nbytes for tensor in tensors.values()) > limit:
            self._holding = True
            self._stop.hold()
        else:
            copies = {name: torch.empty_like(x, device="cpu").copy_(x) for name, x in tensors.items()}
            self._before = copies, self.training.numbers()

    def doing(self, phase: str) -> None:
        """Show on the line of progress that a phase of this step begins."""
        self.log.progress.doing(self.training.step, phase)

    def note(self, step: int, metrics: dict[str, float]) -> None:
        """Give the metrics of a step to `on_step`, and write them."""
        with no_stop():
            if self._on_step:
                self._on_step(step, metrics)
            self.log.metrics(step, metrics)

    @contextmanager
    def guarding(self, batch: Callable[[], Iterable[Mapping[str, Any]] | None]) -> Iterator[None]:
        """Guard a step. `batch` gives the records it learns from; None until the policy is about to
        be changed.

        A failure before that leaves the run saved at the beginning of this step. When a number is
        not finite after it, the batch is written to `diverged.jsonl`.
        """
        try:
            yield
        except Exception as error:
            records, numbers = batch(), isinstance(error, FloatingPointError)
            if numbers and records is not None:
                path = self.folder / DIVERGED
                with no_stop(), writing(path):
                    lines = [to_json(record) + "\n" for record in records]
                    path.write_text("".join(lines), encoding="utf-8")
                raise FloatingPointError(f"{error} (the batch is in {path})") from error
            if records is None and not numbers:
                if self._stop.signal:
                    self._save_and_leave(self._stop.signal)
                self.save()
                if self._saved:
                    self._say(f"step {self._saved} is saved; the same command resumes it")
            raise

    def save(self) -> None:
        """Write a checkpoint of the state at the beginning of this step, unless there is one.

        Raises:
            UserError: the disk is full, or cannot be written to for another reason.
        """
        if self.training.step == self._saved:
            return
        tensors, numbers = self._before or (self.training.tensors(), self.training.numbers())
        with writing(f"checkpoint {self.training.step} of {self.folder}"):
            state = {
                **numbers,
                "random": self._random.numbers(),
                "logs": self.log.positions(),
                "identity": self.identity,
                "versions": versions(),
            }
            tensors = {**tensors, **self._random.tensors()}
            checkpoint.write_checkpoint(self.folder / CHECKPOINTS, self.training.step, tensors, state)
        self._saved = self.training.step

    def _as_user_error(self, error: BaseException | None) -> UserError | None:
        where = f"{self.title}: step {self.training.step + 1} of {self.total}"
        after = f"--force resumes from step {self._saved}" if self._saved else "start again"
        return self.cures.user_error(error, where, after)

    def _save_and_leave(self, signal: int) -> None:
        self.save()
        self._say(f"stopped after step {self.training.step} of {self.total}; the same command resumes it")
        exit_for_signal(signal)

    def _say(self, line: str) -> None:
        print(f"{self.title}: {line}", file=sys.stderr, flush=True)

    def _resume_from(self, saved: checkpoint.Checkpoint) -> None:
        state, forced = saved.state, self.mode == "force"
        if not forced:
            refuse_changed(self.folder, state["identity"], self.identity)
        self.training.restore(saved.tensors, state)
        self.log.go_back(state["logs"], saved.path)
        Randomness.restore(saved.tensors, state["random"])
        if not forced:
            torch.set_num_threads(state["threads"])  # the order of sums
        self._saved, present = saved.step, versions()
        other = [f"{name} {old}" for name, old in state["versions"].items() if present.get(name) != old]
        note = f" (saved with {', '.join(other)}: not equal to the bit)" if other else ""
        self._say(f"resumes after step {saved.step} of {self.total}{note}")


def save_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a policy beside its place, then move it there: a crash never leaves half a model under
    the name.

    `weights`: those of its model, where the model itself has only parts of them.
    """
    put_in_place(folder, lambda partial: write_policy(policy, partial, weights))


def hand_over(
    policy: Policy, folder: Path, choice: Choice | None, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write the policy of a finished run: the chosen one, or else the last, as `save_policy`
    does."""
    if choice:
        put_in_place(folder, choice.write)
    else:
        save_policy(policy, folder, weights)


def put_in_place(folder: Path, write: Callable[[Path], object]) -> None:
    """Have a model's folder written beside its place, add its manifest, and move it there."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    write_manifest(partial)
    for path in (*partial.rglob("*"), partial):
        checkpoint.sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    checkpoint.sync(folder.parent)
