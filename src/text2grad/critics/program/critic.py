"""Unit tests as a critic: run the program, say which test failed, and point at the lines to
blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from pydantic import Field

from text2grad.critics.program.case import Attempt, Case, run_attempts
from text2grad.critics.program.critique import brief_critique, full_critique, operands_text
from text2grad.critics.spec import CriticSpec, Need
from text2grad.feedback import (
    Critique,
    Example,
    Failure,
    Feedback,
    Judgement,
    Overlap,
    Source,
    Span,
)
from text2grad.sandbox import NO_VERDICT, Gate, Runner, Verdict, clean, stub_gate
from text2grad.settings import Settings

WEAK_TESTS = "weak_tests"
LONGEST_OUTPUT = 2000
"""Maximum characters kept of the failing tests' output."""


REPAIRS = 40
"""Small edits of a program that are tried to locate a fault without a reference."""


class ProgramSettings(Settings):
    """The program critic: unit tests."""

    brief: bool = Field(
        default=False,
        description="leave out inputs and evidence, which a small reward model cannot learn to predict",
    )
    gate: bool = Field(
        default=True, description="no verdict if the tests also pass for a program that solves nothing"
    )


class ProgramCritic:
    """Judges a response by the tests in `example.meta["tests"]` and the program in
    `example.reference`.

    The verdict is +1 when all tests pass and -1 otherwise. Where a reference resembles the program,
    the blame is the smallest expression that differs from it; otherwise it is what tracebacks,
    coverage and at most `repairs` small edits, each run against the tests, point at. The critique
    says which evidence was used.

    With `brief`, the critique names what is wrong but not the inputs of the failing test, and
    nothing is run a second time: a reward model learns to predict it without running the program.
    With `gate`, a task whose tests pass for a program that solves nothing, or fail for its own
    reference, gives a `Failure` for every response (outcome `weak_tests`).

    Args:
        runner: the sandbox that runs the programs.
        brief: name what is wrong, without the inputs of the failing test.
        repairs: how many small edits are tried, at most.
        gate: whether the tests themselves are tested.
    """

    overlap: Overlap = "helps"

    def __init__(self, runner: Runner, brief: bool = False, repairs: int = REPAIRS, gate: bool = False) -> None:
        self.runner = runner
        self.brief = brief
        self.repairs = repairs
        self.gate = gate
        self.source = Source(kind="program", model="unit tests", prompt_version="2" if brief else "3")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Run every response; a task without usable tests gives a `Failure`, not a verdict.

        A policy repeats itself: equal responses to one example are judged once.
        """
        pairs = list(zip(examples, responses, strict=True))
        keys = [(each.id, str(each.meta.get("tests", "")), each.reference, said) for each, said in pairs]
        asked = {key: Attempt(*pair) for key, pair in zip(keys, pairs, strict=True)}
        verdicts = iter(_run_some(self.runner, list(asked.values()), coverage=not self.brief))
        judged = {key: self._judge(each, next(verdicts)) for key, each in asked.items()}
        return [judged[key] for key in keys]

    def _judge(self, asked: Attempt, verdict: Verdict | None) -> Judgement:
        if verdict is None:
            return _not_run(asked)
        meta = verdict.facts if self.brief else outcome_meta(verdict)
        reason = admission(self.runner, asked).reason if self.gate else ""
        if reason:
            meta, reason = {**meta, "outcome": WEAK_TESTS}, f"{WEAK_TESTS}: {reason}"
        elif verdict.outcome in NO_VERDICT:
            reason = f"{verdict.outcome}: {verdict.error}"
        if reason:
            return Failure(kind="unsupported", message=f"{asked.example.id}: {reason}", meta=meta)
        case = Case(asked, verdict)
        found = brief_critique(case) if self.brief else full_critique(case, partial(self._try, asked), self.repairs)
        return found.model_copy(update={"meta": {**meta, **found.meta}})

    def _try(self, asked: Attempt, programs: Sequence[str]) -> list[Verdict]:
        return self.runner.run_all([(each, asked.tests) for each in programs], coverage=False)


def admission(runner: Runner, asked: Attempt) -> Gate:
    """Gate of a task's tests: its reference passes them, and no stub of a program does."""
    return stub_gate(runner, asked.tests, *asked.names, reference=asked.reference)


def _run_some(runner: Runner, attempts: Sequence[Attempt], coverage: bool | None = None) -> list[Verdict | None]:
    """What the tests say of each attempt; None where there is nothing to run."""
    found = iter(run_attempts(runner, [each for each in attempts if each.can_run], coverage))
    return [next(found) if each.can_run else None for each in attempts]


def run_outcomes(runner: Runner, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, str]]:
    """The result of running the tests on each response (`outcome_meta`); nothing where there is
    nothing to run."""
    attempts = [Attempt(*pair) for pair in zip(examples, responses, strict=True)]
    return [outcome_meta(verdict) if verdict else {} for verdict in _run_some(runner, attempts)]


def outcome_meta(verdict: Verdict) -> dict[str, str]:
    """The result of a run, for the `meta` of its record: `outcome`, `tier`, `test_output` where
    tests failed."""
    wrong = [result for result in verdict.results if not result.passed]
    failed = [f"{result.name}: {operands_text(result) or result.error}" for result in wrong]
    shown = "\n".join([*([verdict.error] if verdict.error else []), *failed])
    output = shown if len(shown) <= LONGEST_OUTPUT else f"{shown[:LONGEST_OUTPUT]} [...]"
    return {**verdict.facts, **({"test_output": clean(output)} if output.strip() else {})}


def _not_run(asked: Attempt) -> Judgement:
    """Without tests: a failure. Without a program: score -1, and the whole response is poor."""
    if not asked.tests:
        message = f"{asked.example.id}: no tests in meta['tests']"
        return Failure(kind="unsupported", message=message, meta={"outcome": "no_tests"})
    text = asked.response.strip()
    start = asked.response.find(text)
    spans = (Span(start=start, end=start + len(text), label=-1, text=text, reason="no program"),) if text else ()
    return Critique(text="There is no program.", spans=spans, score=-1.0, meta={"outcome": "no_program"})


def outcome_counts(records: Iterable[Feedback]) -> dict[str, int]:
    """How often each outcome of a run occurs in the records, most frequent first."""
    return dict(Counter(record.meta["outcome"] for record in records if "outcome" in record.meta).most_common())


PROGRAM = CriticSpec(
    "program",
    make=lambda settings, ready: ProgramCritic(ready.runner, **settings.model_dump()),
    settings=ProgramSettings,
    needs=Need("tests", lambda example: bool(example.meta.get("tests"))),
    reads=("sandbox.seconds", "sandbox.tier"),
    about="runs tests",
)
