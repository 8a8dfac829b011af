"""What a training loop leaves behind: metrics, samples, checkpoints; and how it shows that it is alive."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from text2grad.policy.model import Policy
from text2grad.train.settings import Schedule

OnStep = Callable[[int, dict[str, float]], None]


LOGS = ("metrics.jsonl", "samples.jsonl")


class RunLog:
    """A folder with `metrics.jsonl` and `samples.jsonl`, and one line of progress on stderr.

    Earlier files stay until the first line of the new ones is written. In the folder of a complete run (it has
    a `policy`) they stay until the new run is complete: it writes `*.partial` beside them and takes their place
    at the end, so that a run that fails leaves metrics and policy of the earlier one together and whole.

    On a terminal the line is a live bar; elsewhere a plain line about every tenth of the run.
    """

    def __init__(self, folder: Path, title: str, steps: int, show: tuple[str, ...] = ("loss",)) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.title = title
        self.steps = steps
        self.show = show
        self._suffix = ".partial" if (folder / "policy").is_dir() else ""
        self._begun = False
        console = Console(file=sys.stderr)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        self._task = self._bar.add_task(title, total=steps) if self._bar else None

    def __enter__(self) -> RunLog:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None and self._suffix:
            for name in LOGS:
                (self.folder / name).unlink(missing_ok=True)
                if (partial := self.folder / (name + self._suffix)).exists():
                    os.replace(partial, self.folder / name)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line of metrics; a value that is not a number is an error of the loop, not data."""
        wrong = [name for name, value in values.items() if not math.isfinite(value)]
        if wrong:
            raise FloatingPointError(f"step {step}: {', '.join(wrong)} is not finite")
        self._append("metrics.jsonl", {"step": step, **values})
        line = " ".join(f"{name} {values[name]:.3g}" for name in self.show if name in values)
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step + 1, description=f"{self.title} {line}")
        elif step == self.steps - 1 or step % max(1, self.steps // 10) == 0:
            print(f"{self.title}: {step + 1}/{self.steps} {line}", file=sys.stderr, flush=True)

    def sample(self, record: Mapping[str, Any]) -> None:
        """Append one token strip (see docs/data.md, samples.jsonl)."""
        self._append("samples.jsonl", record)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if not self._begun:
            self._begun = True
            for earlier in LOGS:
                (self.folder / (earlier + self._suffix)).unlink(missing_ok=True)
        with (self.folder / (name + self._suffix)).open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record, ensure_ascii=False) + "\n")


def save_policy(policy: Policy, folder: Path) -> None:
    """Write a policy beside its place, then move it there: a crash never leaves half a model under the name."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    policy.save(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators."""
    random.seed(seed)
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
