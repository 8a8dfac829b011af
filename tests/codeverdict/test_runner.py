"""The sandbox as a place to run tests: what may stand in a test file, and what each job comes
to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from corpus import sections
from hostile import is_alive

from codeverdict import NotSafeError, Runner, Verdict, launch
from codeverdict import runner as runner_module

ONE = "def f(x):\n    return x + 1\n"
TEST_ONE = "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"


def test_programs_and_test_files_have_the_expected_outcome(runner: Runner) -> None:
    cases = {}
    for title, body in sections("outcomes.txt"):
        name, outcome = title.split(" | ")
        solution, _, tests = body.partition("\n---\n")
        cases[name] = (outcome, solution + "\n", tests)
    unreadable = {"too long": "x" * (10 << 20), "a null byte": "f = 1\0", "too deep": "(" * 10_000}
    cases |= {name: ("broken", code, TEST_ONE) for name, code in unreadable.items()}
    verdicts = {name: runner.run(code, tests) for name, (_, code, tests) in cases.items()}
    assert not {name: it for name, it in verdicts.items() if it.outcome != cases[name][0]}
    assert all(it.error for it in verdicts.values() if it.outcome == "unsupported")


def test_parametrized_cases_are_separate_results(runner: Runner) -> None:
    tests = "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_f(x):\n    assert f(x) == 2\n"
    results = runner.run(ONE, tests).results
    assert [(result.name, result.passed) for result in results] == [("test_f[1]", True), ("test_f[2]", False)]


@pytest.mark.filterwarnings("error")
def test_compiler_warnings_about_tests_are_suppressed(runner: Runner) -> None:
    tests = "from solution import f\ndef test():\n    assert f(1) is 1 and '\\d' == '\\\\d'\n"
    with pytest.raises(SyntaxError):  # what a warning becomes
        compile(tests, "tests", "exec")
    assert runner.run("def f(x):\n    return x\n", tests).passed


def test_tests_that_never_end_are_a_timeout() -> None:
    with Runner(seconds=0.3) as quick:
        assert quick.run(ONE, "while True:\n    pass\n").outcome == "timeout"
        finished = quick.run(ONE, "def test_a():\n    assert f(1) == 2\ndef test_b():\n    while True: pass\n")
        assert (finished.outcome, [each.name for each in finished.results]) == ("timeout", ["test_a"])
        assert quick.run(ONE, TEST_ONE).passed


def test_a_slow_reference_gives_a_program_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "REFERENCE_TIMES", 2.0)
    slow = "import time\nwhile time.process_time() < 0.8:\n    pass\n" + ONE
    with Runner(seconds=0.4) as quick:
        verdicts = quick.run_all([(slow + "# other", TEST_ONE)] * 2, references=[slow, ONE])
    assert [verdict.outcome for verdict in verdicts] == ["passed", "timeout"]


def test_an_endless_reference_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "REFERENCE_SECONDS", 0.5)
    endless = "while True:\n    pass\n"
    with Runner(seconds=0.2) as quick:
        [found] = quick.run_all([(endless + "# other", TEST_ONE)], references=[endless])
    assert (found.outcome, found.error) == ("unsupported", "the reference: more than 0.5 s of processor time")


def test_endless_recursion_without_a_limit_is_contained() -> None:
    code = "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x) + 1\n"
    with Runner(seconds=1.0) as quick:
        assert quick.run(code, TEST_ONE).outcome in ("crashed", "failed", "timeout")
        assert quick.run(ONE, TEST_ONE).passed


def test_coverage_names_the_lines_of_each_test(runner: Runner) -> None:
    code = "def f(x):\n    if x > 0:\n        return 'p'\n    y = 'n'\n    return y\nZ = 1\n"
    tests = (
        "def test_p():\n    assert f(1) == 'p'\ndef test_n():\n    assert f(-1) == 'n'\ndef test_o():\n    pass\n"
    )
    results = runner.run(code, tests, coverage=True).results
    assert [each.lines for each in results] == [(2, 3), (2, 4, 5), ()]
    assert all(each.lines == () for each in runner.run(code, tests).results)


def test_operands_of_a_failed_assertion(runner: Runner) -> None:
    tests = (
        "def test_a():\n    x = 4\n    assert f(x) == 6\n"
        "def test_b():\n    assert abs(f(1) - 3.5) < 1e-6\n"
        "def test_c():\n    assert not f(1)\n"
        "def test_d():\n    assert f(1) == 2 and f(2) == 5\n"
    )
    results = runner.run(ONE, tests).results
    assert [(each.call, each.got, each.expected) for each in results] == [
        ("f(x)", "5", "6"),
        ("abs(f(1) - 3.5)", "1.5", "< 1e-06"),
        ("not f(1)", "False", "a true value"),
        ("f(2)", "3", "5"),
    ]


def test_the_line_of_an_error_is_the_solutions(runner: Runner) -> None:
    code = "def g(x):\n    return x / 0\ndef f(x):\n    return g(x)\n"
    [result] = runner.run(code, TEST_ONE).results
    assert (result.line, result.error) == (2, "ZeroDivisionError: division by zero")


def test_scripts_are_judged_by_their_output(runner: Runner) -> None:
    code = "a, b = map(int, input().split())\nprint(a + b)\n"
    verdict = runner.run_io(code, [("1 2\n", "3\n"), ("4 5\n", "9")])
    assert [(each.name, each.passed) for each in verdict.results] == [("case_1", True), ("case_2", True)]
    assert verdict.passed
    wrong = runner.run_io(code, [("1 2\n", "4\n"), ("x\n", "1")])
    assert (wrong.outcome, wrong.results[0].got, wrong.results[0].expected) == ("failed", "'3\\n'", "4\n")
    assert wrong.results[1].error.startswith("ValueError")
    assert runner.run_io("import os\nos._exit(0)\n", [("", "1")]).outcome == "failed"
    assert runner.run_io(code, []).outcome == "no_tests"


def test_unchanged_shared_containers_cost_no_time_per_call() -> None:
    code = "class Table:\n    def __init__(self, rows): self.rows = rows\n"
    code += "    def get(self, n): return self.rows[n]\n    def put(self, n, x): self.rows[n] = x\n"
    tests = "from solution import Table\ndef test():\n    rows = list(range(50_000))\n    table = Table(rows)\n"
    tests += "    assert all(table.get(n) == n for n in range(1000))\n    table.put(49_999, -1)\n"
    tests += "    rows[0] = -2\n    assert rows[-1] == -1 and table.get(0) == -2\n"
    with Runner(seconds=3.0, tier="landlock") as quick:
        assert quick.run(code, tests).passed


def test_several_workers_and_asynchronous_calls() -> None:
    jobs = [(ONE + f"# {number % 7}\n", TEST_ONE) for number in range(20)]
    with Runner(workers=2, seconds=10.0) as both:
        verdicts = both.run_all(jobs)
        assert len(verdicts) == 20 and all(verdict.passed for verdict in verdicts)

        async def ask() -> list[Verdict]:
            return await asyncio.gather(*(both.arun(ONE + f"# a{number}", TEST_ONE) for number in range(4)))

        assert all(verdict.passed for verdict in asyncio.run(ask()))
        assert len(both._servers) == 2


def test_test_files_are_read_once_and_never_in_a_thread_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more files than the cache holds, so a worker would have to read them again."""
    read, threads = runner_module.read_test_file, []

    def record(tests: str) -> object:
        threads.append(threading.current_thread())
        return read(tests)

    monkeypatch.setattr(runner_module, "read_test_file", record)
    files = [f"from solution import f\n\ndef test_f():\n    assert f({n}) == {n}\n" for n in range(70)]
    with Runner(workers=2) as runner:
        verdicts = runner.run_all([("def f(x):\n    return x\n", tests) for tests in files])
    assert [verdict.outcome for verdict in verdicts] == ["passed"] * 70
    assert threads == [threading.main_thread()] * 70


