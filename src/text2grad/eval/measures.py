"""How finished answers are measured: by the scores of their task, and by their tests. No torch."""

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
"""One answer: `id`, `response`, its `scores` by name; of a program that was run, `outcome` and
`tier` too."""


@dataclass(frozen=True)
class TaskMeasure:
    """How answers are measured: by running their tests where they have some, else by the task's own
    scores."""

    task: Task
    runner: Runner

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Row]:
        """Measure each answer; a row has neither its id nor its response."""
        attempts = [Attempt(*pair) for pair in zip(examples, responses, strict=True)]
        verdicts = iter(run_attempts(self.runner, [each for each in attempts if each.tests]))
        rows: list[Row] = []
        for each in attempts:
            if not each.tests:
                rows.append({"scores": self._scores(each)})
                continue
            verdict = next(verdicts)
            passed = passed_or_none(verdict, each.example)
            scores = {} if passed is None else {"pass": float(passed)}
            rows.append({"scores": scores, **verdict.facts})
        return rows

    def _scores(self, attempt: Attempt) -> dict[str, float]:
        """The task's own scores of an answer.

        Raises:
            UserError: one is not a number from 0 to 1.
        """
        scores = self.task.scores(attempt.example, attempt.response)
        for name, score in scores.items():
            if not (isinstance(score, int | float) and 0 <= score <= 1):
                problem = f"{type(self.task).__name__}.scores gave {name} = {score!r} for {attempt.example.id!r}"
                raise UserError(problem, "a score is a number from 0 to 1, higher is better")
        return scores


def passed_or_none(verdict: Verdict, example: Example) -> bool | None:
    """Return whether a program passed; None only where the tests give no verdict on the reference
    either.

    The verdict must come from a run that also had the reference (`Runner.run_all`).
    """
    return None if verdict.outcome in NO_VERDICT and example.reference else verdict.passed


def word_figures(examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
    """The figures of answers in words, of those whose prompt has a reference in words; none of
    programs."""
    pairs = [
        (example.reference, text)
        for example, text in zip(examples, texts, strict=True)
        if example.reference.strip() and "tests" not in example.meta
    ]
    if not pairs:
        return {}
    found = text_figures([reference for reference, _ in pairs], [text for _, text in pairs])
    return {name: value for name, value in found.items() if isinstance(value, float)}


def by_problem(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The mean of every measure over the answers to each problem."""
    answers: dict[str, list[Row]] = {}
    for row in rows:
        answers.setdefault(row["id"], []).append(row)
    return {problem: mean_scores(of_problem) for problem, of_problem in answers.items()}


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Mean of every measure over the answers that have it, in the order of the task."""
    names = dict.fromkeys(name for row in rows for name in row["scores"])
    return {name: mean([row["scores"][name] for row in rows if name in row["scores"]]) for name in names}
