"""Measure the rate of the sandbox, and its resistance to hostile programs, in both tiers.

The benchmark runs trivial jobs (two tests of a three-line function) on as many workers as there are
cores; then 1,000 jobs on one worker, comparing memory and processes of its server before and after;
then the programs in tests/codeverdict/data: hostile ones (hostile.txt), ones that forge a verdict
(forging.txt, families.txt), right ones (right_programs.txt), weak tests (weak.txt), and a search of
the memory of programs for secrets.

    python benchmarks/sandbox.py [--jobs 1000] [--row 1000] [--workers 2]

The last line of stdout is one JSON object. Targets on two idle cores: namespace_jobs_per_second at
least 80, landlock_jobs_per_second at least 200, hostile_passed 0, hostile_escaped 0, forging_passed
0 (and 0 forging programs without a verdict, printed on stderr), right_wrong 0, right_unsupported at
most 15 % of what was tried, passed_here_failed_in_pytest 0, weak_tests_gated at least 95 % of
weak_tests, secrets_found_in_memory 0, scripts_wrong 0, lent_classes 0, leftover_processes 0,
grown_kib (of a server that did 1,000 jobs) about 0. Figures of programs combine both
tiers, and numbers of programs are those of the files. On busy cores the processor time of a job in
all its processes and ours (`*_cpu_ms`) is more reliable: a core runs 1000 / that per second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import codeverdict
from codeverdict import NO_VERDICT, Job, Runner, Tier, probe_tiers, stub_gate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "codeverdict"))
from corpus import (
    FAMILIES,
    FORGING,
    HOSTILE,
    RIGHT,
    SCRIPTS,
    WEAK,
    judged,
    lent_classes,
    passes_really,
    secrets_found,
)
from hostile import Machine, below, left_over

CODE = "def f(xs):\n    ys = [x for x in xs if x >= 2]\n    return sum(ys)\n"
TESTS = (
    "from solution import f\ndef test_a():\n    assert f([1, 2, 3]) == 5\ndef test_b():\n    assert f([]) == 0\n"
)
MEMORY_MB = 1024
KEYS: dict[Tier, str] = {"namespaces": "namespace", "landlock": "landlock"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="trivial jobs a tier, as fast as they go")
    parser.add_argument("--row", type=int, default=1000, help="trivial jobs a tier, one after the other")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="programs at a time")
    words = parser.parse_args()
    result: dict[str, Any] = {"hostile_programs": len(HOSTILE), "hostile_passed": 0, "hostile_escaped": 0}
    result |= {"forging_programs": len(FORGING), "forging_passed": 0, "secrets_found_in_memory": 0}
    result |= {"right_programs": len(RIGHT), "right_wrong": 0, "right_unsupported": 0}
    result |= {"leftover_processes": 0, "grown_kib": 0, "lines": lines(), "lent_classes": 0}
    result |= {"scripts": len(SCRIPTS), "scripts_wrong": 0}
    result |= {"families": len(FAMILIES), "passed_here_failed_in_pytest": 0}
    for probe in probe_tiers(MEMORY_MB):
        if not probe.works:
            say(f"{probe.tier}", f"not here: {probe.reason}")
            result[f"{KEYS[probe.tier]}_jobs_per_second"] = None
            continue
        speed, p99, cost = throughput(probe.tier, words.jobs, words.workers)
        result[f"{KEYS[probe.tier]}_jobs_per_second"] = round(speed, 1)
        result["p99_ms"] = max(result.get("p99_ms", 0.0), round(p99, 1))
        result[f"{KEYS[probe.tier]}_cpu_ms"] = round(cost, 1)
        left, grown = in_a_row(probe.tier, words.row)
        result["leftover_processes"] += left
        result["grown_kib"] = max(result["grown_kib"], grown)
        passed, escaped = hostile(probe.tier)
        result["hostile_passed"] += passed
        result["hostile_escaped"] += escaped
        result["forging_passed"] += forging(probe.tier)
        result["passed_here_failed_in_pytest"] += families(probe.tier)
        wrong, unsupported = right(probe.tier)
        result["right_wrong"] += wrong
        result["right_unsupported"] += unsupported
        result["scripts_wrong"] += scripts(probe.tier)
        result["secrets_found_in_memory"] += in_memory(probe.tier)
        result["lent_classes"] += classes(probe.tier)
        say(f"{probe.tier}: jobs a second, {words.workers} workers", f"{speed:.1f}; 99 % within {p99:.1f} ms")
        say(f"{probe.tier}: processor time of a job", f"{cost:.1f} ms")
        say(f"{probe.tier}: after {words.row} jobs in a row", f"{left} processes left, server grew by {grown} KiB")
        say(f"{probe.tier}: hostile programs", f"{passed} of {len(HOSTILE)} passed, {escaped} got out")
    result["weak_tests"], result["weak_tests_gated"] = len(WEAK), gated()
    print(json.dumps(result))


def lines() -> int:
    """Count lines of Python in the package."""
    files = Path(codeverdict.__file__).parent.rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def gated() -> int:
    """Return the number of weak tests that the gate detects."""
    with Runner(seconds=10.0, workers=2, memory_mb=512) as runner:
        admitted = [weak.name for weak in WEAK if stub_gate(runner, weak.tests).accepted]
    say("weak tests", f"{len(admitted)} of {len(WEAK)} admitted {admitted}")
    return len(WEAK) - len(admitted)


def say(what: str, found: str) -> None:
    print(f"{what:50} {found}", file=sys.stderr, flush=True)


def throughput(tier: Tier, jobs: int, workers: int) -> tuple[float, float, float]:
    """Return jobs per second, the 99th percentile of job times, and CPU ms per job."""
    with Runner(seconds=10.0, workers=workers, tier=tier) as runner:
        runner.run_all([(f"{CODE}# warm {number}", TESTS) for number in range(4 * workers)])
        began, used = time.perf_counter(), processor_seconds(runner)
        verdicts = runner.run_all([(f"{CODE}# {number}", TESTS) for number in range(jobs)])
        seconds, used = time.perf_counter() - began, processor_seconds(runner) - used
    assert all(verdict.passed for verdict in verdicts)
    times = sorted(verdict.seconds for verdict in verdicts)
    return jobs / seconds, 1000 * times[int(0.99 * (jobs - 1))], 1000 * used / jobs


def processor_seconds(runner: Runner) -> float:
    """Processor time so far of this process, of the runner's servers, and of the processes of their
    ended jobs."""
    ticks = 0
    for started in runner._servers:
        level = {started.process}
        for _ in range(2 if started.tier == "namespaces" else 0):  # bubblewrap, its first process, the server
            level = below(level)
        for process_id in level:
            fields = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def in_a_row(tier: Tier, jobs: int) -> tuple[int, int]:
    """Return leftover processes below the server, and its growth in KiB after many jobs."""
    with Runner(seconds=10.0, tier=tier) as runner:
        runner.run_all([(f"{CODE}# first {number}", TESTS) for number in range(50)])
        [server] = runner._servers
        memory = resident(server.process, tier)
        for number in range(jobs):
            assert runner.submit(Job(f"{CODE}# {number}", TESTS)).result().passed
        return len(left_over(server.process, tier)), resident(server.process, tier) - memory


def resident(process: int, tier: Tier) -> int:
    """Return the memory of the server and its bubblewrap between jobs, in KiB."""
    left_over(process, tier)
    total, level = 0, {process}
    for _ in range(3 if tier == "namespaces" else 1):
        for process_id in level:
            for line in Path(f"/proc/{process_id}/status").read_text(encoding="utf-8").splitlines():
                total += int(line.split()[1]) if line.startswith("VmRSS") else 0
        level = below(level)
    return total


def hostile(tier: Tier) -> tuple[int, int]:
    """Return the number of hostile programs that passed, and that left traces."""
    passed = escaped = 0
    with Runner(seconds=2.0, tier=tier, memory_mb=512) as runner:
        for program in HOSTILE:
            machine = Machine()
            verdict = runner.run(machine.filled_in(program.code), program.tests)
            next_one = runner.run(f"{CODE}# after {program.name}", TESTS)
            passed += verdict.passed
            if (touched := machine.touched()) or not next_one.passed:
                say(
                    f"{tier}: {program.name}",
                    f"touched {touched}; the next one: {next_one.outcome} {next_one.error}",
                )
                escaped += 1
            machine.close()
    return passed, escaped


def forging(tier: Tier) -> int:
    """Return the number of forging programs that passed."""
    with Runner(seconds=2.0, workers=2, tier=tier, memory_mb=512) as runner:
        honest = judged(runner, [program.honest_job() for program in FORGING])
        verdicts = judged(runner, [program.job() for program in FORGING])
    passed = [program.name for program in FORGING if verdicts[program.job()].passed]
    none = [program.name for program in FORGING if verdicts[program.job()].outcome in NO_VERDICT]
    failed = [program.name for program in FORGING if not honest[program.honest_job()].passed]
    say(f"{tier}: forging programs", f"{len(passed)} of {len(FORGING)} passed {passed}")
    say(f"{tier}: forging programs without a verdict", f"{len(none)} {none}")
    say(f"{tier}: honest programs for their tasks", f"{len(failed)} not passed {failed}")
    return len(passed)


def families(tier: Tier) -> int:
    """Count programs of `families.txt` that passed but fail in the real pytest."""
    tested = [family for family in FAMILIES if family.tests]
    with Runner(seconds=2.0, workers=2, tier=tier, memory_mb=512) as runner:
        pairs = [(family.code, family.tests) for family in tested]
        verdicts = runner.run_all(pairs, references=[family.honest for family in tested])
        scripts = [family for family in FAMILIES if not family.tests]
        verdict_of_job = judged(runner, [family.job() for family in scripts])
    passed = [family for family, verdict in zip(tested, verdicts, strict=True) if verdict.passed]
    shaped = [family.name for family in scripts if verdict_of_job[family.job()].passed]
    say(f"{tier}: families", f"{len(passed) + len(shaped)} of {len(FAMILIES)} passed {passed} {shaped}")
    failed = passes_really([(family.code, family.tests) for family in passed]).count(False)
    return failed + len(shaped)


def right(tier: Tier) -> tuple[int, int]:
    """Return the number of right programs that were scored wrong, and that had no score."""
    with Runner(seconds=5.0, workers=2, tier=tier, memory_mb=512) as runner:
        verdicts = judged(runner, [program.job() for program in RIGHT])
    unsupported = [program.name for program in RIGHT if verdicts[program.job()].outcome == "unsupported"]
    wrong = [program.name for program in RIGHT if not verdicts[program.job()].passed]
    wrong = [name for name in wrong if name not in unsupported]
    say(f"{tier}: right programs", f"{len(wrong)} of {len(RIGHT)} wrong {wrong}")
    say(f"{tier}: right programs without a verdict", f"{len(unsupported)} {unsupported}")
    return len(wrong), len(unsupported)


def classes(tier: Tier) -> int:
    """Count Python's own classes in the test process that a program can call."""
    with Runner(seconds=30.0, tier=tier) as runner:
        count = lent_classes(runner)
    say(f"{tier}: classes lent", f"{count}")
    return count


def scripts(tier: Tier) -> int:
    """Count the right scripts that did not pass."""
    with Runner(seconds=5.0, workers=2, tier=tier, memory_mb=512) as runner:
        verdicts = judged(runner, [program.job() for program in SCRIPTS])
    wrong = [program.name for program in SCRIPTS if not verdicts[program.job()].passed]
    say(f"{tier}: scripts", f"{len(wrong)} of {len(SCRIPTS)} wrong {wrong}")
    return len(wrong)


def in_memory(tier: Tier) -> int:
    """Count secrets of tests, expected outputs and an earlier job that a program can find."""
    with Runner(seconds=30.0, tier=tier) as runner:
        found = secrets_found(runner)
    say(f"{tier}: secrets found in memory", f"{found}")
    return found


if __name__ == "__main__":
    main()
