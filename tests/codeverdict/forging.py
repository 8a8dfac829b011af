"""What the sandbox is measured by: programs that forge a verdict, weak tests, and right programs.

The files are made of sections. A line `=== name | family` begins one, a program follows, then parts that begin
with `--- tests` (a test file) or `--- io` (a line `input -> output` of two Python literals for each case), and
`--- honest` (a program that solves the task). `=== @name` begins a section to be referred to: `--- tests @name`
takes its tests and its honest program, a line `#include name` in a program its text.

    python tests/codeverdict/forging.py [--right] [--honest] [NAME ...]

runs the right programs, and the honest ones of the forging tasks, with the real pytest, each in one ordinary
process, and prints those that do not pass.
"""

from __future__ import annotations

import ast
import gc
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

from corpus import sections

from codeverdict import Job, Runner, TestResult, Verdict


@dataclass(frozen=True)
class Task:
    """What a program is judged by, a test file or (input, output) pairs, and a program that solves it."""

    tests: str
    cases: tuple[tuple[str, str], ...]
    honest: str

    def job(self, code: str) -> Job:
        """A program with these tests."""
        return Job(code, self.tests, self.cases)


@dataclass(frozen=True)
class Forging:
    """A program that tries to pass without solving its task."""

    name: str
    family: str
    code: str
    task: Task

    def job(self) -> Job:
        """It, with its tests."""
        return self.task.job(self.code)

    def honest_job(self) -> Job:
        """A program that solves the task, with the same tests."""
        return self.task.job(self.task.honest)


@dataclass(frozen=True)
class Right:
    """A program that solves its task, and its tests."""

    name: str
    topic: str
    code: str
    tests: str

    def job(self) -> Job:
        """It, with its tests."""
        return Job(self.code, self.tests)


def read_forging(file: str) -> tuple[Forging, ...]:
    """The forging programs of a file.

    Raises:
        ValueError: a section is not complete, or a name is used twice.
    """
    found_in = dict(_parts(file))
    shared = {title[1:]: parts for title, parts in found_in.items() if title.startswith("@")}
    tasks = {name: _task(parts) for name, parts in shared.items() if "honest" in parts}
    found = []
    for title, parts in found_in.items():
        if not title.startswith("@"):
            name, family = title.split(" | ")
            code = _with_includes(parts.pop("program"), shared)
            found.append(Forging(name, family, code, _task(parts) if "honest" in parts else tasks[_name(parts)]))
    return tuple(found)


def read_right(file: str) -> tuple[Right, ...]:
    """The right programs of a file."""
    found = []
    for title, parts in _parts(file):
        name, topic = title.split(" | ")
        found.append(Right(name, topic, parts["program"], parts["tests"]))
    return tuple(found)


def shared_text(file: str, name: str) -> str:
    """The program text of the section `@name`."""
    return dict(_parts(file))[f"@{name}"]["program"]


def _parts(file: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(title, {part: text}) of each section; the text before the first `--- ` is the part `program`."""
    for title, body in sections(file):
        program, *rest = f"\n{body}".split("\n--- ")
        parts = {"program": program.strip("\n") + "\n"}
        for part in rest:
            name, _, text = part.partition("\n")
            parts[name] = text.strip("\n") + "\n"
        yield title, parts


def _name(parts: dict[str, str]) -> str:
    [title] = parts
    return title.removeprefix("tests @")


def _task(parts: dict[str, str]) -> Task:
    if "io" in parts:
        return Task("", tuple(map(_case, parts["io"].splitlines())), parts["honest"])
    return Task(parts["tests"], (), parts["honest"])


def _case(line: str) -> tuple[str, str]:
    given, wanted = line.split(" -> ")
    return ast.literal_eval(given), ast.literal_eval(wanted)


def _with_includes(code: str, shared: dict[str, dict[str, str]]) -> str:
    lines = []
    for line in code.splitlines(keepends=True):
        name = line.removeprefix("#include ").rstrip()
        lines.append(shared[name]["program"] if line.startswith("#include ") else line)
    return "".join(lines)


FORGING = read_forging("forging.txt")
FAMILIES = read_forging("families.txt")
WEAK = read_forging("weak.txt")
RIGHT = read_right("right_programs.txt")
LIMITS = read_right("right_limits.txt")
SEARCH = shared_text("forging.txt", "search")
NOTHING = "0 found"
PYTEST_SECONDS = 60


def judged(runner: Runner, jobs: Iterable[Job]) -> dict[Job, Verdict]:
    """The verdict on each job, as many at a time as the runner has workers."""
    futures = {job: runner.submit(job) for job in dict.fromkeys(jobs)}
    return {job: future.result() for job, future in futures.items()}


def secrets_found(runner: Runner) -> int:
    """How many secrets a program finds in its memory: of an earlier job, of its tests, of its expected outputs.

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
    return sum(_found(result) for verdict in verdicts for result in verdict.results or (None,))


def _found(result: TestResult | None) -> int:
    """What a search said, in a result that names it unless it is what was expected."""
    said = re.search(r"(\d+) found", result.got) if result else None
    if result is None or (said is None and not result.passed):
        raise RuntimeError(f"the search of the memory did not end: {result}")
    return int(said[1]) if said else 0


def not_passed(programs: Iterable[Right]) -> dict[str, str]:
    """Name -> what the real pytest says, for programs that do not pass there. For a process without threads."""
    found = {}
    for program in programs:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "solution.py").write_text(program.code, encoding="utf-8")
            Path(folder, "test_it.py").write_text(program.tests, encoding="utf-8")
            if _status_of_pytest(folder):
                found[program.name] = Path(folder, "said").read_text(encoding="utf-8", errors="replace")
    return found


