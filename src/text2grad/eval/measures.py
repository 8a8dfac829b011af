"""How finished answers are measured: by the scores of their task, by their tests, and by models that read texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from text2grad.critics.program import Attempt, run_attempts
from text2grad.eval.metrics import mean
from text2grad.eval.texts import Figure, no_bert_figures, text_figures
from text2grad.feedback import Example
from text2grad.sandbox import NO_VERDICT, Runner, Verdict
from text2grad.tasks.base import Task

if TYPE_CHECKING:
    from text2grad.eval.bertscore import Encoder
    from text2grad.policy.model import Policy

Row = dict[str, Any]
"""One answer: `id`, `response`, its `scores` by name; of a program that was run, `outcome` and `tier` too."""
Measure = Callable[[Sequence[Example], Sequence[str]], list[Row]]
"""Answers -> what is known of each, without its id and response."""


class TextMeasures:
    """What texts are measured by: always ROUGE and BLEU, and by the models that the settings name."""

    def __init__(self, encoder: Encoder | None, reader: Policy | None, read_by: str, batch_size: int) -> None:
        self._encoder, self._reader = encoder, reader
        self._read_by, self._batch_size = read_by, batch_size

    @property
    def named(self) -> dict[str, str]:
        """The models that measure, by figure."""
        found = {"bertscore": self._encoder.name} if self._encoder else {}
        return found | ({"perplexity_of": self._read_by} if self._reader else {})

    def __call__(self, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, Figure]:
        """All figures of texts, each against the reference of its example; None where no model measures."""
        references = [example.reference for example in examples]
        found = text_figures(references, texts)
        if self._encoder:
            from text2grad.eval.bertscore import bert_figures

            found |= bert_figures(self._encoder, references, texts)
        else:
            found |= no_bert_figures()
        return found | {"perplexity": self.perplexity(examples, texts)}

    def perplexity(self, examples: Sequence[Example], texts: Sequence[str]) -> float | None:
        """Of texts given their prompts, under the model that reads; None without one."""
        if self._reader is None:
            return None
        from text2grad.eval.perplexity import perplexity

        return perplexity(self._reader, examples, texts, self._batch_size)


@dataclass(frozen=True)
class TaskMeasure:
    """How answers are measured: by running their tests where they have some, else by the task's own scores."""

    task: Task
    runner: Runner

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Row]:
        """What is known of each answer."""
        attempts = [Attempt(*pair) for pair in zip(examples, responses, strict=True)]
        verdicts = iter(run_attempts(self.runner, [each for each in attempts if each.tests]))
        rows: list[Row] = []
        for each in attempts:
            if not each.tests:
                rows.append({"scores": self.task.scores(each.example, each.response)})
                continue
            verdict = next(verdicts)
            passed = passed_or_none(verdict, each.example)
            scores = {} if passed is None else {"pass": float(passed)}
            rows.append({"scores": scores, **verdict.facts})
        return rows


def passed_or_none(verdict: Verdict, example: Example) -> bool | None:
    """Return whether a program passed; None only where the tests give no verdict on the reference either.

    The verdict must come from a run that also had the reference (`Runner.run_all`).
    """
    return None if verdict.outcome in NO_VERDICT and example.reference else verdict.passed


def measure_with(task: Task, runner: Runner) -> Measure:
    """The measure of a task."""
    return TaskMeasure(task, runner)


def word_figures(
    measure: TextMeasures | None, examples: Sequence[Example], texts: Sequence[str]
) -> dict[str, float]:
    """The figures of answers in words, of those whose prompt has a reference in words; none of programs."""
    pairs = [
        (example, text)
        for example, text in zip(examples, texts, strict=True)
        if example.reference.strip() and "tests" not in example.meta
    ]
    if measure is None or not pairs:
        return {}
    found = measure([example for example, _ in pairs], [text for _, text in pairs])
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