def test_a_job_survives_a_dead_server() -> None:
    with Runner(seconds=10.0) as runner:
        assert runner.run(ONE, TEST_ONE).passed
        [server] = runner._servers
        server._process.kill()
        assert server._channel.waits(10.0)  # its end: till then it may do one more job
        assert runner.run(ONE + "# again", TEST_ONE).passed
        [other] = runner._servers
        assert other is not server


def test_modules_of_a_job_stay_imported_for_the_next(runner: Runner) -> None:
    code = "import decimal, uuid\nfrom statistics import mean\n" + ONE
    assert runner.run(code, TEST_ONE).passed
    look = "import sys\nready = {'decimal', 'uuid', 'statistics'} <= sys.modules.keys()\n"
    assert runner.run(look + "def f(x):\n    return x + 1 if ready else 0\n", TEST_ONE).passed


def test_every_verdict_names_its_tier(runner: Runner) -> None:
    verdict = runner.run(ONE, TEST_ONE)
    assert verdict.tier in ("namespaces", "landlock")
    with Runner(tier="none") as open_runner:
        assert open_runner.run(ONE, TEST_ONE).tier == "none"


def test_a_runner_that_is_not_closed_leaves_no_process() -> None:
    program = (
        "from codeverdict import Runner\n"
        f"runner = Runner()\nassert runner.run({ONE!r}, {TEST_ONE!r}).passed\n"
        "[server] = runner._servers\nprint(server._process.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert ended_soon(int(done.stdout))


def ended_soon(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds. A zombie has ended: init may take its time to
    reap it."""
    until = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_alive(pid)


def test_without_any_protection_programs_are_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PROBED", {})
    monkeypatch.setattr(launch.shutil, "which", lambda name, path: None)
    with Runner() as runner:
        assert runner.run(ONE, TEST_ONE).tier == "landlock"
    monkeypatch.setattr(launch, "_PROBED", {})
    monkeypatch.setattr(launch.landlock, "abi", lambda: 0)
    with Runner() as runner, pytest.raises(NotSafeError, match=r"bubblewrap.*Landlock.*tier `none`"):
        runner.run(ONE, TEST_ONE)
    with Runner(tier="none") as runner:
        assert runner.run(ONE, TEST_ONE).passed


def test_a_tier_that_a_program_escapes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(launch.Dead, match="a program inside could open a connection"):
        launch._check_probes("landlock", {"ready": True, "probes": {"open a connection": False, "fork": True}})


def test_bubblewrap_is_only_taken_from_system_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PATH may name a folder that others write in, or one that the server is not started from."""
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "defpath", str(tmp_path / "system"))
    monkeypatch.setattr(launch, "_PROBED", {})
    monkeypatch.setattr(launch.landlock, "abi", lambda: launch.landlock.MINIMUM_ABI)
    with pytest.raises(NotSafeError, match=rf"namespaces: no bubblewrap in {tmp_path}/system"):
        launch.start("namespaces", 256)
