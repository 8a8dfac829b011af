"""A training run: its folder, its checkpoints, how it goes on after it was stopped, and signs of life."""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from text2grad.errors import Diverged, UserError
from text2grad.feedback import to_json
from text2grad.policy.model import Policy
from text2grad.policy.shard import assembled
from text2grad.train.checkpoint import (
    Checkpoint,
    newest_checkpoint,
    read_checkpoint,
    remove_checkpoints,
    sync,
    write_checkpoint,
)
from text2grad.train.guard import StopRequest, is_out_of_memory, leave, only_run_in, writing
from text2grad.train.log import RunLog
from text2grad.train.ranks import ALONE, Ranks, is_lost, lost
from text2grad.train.settings import Schedule
from text2grad.train.state import Randomness, Training, versions

D = TypeVar("D")
ResumeMode = Literal["auto", "restart", "force"]
OnStep = Callable[[int, dict[str, float]], None]

CHECKPOINTS, DIVERGED = "checkpoints", "diverged.jsonl"


@dataclass(frozen=True)
class Resume:
    """What to do with an unfinished run in the folder, and what a run depends on that its loop does not see.

    `auto` goes on if `inputs` and the loop's own arguments are what they were; `force` goes on whatever has
    changed; `restart` begins anew.
    """

    mode: ResumeMode = "auto"
    inputs: Mapping[str, str] = field(default_factory=dict)


AUTO = Resume()


