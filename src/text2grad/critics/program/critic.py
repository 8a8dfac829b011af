"""Unit tests as a critic: run the program, name the failed test, and mark the faulty lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from pydantic import Field

from text2grad.critics.program.case import Attempt, Case, run_attempts
from text2grad.critics.program.critique import brief_critique, full_critique, operands_text
from text2grad.critics.spec import CriticSpec, Need
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Overlap, Source, Span
from text2grad.sandbox import NO_VERDICT, Gate, Runner, Verdict, clean, stub_gate
from text2grad.settings import Settings

WEAK_TESTS = "weak_tests"
MAX_OUTPUT = 2000
"""Characters of the failing tests' output in a record."""
REPAIRS = 40
"""Small edits of a program to try when locating a fault without a reference."""


class ProgramSettings(Settings):
    """The program critic: unit tests."""

    brief: bool = Field(
        default=False,
        description="leave out inputs and evidence, which a small reward model cannot learn to predict",
    )
    gate: bool = Field(default=True, description="give no verdict if a stub program passes the tests too")


class ProgramCritic:
    """Judges a response by the tests in `example.meta["tests"]` and by `example.reference`.

    `runner` is the sandbox that runs the programs. The verdict is +1 if all tests pass and -1
    otherwise. If the reference resembles the program, the smallest differing expression is marked.
    Otherwise tracebacks, coverage and up to `repairs` small edits, run against the tests, locate
    the fault. The critique names its evidence.

    With `brief`, the critique does not name the inputs of the failing test, and the program runs
    only once: a reward model learns to predict such critiques without running the program. With
    `gate`, tests that a stub passes, or that the reference fails, give a `Failure` for every
    response (outcome `weak_tests`).
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

        Equal responses to one example, which policies often give, are judged once.
        """
        pairs = list(zip(examples, responses, strict=True))
        keys = [
            (example.id, str(example.meta.get("tests", "")), example.reference, response)
            for example, response in pairs
        ]
        attempts = {key: Attempt(*pair) for key, pair in zip(keys, pairs, strict=True)}
        verdicts = iter(_run_if_possible(self.runner, list(attempts.values()), coverage=not self.brief))
        judgements = {key: self._judge(attempt, next(verdicts)) for key, attempt in attempts.items()}
        return [judgements[key] for key in keys]

    def _judge(self, attempt: Attempt, verdict: Verdict | None) -> Judgement:
        if verdict is None:
            return _judge_without_run(attempt)
        meta = verdict.facts if self.brief else outcome_meta(verdict)
        reason = check_tests(self.runner, attempt).reason if self.gate else ""
        if reason:
            meta, reason = {**meta, "outcome": WEAK_TESTS}, f"{WEAK_TESTS}: {reason}"
        elif verdict.outcome in NO_VERDICT:
            reason = f"{verdict.outcome}: {verdict.error}"
        if reason:
            return Failure(kind="unsupported", message=f"{attempt.example.id}: {reason}", meta=meta)
        case = Case(attempt, verdict)
        if self.brief:
            critique = brief_critique(case)
        else:
            critique = full_critique(case, partial(self._run_programs, attempt), self.repairs)
        return critique.model_copy(update={"meta": {**meta, **critique.meta}})

    def _run_programs(self, attempt: Attempt, programs: Sequence[str]) -> list[Verdict]:
        return self.runner.run_all([(program, attempt.tests) for program in programs], coverage=False)


def check_tests(runner: Runner, attempt: Attempt) -> Gate:
    """Check that the reference passes the tests and that no stub does."""
    return stub_gate(runner, attempt.tests, *attempt.names, reference=attempt.reference)


def _run_if_possible(
    runner: Runner, attempts: Sequence[Attempt], coverage: bool | None = None
) -> list[Verdict | None]:
    """Return the verdict of each attempt; None without tests or program."""
    verdicts = iter(run_attempts(runner, [attempt for attempt in attempts if attempt.can_run], coverage))
    return [next(verdicts) if attempt.can_run else None for attempt in attempts]


def run_outcomes(runner: Runner, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, str]]:
    """Run the tests on each response; return its `outcome_meta`, or {} without tests or program."""
    attempts = [Attempt(*pair) for pair in zip(examples, responses, strict=True)]
    return [outcome_meta(verdict) if verdict else {} for verdict in _run_if_possible(runner, attempts)]


def outcome_meta(verdict: Verdict) -> dict[str, str]:
    """Return a verdict as record `meta`: `outcome`, `tier`, and `test_output` of failed tests."""
    failed = [result for result in verdict.results if not result.passed]
    lines = [verdict.error] if verdict.error else []
    lines += [f"{result.name}: {operands_text(result) or result.error}" for result in failed]
    text = "\n".join(lines)
    output = text if len(text) <= MAX_OUTPUT else f"{text[:MAX_OUTPUT]} [...]"
    return {**verdict.facts, **({"test_output": clean(output)} if output.strip() else {})}


def _judge_without_run(attempt: Attempt) -> Judgement:
    """Return a failure without tests; without a program, score -1 with the response marked poor."""
    if not attempt.tests:
        message = f"{attempt.example.id}: no tests in meta['tests']"
        return Failure(kind="unsupported", message=message, meta={"outcome": "no_tests"})
    text = attempt.response.strip()
    start = attempt.response.find(text)
    spans = (Span(start=start, end=start + len(text), label=-1, text=text, reason="no program"),) if text else ()
    return Critique(text="There is no program.", spans=spans, score=-1.0, meta={"outcome": "no_program"})


def outcome_counts(records: Iterable[Feedback]) -> dict[str, int]:
    """Count the outcomes of the records, most frequent first."""
    return dict(Counter(record.meta["outcome"] for record in records if "outcome" in record.meta).most_common())


PROGRAM = CriticSpec(
    "program",
    make=lambda settings, ready: ProgramCritic(ready.runner, **settings.model_dump()),
    settings=ProgramSettings,
    needs=Need("tests", lambda example: bool(example.meta.get("tests"))),
    reads=("sandbox.seconds", "sandbox.tier"),
    about="runs tests",
)
