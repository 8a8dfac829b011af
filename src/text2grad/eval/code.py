"""pass@k of samples made by any system, in the format of EvalPlus's and HumanEval's `samples.jsonl`. No torch.

A line is {"task_id", "solution"} (a whole program, fenced or not) or {"task_id", "completion"} (what follows the
exact text that follows the question's beginning of a program).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from text2grad.critics.program import Attempt
from text2grad.data.files import Row, bad_record, load_rows
from text2grad.errors import UserError
from text2grad.eval.metrics import pass_at_k
from text2grad.feedback import Example, Record
from text2grad.sandbox import NO_VERDICT, Runner, Verdict

KS = (1, 5, 10, 100)


class SampleResult(Record):
    """The result of one sample; `passed` is None where the tests give no verdict, not even on the reference. `tier`
    is empty where nothing was run."""

    task_id: str
    sample: int
    outcome: str
    passed: bool | None
    error: str
    tier: str


def judge_samples(
    samples: Path, examples: Sequence[Example], runner: Runner, patient: Runner | None = None
) -> list[SampleResult]:
    """Run every sample of a file against the tests of its task, in the order of the file.

    A program that exceeds the time limit of `runner` is run once more by `patient`, which allows more: on a busy
    machine a correct program may be slow.

    Raises:
        UserError: the file cannot be read, a line is not a sample, or a task is unknown (which).
    """
    rows = load_rows(str(samples))
    known = {_key(example.id): example for example in examples}
    asked = [_task_of(row, number, known, samples) for number, row in enumerate(rows, start=1)]
    jobs = [
        (_program(row, example, number, samples), str(example.meta["tests"]), Attempt(example, "").reference)
        for number, (row, example) in enumerate(zip(rows, asked, strict=True), start=1)
    ]
    numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
    return [
        SampleResult(
            task_id=example.id,
            sample=next(numbers[example.id]),
            outcome=verdict.outcome,
            passed=passed_or_none(verdict, example),
            error=verdict.error or next((each.error for each in verdict.results if not each.passed), ""),
            tier=verdict.tier or "",
        )
        for example, verdict in zip(asked, _verdicts(jobs, runner, patient), strict=True)
    ]


def passed_or_none(verdict: Verdict, example: Example) -> bool | None:
    """Whether a program passed; None only where the tests give no verdict on the reference either.

    The verdict must come from a run that also had the reference (`Runner.run_all`).
    """
    return None if verdict.outcome in NO_VERDICT and example.reference else verdict.passed


_Job = tuple[str, str, str]


def _run(runner: Runner, jobs: Sequence[_Job]) -> list[Verdict]:
    return runner.run_all([job[:2] for job in jobs], references=[job[2] for job in jobs])


def _verdicts(jobs: Sequence[_Job], runner: Runner, patient: Runner | None) -> list[Verdict]:
    verdicts = _run(runner, jobs)
    late = [number for number, verdict in enumerate(verdicts) if verdict.outcome == "timeout"]
    again = _run(patient, [jobs[number] for number in late]) if patient else []
    for number, verdict in zip(late, again, strict=False):
        verdicts[number] = verdict
    return verdicts


def sample_summary(results: Sequence[SampleResult], examples: Sequence[Example]) -> dict[str, Any]:
    """pass@k over all tasks (unbiased; Chen et al. 2021), with the counts behind it.

    A task without a sample is not solved: leaving out what is hard must not raise the figure. A sample without a
    verdict is left out, and counted in `failed_records`, only where the reference has none either. pass@k is given
    for those k of `KS` for which every task with samples has as many.

    Returns:
        `pass@1` and others; `passed` of `total`: samples with a verdict, a missing task counting as one that fails;
        `tasks`, `missing`: tasks of the data set, and those without a sample; `outcomes`: samples by outcome.
    """
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        if result.passed is not None:
            verdicts[result.task_id].append(result.passed)
    tried = {result.task_id for result in results}
    missing = sum(example.id not in tried for example in examples)
    fewest = min(map(len, verdicts.values()), default=0)
    chances = {
        k: sum(pass_at_k(len(each), sum(each), k) for each in verdicts.values())
        for k in KS
        if k <= fewest or k == 1
    }
    return {
        **{f"pass@{k}": chance / max(1, len(verdicts) + missing) for k, chance in chances.items()},
        "passed": sum(map(sum, verdicts.values())),
        "total": sum(map(len, verdicts.values())) + missing,
        "tier": "/".join(sorted({result.tier for result in results} - {""})),
        "tasks": len(examples),
        "missing": missing,
        "failed_records": sum(result.passed is None for result in results),
        "outcomes": dict(Counter(result.outcome for result in results).most_common()),
    }


def _key(task_id: str) -> str:
    """`Mbpp/2`, `mbpp-2` and `MBPP 2` are one task; a bare number is one of MBPP's."""
    key = re.sub(r"\W+", "-", task_id).lower()
    return f"mbpp-{key}" if key.isdigit() else key


def _task_of(row: Row, number: int, known: Mapping[str, Example], samples: Path) -> Example:
    if not isinstance(row.get("task_id"), str | int):
        raise bad_record(samples, number, ValueError("no 'task_id'"))
    example = known.get(_key(str(row["task_id"])))
    if example is None:
        first = next(iter(known.values())).id if known else "none"
        raise UserError(
            f"{samples}: record {number}: unknown task {row['task_id']!r}",
            f"the task's ids look like {first!r}; --task and --task.data name the data set",
        )
    return example


def _program(row: Row, example: Example, number: int, samples: Path) -> str:
    if isinstance(row.get("completion"), str) and "solution" not in row:
        return f"{example.meta.get('completes', '')}{row['completion']}"
    if not isinstance(row.get("solution"), str):
        raise bad_record(samples, number, ValueError("neither 'solution' nor 'completion' holds text"))
    return Attempt(example, row["solution"]).program.code