class Run:
    """A run in its folder: metrics, samples, checkpoints, and at its end the policy. Used as a context.

    On entering, an unfinished run is gone on with: `training` is what it was after its last saved step. Leaving
    without an error writes the policy and removes the checkpoints. What may go wrong in between is one line:
    another process in this folder, settings or inputs that changed, no memory, a full disk.

    `identity` names what must be equal for a run to go on. `every`: steps between checkpoints; 0: only when the
    run is stopped. `memory` and `numbers` are what to do when there is no memory, or when a number is none.

    Of several processes (`ranks`) each has its own `Run`; the first one's writes. What ends the run of one ends
    that of all, at the same step.
    """

    def __init__(
        self,
        folder: Path,
        title: str,
        steps: int,
        training: Training,
        identity: Mapping[str, str],
        resume: Resume,
        every: int,
        memory: str,
        numbers: str,
        show: tuple[str, ...] = ("loss",),
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.folder = folder
        self.title = title
        self.total = steps
        self.training = training
        processes = f"{ranks.count} (split weights)" if ranks.sharded else str(ranks.count)
        self.identity = {"run.name": title, "run.processes": processes, **identity, **resume.inputs}
        self.mode = resume.mode
        self.every = every
        self.cures = {"memory": memory, "numbers": numbers}
        self.show = show
        self._saved = 0
        self._stop = StopRequest()
        self._stack = ExitStack()

    def __enter__(self) -> Run:
        with ExitStack() as stack:
            with self.ranks.agreeing():
                if self.ranks.first:
                    stack.enter_context(only_run_in(self.folder))
                    if self.mode == "restart":
                        remove_checkpoints(self.folder / CHECKPOINTS)
                self.log = RunLog(self.folder, self.title, self.total, self.show, silent=not self.ranks.first)
            self._refuse_unlike()
            torch.set_num_threads(self.ranks.of_first(torch.get_num_threads()))
            self._go_on()
            self._random = Randomness.now()
            stack.enter_context(self.log)
            stack.enter_context(self._stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        with self._stack:
            if kind is None:
                self._finish()
        if kind is None and (signal := self.ranks.highest(self._stop.signal)):
            leave(signal)  # asked for in the last step: what would follow must not begin
        if is_lost(error):
            self.ranks.broken = True
            lost(error)  # type: ignore[arg-type]
        if told := self._in_words(error):
            raise told from error

    def _finish(self) -> None:
        policy = assembled(self.training.policy, keep=self.ranks.first)
        with self.ranks.agreeing():
            if policy is not None:
                with writing(self.folder / "policy"):
                    save_policy(policy, self.folder / "policy")
                self.log.finish()
                remove_checkpoints(self.folder / CHECKPOINTS)
                (self.folder / DIVERGED).unlink(missing_ok=True)

    def steps(self, data: Iterable[D]) -> Iterator[tuple[int, D]]:
        """The steps that are left, each with its part of `data`. A signal ends the run between two steps.

        After each step a checkpoint is written if it is time.
        """
        for part in itertools.islice(data, self.training.step, self.total):
            yield self.training.step, part
            self.training.step += 1
            self._random = Randomness.now()
            if self.training.step == self.total:
                return
            if signal := self.ranks.highest(self._stop.signal):
                self._save_and_leave(signal)
            if self.every and self.training.step % self.every == 0:
                self.save()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What fails in here has not touched the policy: the run is saved, and can go on with this very step.

        It fails in all processes or in none (`Ranks.agreeing`), or for good (`Ranks.broken`).
        """
        try:
            yield
        except FloatingPointError:
            raise
        except Exception as error:
            if self.ranks.broken or is_lost(error):
                raise
            if signal := self.ranks.highest(self._stop.signal):
                self._save_and_leave(signal)
            self.save()
            if self._saved and self.ranks.first:
                print(
                    f"{self.title}: step {self._saved} is saved; the same command goes on from there",
                    file=sys.stderr,
                )
            raise

    def save(self) -> None:
        """Write a checkpoint of the state at the beginning of this step, unless there is one.

        Raises:
            UserError: the disk is full, or cannot be written to for another reason.
        """
        if self.training.step == self._saved:
            return
        tensors, randoms = self.training.tensors(), self.ranks.everyones(self._random)
        with self.ranks.agreeing():
            if self.ranks.first:
                self._write(tensors, randoms)
        self._saved = self.training.step

    def _write(self, tensors: dict[str, Tensor], randoms: Sequence[Randomness]) -> None:
        owners = {_owner(rank): drawn for rank, drawn in enumerate(randoms)}
        for owner, drawn in owners.items():
            tensors |= drawn.tensors(owner)
        with writing(f"checkpoint {self.training.step} of {self.folder}"):
            state = {
                **self.training.numbers(),
                **{owner: drawn.numbers() for owner, drawn in owners.items()},
                "logs": self.log.positions(),
                "identity": self.identity,
                "versions": versions(),
            }
            write_checkpoint(self.folder / CHECKPOINTS, self.training.step, tensors, state)

    @contextmanager
    def keeping(self, batch: Callable[[], Iterable[Mapping[str, Any]]]) -> Iterator[None]:
        """When a number in here is none, the batch it came from is left in `diverged.jsonl`."""
        try:
            yield
        except FloatingPointError as error:
            path = self.folder / DIVERGED
            with writing(path):
                lines = [to_json(_plain(record)) + "\n" for record in batch()]
                if self.ranks.first:
                    path.write_text("".join(lines), encoding="utf-8")
            raise FloatingPointError(f"{error} (the batch is in {path})") from error

    def _in_words(self, error: BaseException | None) -> UserError | None:
        where = f"{self.title}: step {self.training.step + 1} of {self.total}"
        after = f"--force goes on from step {self._saved}" if self._saved else "start again"
        if is_out_of_memory(error):
            return UserError(f"{where}: out of memory", f"{self.cures['memory']}, then {after}")
        if isinstance(error, FloatingPointError):
            return Diverged(f"{where}: {error}", f"{self.cures['numbers']}, then {after}")
        return None

    def _save_and_leave(self, signal: int) -> None:
        self.save()
        done = f"stopped after step {self.training.step} of {self.total}; the same command goes on from there"
        if self.ranks.first:
            print(f"{self.title}: {done}", file=sys.stderr, flush=True)
        leave(signal)

    def _refuse_unlike(self) -> None:
        """All processes must train the same policy on the same data."""
        mine, *others = self.ranks.everyones(self.identity)
        for rank, other in enumerate(others, start=1):
            if changes := changed(mine, other):
                raise UserError(
                    f"process {rank} has other settings or inputs than process 0: {', '.join(changes[:3])}",
                    "start all with the same command, and with the same files in reach",
                )

    def _find(self) -> Checkpoint | None:
        """The newest whole checkpoint: the first process looks for it, the others read what it found."""
        with self.ranks.agreeing():
            found = newest_checkpoint(self.folder / CHECKPOINTS) if self.ranks.first else None
        path = self.ranks.of_first(found.path if found else None)
        with self.ranks.agreeing():
            if path is not None and found is None:
                if not path.is_dir():
                    raise UserError(f"no {path} here", "put run.folder on a disk that all processes share")
                found = read_checkpoint(path)
        return found

    def _go_on(self) -> None:
        found = self._find()
        if found is not None:
            with self.ranks.agreeing():
                self._go_on_from(found)

    def _go_on_from(self, found: Checkpoint) -> None:
        state, forced = found.state, self.mode == "force"
        changes = [] if forced else changed(state["identity"], self.identity)
        if changes:
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise UserError(
                f"the unfinished run in {self.folder} began with other settings or inputs:"
                f" {', '.join(changes[:3])}{more}",
                "--restart begins anew, --force goes on all the same",
            )
        self.training.restore(found.tensors, state)
        self.log.go_back(state["logs"], found.path)
        owner = _owner(self.ranks.rank)
        owner = owner if owner in state else _owner(0)  # forced, with more processes than there were
        Randomness.restore(found.tensors, state[owner], owner)
        if not forced:
            torch.set_num_threads(state["threads"])  # the order of sums
        self._saved = found.step
        if self.ranks.first:
            print(f"{self.title}: goes on after step {found.step} of {self.total}{_aged(state)}", file=sys.stderr)


def _owner(rank: int) -> str:
    """The name under which a process's random generators are saved."""
    return f"random of {rank}" if rank else "random"


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two identities, in words: settings with both values, digests by name."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [name if "." not in name else f"{name} {before.get(name)} -> {now.get(name)}" for name in names]


def _aged(state: Mapping[str, Any]) -> str:
    mine = versions()
    other = [f"{name} {old}" for name, old in state["versions"].items() if mine.get(name) != old]
    return f" (saved with {', '.join(other)}: not equal to the bit)" if other else ""


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def save_policy(policy: Policy, folder: Path) -> None:
    """Write a policy beside its place, then move it there: a crash never leaves half a model under the name."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    policy.save(partial)
    for path in (*partial.rglob("*"), partial):
        sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    sync(folder.parent)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def learning_rate_factor(schedule: Schedule, warmup: float, steps: int) -> Callable[[int], float]:
    """Factor on the learning rate at a step: linear warm-up, then constant, linear or cosine decay to zero."""
    rising = max(1, round(steps * warmup)) if warmup else 0

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        done = (step - rising) / max(1, steps - rising)
        if schedule == "constant":
            return 1.0
        return max(0.0, 1 - done) if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return factor


class Stopwatch:
    """Seconds by phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        """Book the time since the last lap under `name`."""
        now = time.perf_counter()
        key = f"seconds_{name}"
        self.seconds[key] = self.seconds.get(key, 0.0) + now - self._since
        self._since = now
