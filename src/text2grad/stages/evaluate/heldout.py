"""The held-out curve of a run (`ppo.heldout_every`), and the selection of its best policy.

The best policy has the highest main measure of greedy answers. Ties go to the earliest, and the
policy before training counts too. Until the run ends it is in `best/<steps>`. A resumed run may
repeat steps that were measured after its checkpoint, so the best policy up to each checkpoint is
kept.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.durable.checkpoint import oldest_step
from text2grad.durable.run import CHECKPOINTS, save_policy
from text2grad.durable.state import preserve_randomness
from text2grad.errors import UserError
from text2grad.eval.measures import TaskMeasure, mean_scores
from text2grad.policy.files.manifest import MANIFEST
from text2grad.policy.model import Policy
from text2grad.stages.evaluate.policy import Exam, evaluate_policy
from text2grad.stages.run_folder import CHOICE, main_measure, read_json, write_json

WAYS = ("greedy", "sampled")
BEST, MEASURED = "best", "measured.json"


@dataclass
class HeldoutCurve:
    """The measurements of a policy every `every` steps, with the best policy so far on disk."""

    policy: Policy
    exam: Exam
    folder: Path
    every: int
    steps: int
    measure: str = ""
    values: dict[int, float] = field(default_factory=dict)

    @staticmethod
    def of(config: Config, measure: TaskMeasure, policy: Policy, folder: Path) -> HeldoutCurve | None:
        """Return the curve of a configuration; None without `ppo.heldout_every`.

        Raises:
            UserError: there are no held-out prompts.
        """
        if config.ppo.heldout_every is None:
            return None
        heldout = measure.task.examples("heldout")[: config.evaluate.limit]
        if not heldout:
            cure = "raise task.heldout_share, or remove ppo.heldout_every"
            raise UserError("no held-out prompts to measure on", cure)
        exam = Exam(heldout, measure, config.generation, config.evaluate.samples, config.run.seed)
        return HeldoutCurve(policy, exam, folder, config.ppo.heldout_every, config.ppo.steps)

    def begin(self, step: int) -> None:
        """Measure the policy before the first step, or read a resumed run's values up to `step`."""
        if step == 0:
            shutil.rmtree(self.folder / BEST, ignore_errors=True)
            self._take(0)
        elif (file := self.folder / BEST / MEASURED).is_file():
            curve = read_json(file)
            self.measure = curve["measure"]
            values = {int(at): value for at, value in curve["values"].items() if int(at) <= step}
            self.values = values if (self.folder / BEST / str(best_of(values))).is_dir() else {}

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        """Add `heldout_greedy_*` and `heldout_sampled_*` to every `every`th and the last step.

        The main measure of the task is computed as by `evaluate`.
        """
        if (step + 1) % self.every == 0 or step + 1 == self.steps:
            metrics.update(self._take(step + 1))

    def _take(self, at: int) -> dict[str, float]:
        """Measure the policy after `at` steps, write it if it is the best, and return the metrics.

        Raises:
            UserError: the task has no measure.
        """
        started = time.perf_counter()
        with preserve_randomness():
            results = evaluate_policy(self.policy, self.exam)
        seconds = time.perf_counter() - started
        greedy = mean_scores(results.answers)  # the task's measures, without length and variety
        if not greedy:
            problem = f"task {self.exam.measure.task.name!r} has no measure to choose a policy by"
            raise UserError(problem, "remove ppo.heldout_every")
        self.measure = self.measure or main_measure(greedy)
        value = greedy[self.measure]
        if not self.values or value > max(self.values.values()):
            save_policy(self.policy, self.folder / BEST / str(at))
        self.values[at] = value
        write_json(self.folder / BEST / MEASURED, {"measure": self.measure, "values": self.values})
        self._prune()
        names = [f"{way}_{self.measure}" for way in WAYS]
        figures = {f"heldout_{name}": results.summary.figures[name] for name in names}
        return {**figures, "seconds_heldout": seconds}

    def _prune(self) -> None:
        """Remove policies that are not the best up to any checkpoint."""
        resumable = oldest_step(self.folder / CHECKPOINTS, self.steps)
        ends = {max(at, resumable) for at in self.values}
        needed = {str(best_of({at: self.values[at] for at in self.values if at <= end})) for end in ends}
        for path in (self.folder / BEST).iterdir():
            if path.is_dir() and path.name not in needed:
                shutil.rmtree(path)

    def write(self, folder: Path) -> None:
        """Copy the best policy to a new folder, with a note on its selection."""
        best, last = best_of(self.values), max(self.values)
        shutil.copytree(self.folder / BEST / str(best), folder, ignore=shutil.ignore_patterns(MANIFEST))
        choice: dict[str, Any] = {
            "step": best,
            "steps": self.steps,
            "measure": f"greedy {self.measure}",
            "prompts": len(self.exam.prompts),
            "value": max(self.values.values()),
            "start": self.values.get(0),
            "last": self.values[last],
        }
        write_json(folder / CHOICE, choice)

    def end(self) -> None:
        """Remove the best policy and the measurements."""
        shutil.rmtree(self.folder / BEST, ignore_errors=True)


def best_of(values: Mapping[int, float]) -> int | None:
    """Return the first step with the highest value; None without steps."""
    return min(values, key=lambda at: (-values[at], at), default=None)