_NOT_USED = "cacheprovider junitxml pastebin doctest setuponly setupplan stepwise faulthandler"
_OFF = [word for name in _NOT_USED.split() for word in ("-p", f"no:{name}")]


def _status_of_pytest(folder: str) -> int:
    """The exit status of pytest on a folder, run in a fork of this process."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1]
    status = 1
    try:
        signal.alarm(PYTEST_SECONDS)
        os.chdir(folder)
        said = os.open("said", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.path.insert(0, folder)
        import pytest

        status = pytest.main(["-q", "--assert=plain", "-c", os.devnull, "--rootdir", ".", *_OFF, "test_it.py"])
    finally:
        os._exit(status)


def check_really(which: str) -> str:
    """Which right programs (`--right`, `--limits`, `--honest`) the real pytest does not pass, "" for none.

    Each runs in an ordinary process; two of them at a time.
    """
    words = [sys.executable, __file__, which]
    halves = [subprocess.Popen([*words, half], stdout=subprocess.PIPE, text=True) for half in ("--even", "--odd")]
    said = [half.communicate()[0] for half in halves]
    if any(half.returncode for half in halves):
        raise RuntimeError(f"{words} did not end well")
    return "".join(said)


def passes_really(programs: Iterable[tuple[str, str]]) -> list[bool]:
    """Whether each (solution, tests) pair passes the real pytest, each in a process of its own."""
    pairs = json.dumps(list(programs))
    done = subprocess.run([sys.executable, __file__, "--given"], input=pairs, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError("pytest did not judge the programs")
    found: list[bool] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print what does not pass under the real pytest."""
    import asyncio  # noqa: F401  (imported before the forks, as they would each)
    import unittest.mock  # noqa: F401

    import pytest  # noqa: F401

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = True
    gc.disable()  # a fork that looked for garbage would copy what it inherits
    gc.freeze()
    if sys.argv[1:] == ["--given"]:
        pairs = enumerate(json.load(sys.stdin))
        given = [Right(str(number), "", code, tests) for number, (code, tests) in pairs]
        failed = not_passed(given)
        return print(json.dumps([each.name not in failed for each in given]))
    everything = (*FORGING, *FAMILIES, *WEAK)
    honest = [Right(each.name, each.family, each.task.honest, each.task.tests) for each in everything]
    honest = [each for each in {(each.code, each.tests): each for each in honest}.values() if each.tests]
    known = {"--right": list(RIGHT), "--honest": honest}
    step = {"--even": slice(0, None, 2), "--odd": slice(1, None, 2)}.get(sys.argv[-1], slice(None))
    names = [name for name in sys.argv[1:] if name not in ("--even", "--odd")] or ["--right", "--honest"]
    wanted = [each for name in names for each in known.get(name, [each for each in RIGHT if each.name == name])]
    for name, said in not_passed(wanted[step]).items():
        print(f"=== {name}\n{said}")


if __name__ == "__main__":
    main()
