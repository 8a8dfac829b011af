"""Measure finished answers by the scores of their task and by their tests. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.critics.program import Attempt, run_attempts
from text2grad.errors import UserError
from text2grad.eval.metrics import mean
from text2grad.eval.texts import text_figures
from text2grad.feedback import Example
from text2grad.sandbox import NO_VERDICT, Runner, Verdict
from text2grad.tasks.base import Task

Row = dict[str, Any]
"""One answer: `id`, `response`, `scores` by name; for a program also `outcome` and `tier`."""


@dataclass(frozen=True)
class TaskMeasure:
    """Measures answers by running their tests, or by the task's scores if they have no tests."""

    task: Task
    runner: Runner

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Row]:
        """Measure every answer; the rows have no id and no response yet."""
        attempts = [Attempt(*pair) for pair in zip(examples, responses, strict=True)]
        verdicts = iter(run_attempts(self.runner, [attempt for attempt in attempts if attempt.tests]))
        rows: list[Row] = []
        for attempt in attempts:
            if not attempt.tests:
                rows.append({"scores": self._scores(attempt)})
                continue
            verdict = next(verdicts)
            passed = passed_or_none(verdict, attempt.example)
            scores = {} if passed is None else {"pass": float(passed)}
            rows.append({"scores": scores, **verdict.facts})
        return rows

    def _scores(self, attempt: Attempt) -> dict[str, float]:
        """Return the task's scores of an answer.

        Raises:
            UserError: a score is not a number from 0 to 1.
        """
        scores = self.task.scores(attempt.example, attempt.response)
        for name, score in scores.items():
            if not (isinstance(score, int | float) and 0 <= score <= 1):
                task = type(self.task).__name__
                problem = f"{task}.scores returned {name} = {score!r} for {attempt.example.id!r}"
                raise UserError(problem, "a score is a number from 0 to 1, higher is better")
        return scores


def passed_or_none(verdict: Verdict, example: Example) -> bool | None:
    """Return True if a program passed; None if the tests give no verdict on the reference either.

    The verdict must come from a run with the reference (`Runner.run_all`).
    """
    return None if verdict.outcome in NO_VERDICT and example.reference else verdict.passed


def word_figures(examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
    """Return `text_figures` over the answers with a reference, except programs."""
    pairs = [
        (example.reference, text)
        for example, text in zip(examples, texts, strict=True)
        if example.reference.strip() and "tests" not in example.meta
    ]
    if not pairs:
        return {}
    figures = text_figures([reference for reference, _ in pairs], [text for _, text in pairs])
    return {name: value for name, value in figures.items() if isinstance(value, float)}


def by_problem(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the mean scores of the answers to each problem, by its id."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["id"], []).append(row)
    return {problem: mean_scores(answers) for problem, answers in groups.items()}


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of every score over the answers that have it, in the order of the task."""
    names = dict.fromkeys(name for row in rows for name in row["scores"])
    return {name: mean([row["scores"][name] for row in rows if name in row["scores"]]) for name in names}
