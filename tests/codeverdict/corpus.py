"""Files of programs in `data`, and what pytest and the sandbox say of them.

A line `=== name | family` begins a program; text before the first such line describes the file.
Parts may follow: `--- tests` (a test file), `--- io` (a line `input -> output` of two Python
literals for each case) and `--- honest` (a program that solves the task). A section `=== @name` is
referred to: `--- tests @name`, or `name` as a family, takes over its parts, and a line
`#include name` in a program its text.

    python tests/codeverdict/corpus.py < PAIRS.json

runs the real pytest on (solution, tests) pairs and prints which of them pass.
"""

from __future__ import annotations

import ast
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from codeverdict import Job, Runner, TestResult, Verdict

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Program:
    """A program, a test file or (input, output) pairs to judge it by, and a program that solves
    that task."""

    name: str
    family: str
    code: str
    tests: str
    cases: tuple[tuple[str, str], ...]
    honest: str

    def job(self) -> Job:
        """Return the job of this program."""
        return Job(self.code, self.tests, self.cases)

    def honest_job(self) -> Job:
        """Return the job of the program that solves the task."""
        return Job(self.honest, self.tests, self.cases)


def sections(name: str) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for each section of a file in `DATA`.

    Raises:
        ValueError: a title occurs twice.
    """
    titles = set()
    for section in (DATA / name).read_text(encoding="utf-8").split("\n=== ")[1:]:
        title, _, body = section.partition("\n")
        if title in titles:
            raise ValueError(f"{title} occurs twice")
        titles.add(title)
        yield title, body


def _parts(file: str) -> dict[str, dict[str, str]]:
    """Return the parts of each section; the text before the first `--- ` is the part `program`."""
    parts_by_title = {}
    for title, body in sections(file):
        program, *others = f"\n{body}".split("\n--- ")
        named = [part.partition("\n") for part in others]
        texts = [("program", program), *((name, text) for name, _, text in named)]
        parts_by_title[title] = {name: text.strip("\n") + "\n" for name, text in texts}
    return parts_by_title


def read_programs(file: str) -> tuple[Program, ...]:
    """Read the programs of a file.

    Raises:
        ValueError: a title occurs twice.
    """
    parts_by_title = _parts(file)
    shared = {title[1:]: parts for title, parts in parts_by_title.items() if title.startswith("@")}
    programs = []
    for title, parts in parts_by_title.items():
        if title.startswith("@"):
            continue
        name, family = title.split(" | ")
        task = next((key.removeprefix("tests @") for key in parts if key.startswith("tests @")), family)
        known = {**shared.get(task, {}), **parts}
        code, honest = (
            re.sub(r"(?m)^#include (.*)\n", lambda line: shared[line[1]]["program"], known.get(part, ""))
            for part in ("program", "honest")
        )
        cases = tuple(_case(line) for line in known.get("io", "").splitlines())
        programs.append(Program(name, family, code, known.get("tests", ""), cases, honest))
    return tuple(programs)


def _case(line: str) -> tuple[str, str]:
    given, expected = line.split(" -> ")
    return ast.literal_eval(given), ast.literal_eval(expected).replace("@long", 2000 * f"{'x' * 1000}\n")


FORGING = read_programs("forging.txt")
FAMILIES = read_programs("families.txt")
WEAK = read_programs("weak.txt")
RIGHT = read_programs("right_programs.txt")
LIMITS = read_programs("right_limits.txt")
SCRIPTS = read_programs("scripts.txt")
HOSTILE = read_programs("hostile.txt")
SEARCH = _parts("forging.txt")["@search"]["program"]
LENT = _parts("forging.txt")["@classes"]
NOTHING = "0 found"


def judged(runner: Runner, jobs: Iterable[Job]) -> dict[Job, Verdict]:
    """Return the verdict on each job, as many at a time as the runner has workers."""
    futures = {job: runner.submit(job) for job in dict.fromkeys(jobs)}
    return {job: future.result() for job, future in futures.items()}


def secrets_found(runner: Runner) -> int:
    """Count secrets that a program finds in its memory: of an earlier job, its tests, its expected
    outputs.

    Raises:
        RuntimeError: the search did not come to an end.
    """
    earlier, mine, wide, output = (f"SECRET-{secrets.token_hex(8)}" for _ in range(4))
    runner.run(
        f"{SEARCH}\nEARLIER = {earlier!r}\n", f"from solution import search\n# {earlier}\ndef test(): pass\n"
    )
    tests = f"from solution import search\nA, B = {mine!r}, '\U0001f600 {wide}'\n"
    verdicts = [runner.run(SEARCH, f"{tests}def test():\n    assert search() == {NOTHING!r}\n")]
    cases = [("1\n", NOTHING), (f"{earlier[:6]}\n", f"{output}\n"), ("3\n", f"\U0001f600 {output}\n")]
    verdicts.append(runner.run_io(f"{SEARCH}\nprint(search())\n", cases))
    return sum(_count_found(result) for verdict in verdicts for result in verdict.results or (None,))


def lent_classes(runner: Runner) -> int:
    """Count the classes of Python's in the test process that a program can call, from what the
    tests give it.

    Raises:
        RuntimeError: the search did not come to an end.
    """
    [result] = runner.run(LENT["program"], LENT["tests"]).results or (None,)
    return _count_found(result)


def _count_found(result: TestResult | None) -> int:
    """Return the count that a search printed; a result has no output where it is the expected
    one."""
    count = re.search(r"(\d+) found", result.got) if result else None
    if result is None or (count is None and not result.passed):
        raise RuntimeError(f"the search of the memory did not end: {result}")
    return int(count[1]) if count else 0


def passes_really(programs: Iterable[tuple[str, str]]) -> list[bool]:
    """Return for each (solution, tests) pair if the real pytest passes it, in an ordinary process.

    Raises:
        CalledProcessError: pytest could not judge the programs.
    """
    command, pairs = [sys.executable, __file__], json.dumps(list(programs))
    done = subprocess.run(command, input=pairs, stdout=subprocess.PIPE, text=True, check=True)
    passed: list[bool] = json.loads(done.stdout)
    return passed


_UNUSED = "cacheprovider junitxml pastebin doctest setuponly setupplan stepwise faulthandler"
_OPTIONS = [
    "-q",
    "--assert=plain",
    "-c",
    os.devnull,
    "--rootdir",
    ".",
    *(f"-pno:{name}" for name in _UNUSED.split()),
]
PYTEST_SECONDS = 60


def _passes(code: str, tests: str) -> bool:
    """Run pytest on a pair in a fork of this process, which has no threads."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "solution.py").write_text(code, encoding="utf-8")
        Path(folder, "test_it.py").write_text(tests, encoding="utf-8")
        if process := os.fork():
            return os.waitpid(process, 0)[1] == 0
        status = 1
        try:
            signal.alarm(PYTEST_SECONDS)
            os.chdir(folder)
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            sys.path.insert(0, folder)
            status = pytest.main([*_OPTIONS, "test_it.py"])
        finally:
            os._exit(status)


if __name__ == "__main__":
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = True
    print(json.dumps([_passes(*pair) for pair in json.load(sys.stdin)]))
