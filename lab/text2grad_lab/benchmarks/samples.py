"""The command `samples`: pass@k of programs in EvalPlus's and HumanEval's format, without torch.

A line is {"task_id", "solution"} (a program, fenced or not) or {"task_id", "completion"} (the exact
text that follows the prompt).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import comb
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.critics.program import Attempt
from text2grad.data.files import Row, bad_record, load_rows
from text2grad.errors import UserError
from text2grad.eval.measures import passed_or_none
from text2grad.feedback import Example, Record
from text2grad.jsonl import reading, write_jsonl
from text2grad.sandbox import Runner, Verdict
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import make_runner
from text2grad.tasks.base import load_task

KS = (1, 5, 10, 100)
PATIENCE = 5
"""The factor on the time limit when a sample that timed out runs again: the machine may be busy."""


class SampleResult(Record):
    """The result of one sample.

    `passed` is None if the tests give no verdict even on the reference; `tier` is empty if nothing
    was run.
    """

    task_id: str
    sample: int
    outcome: str
    passed: bool | None
    error: str
    tier: str


@dataclass(frozen=True, kw_only=True)
class SamplesSummary(Summary):
    """pass@k of a file of samples (`sample_summary`), and the file with the result of each."""

    figures: Mapping[str, Any] = inlined()
    out: str


def run_samples(config: Config, samples: Path) -> SamplesSummary:
    """Measure pass@k of a file of samples; write the results next to the file."""
    with reading(samples):
        samples.open("rb").close()  # fail before a data set is downloaded
    problems = load_task(config.task).examples("heldout")
    if not problems or not problems[0].meta.get("tests"):
        cure = "--task text2grad_lab.benchmarks.programs:HumanEval"
        raise UserError(f"task {config.task.name!r} has no held-out problems with tests", cure)
    sandbox = config.sandbox.model_copy(update={"seconds": PATIENCE * config.sandbox.seconds})
    with make_runner(config.sandbox) as runner, make_runner(sandbox) as patient:
        results = judge_samples(samples, problems, runner, patient)
    out = samples.with_name(f"{samples.name.partition('.jsonl')[0]}_results.jsonl")
    write_jsonl(out, results)
    return SamplesSummary(figures=sample_summary(results, problems), out=str(out))


def judge_samples(
    samples: Path, examples: Sequence[Example], runner: Runner, patient: Runner
) -> list[SampleResult]:
    """Run every sample of a file against the tests of its task, in the order of the file.

    A program that exceeds the time limit of `runner` is run once more by `patient`.

    Raises:
        UserError: the file cannot be read, a line is not a sample, or a task is unknown.
    """
    problems = {_key(example.id): example for example in examples}
    jobs = [_job(row, number, problems, samples) for number, row in enumerate(load_rows(str(samples)), start=1)]
    verdicts = _run(runner, jobs)
    late = [number for number, verdict in enumerate(verdicts) if verdict.outcome == "timeout"]
    for number, verdict in zip(late, _run(patient, [jobs[number] for number in late]), strict=True):
        verdicts[number] = verdict
    numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
    return [
        SampleResult(
            task_id=example.id,
            sample=next(numbers[example.id]),
            outcome=verdict.outcome,
            passed=passed_or_none(verdict, example),
            error=verdict.error or next((test.error for test in verdict.results if not test.passed), ""),
            tier=verdict.tier or "",
        )
        for (example, _), verdict in zip(jobs, verdicts, strict=True)
    ]


def _run(runner: Runner, jobs: Sequence[tuple[Example, str]]) -> list[Verdict]:
    programs = [(program, str(example.meta["tests"])) for example, program in jobs]
    return runner.run_all(programs, references=[Attempt(example, "").reference for example, _ in jobs])


def sample_summary(results: Sequence[SampleResult], examples: Sequence[Example]) -> dict[str, Any]:
    """Return pass@k over all tasks (unbiased; Chen et al. 2021) and counts.

    A task without samples counts as failed, so that leaving out hard tasks does not help. Samples
    without a verdict are left out and counted in `failed_records` if the reference has no verdict
    either. pass@k is given for those k of `KS` that no task with samples falls short of.

    Returns:
        `pass@1` and others; `passed` and `total`: samples with a verdict, and a failed one for each
        missing task; `tasks`, `missing`: tasks of the data set, and those without a sample;
        `outcomes`: samples by outcome.
    """
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        if result.passed is not None:
            verdicts[result.task_id].append(result.passed)
    missing = len({example.id for example in examples} - {result.task_id for result in results})
    fewest = min(map(len, verdicts.values()), default=0)
    chances = {
        k: sum(pass_at_k(len(passed), sum(passed), k) for passed in verdicts.values())
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


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the probability that at least one of k programs passes, if `passed` of `samples` do.

    Unbiased: 1 - C(samples - passed, k) / C(samples, k) (Chen et al. 2021, section 2.1).

    Raises:
        ValueError: unless 0 <= passed <= samples and 1 <= k <= samples.
    """
    if not 0 <= passed <= samples:
        raise ValueError(f"{passed} of {samples} samples cannot have passed")
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs between 1 and {samples} samples to draw from")
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def _key(task_id: str) -> str:
    """Normalise a task id: `Mbpp/2`, `mbpp-2`, `MBPP 2` and `2` are the same task."""
    key = re.sub(r"\W+", "-", task_id).lower()
    return f"mbpp-{key}" if key.isdigit() else key


def _job(row: Row, number: int, problems: Mapping[str, Example], samples: Path) -> tuple[Example, str]:
    """Return the problem that a row answers, and its program."""
    if not isinstance(row.get("task_id"), str | int):
        raise bad_record(samples, number, ValueError("no 'task_id'"))
    example = problems.get(_key(str(row["task_id"])))
    if example is None:
        cure = f"the task's ids look like {next(iter(problems.values())).id!r}; check --task and --task.data"
        raise UserError(f"{samples}: record {number}: unknown task {row['task_id']!r}", cure)
    if isinstance(row.get("completion"), str) and "solution" not in row:
        return example, f"{example.meta.get('completes', '')}{row['completion']}"
    if not isinstance(row.get("solution"), str):
        raise bad_record(samples, number, ValueError("neither 'solution' nor 'completion' holds text"))
    return example, Attempt(example, row["solution"]).program.code
