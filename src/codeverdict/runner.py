"""Run candidate programs against their tests in a sandbox, and return typed verdicts.

A failure of the sandbox has a separate outcome and is never a verdict on the program.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from codeverdict.exchange import SWALLOWED, judge_script, judge_tests
from codeverdict.launch import Dead, Server, TierChoice, start
from codeverdict.reading import TestFile, read_test_file
from codeverdict.results import NO_VERDICT, Outcome, Verdict

_CODE_CHARACTERS = 1 << 20
_TEST_CHARACTERS = 8 << 20
_REMEMBERED = 4096
_ATTEMPTS = 2
REFERENCE_SECONDS = 60.0
"""Processor time of a reference solution, in seconds."""
REFERENCE_TIMES = 4.0
_HEAVY_WORDS = re.compile(r"\b(?:import|from)\s+(?:numpy|pandas|scipy)\b")


@dataclass(frozen=True)
class Job:
    """A program and either a test file or (input, expected output) pairs.

    `seconds`: its processor time, 0 for the default of the runner. `lenient`: trust the objects of
    the program in comparisons (gate.py).
    """

    solution: str
    tests: str = ""
    cases: tuple[tuple[str, str], ...] = ()
    coverage: bool = False
    seconds: float = 0.0
    lenient: bool = False

    @functools.cached_property
    def file(self) -> TestFile:
        """The analysed test file, computed by the thread that submits the job, not by a worker."""
        return read_test_file(self.tests)

    def run(self, server: Server, seconds: float) -> Verdict:
        """Run the job on a server.

        Raises:
            Dead: the server ended.
        """
        if self.cases:
            return judge_script(server, self.solution, self.cases, seconds)
        options = {"coverage": self.coverage, "lenient": self.lenient}
        return judge_tests(server, self.solution, self.tests, self.file, seconds, options)

    def refusal(self) -> Verdict | None:
        """Return the verdict on a job that is too long or cannot be judged; None for other jobs."""
        if len(self.solution) > _CODE_CHARACTERS:
            return Verdict("broken", error=f"more than {_CODE_CHARACTERS} characters of code")
        if len(self.tests) + sum(len(text) for case in self.cases for text in case) > _TEST_CHARACTERS:
            return Verdict("unsupported", error=f"more than {_TEST_CHARACTERS} characters of tests")
        if self.cases or self.file.words:
            return None
        return Verdict(self.file.outcome, error=self.file.error)

    def needs(self) -> tuple[str, ...]:
        """Return the modules that its server must have imported; a smaller server forks faster."""
        heavy = _HEAVY_WORDS.search(self.tests) or _HEAVY_WORDS.search(self.solution)
        numpy = ("numpy",) if heavy and find_spec("numpy") is not None else ()
        return (*numpy, "pytest") if self.tests and self.file.needs_pytest else numpy


@dataclass
class Runner:
    """A pool of warm sandboxed servers; use it as a context manager, or call `close`.

    Equal jobs are run once.

    Attributes:
        seconds: processor time of a program for all its tests, in addition to the tests' own. The
            wall-clock limit is a multiple (WALL_TIMES in exchange.py).
        workers: the number of servers, which start when needed.
        tier: the protection. `auto` uses the best that works here and raises NotSafeError if none
            does; only `none` runs programs without protection.
        coverage: record the lines that each test runs.
        memory_mb: memory limit of each of a program's two processes.
    """

    seconds: float = 2.0
    workers: int = 1
    tier: TierChoice = "auto"
    coverage: bool = False
    memory_mb: int = 1024
    gates: dict[tuple[str, tuple[str, ...], str], Any] = field(default_factory=dict, init=False, repr=False)
    _verdicts: OrderedDict[Job, Verdict] = field(default_factory=OrderedDict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False, repr=False)
    _thread: threading.local = field(default_factory=threading.local, init=False, repr=False)
    _servers: set[Server] = field(default_factory=set, init=False, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Wait for running jobs, then end the servers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        while self._servers:
            self._servers.pop().close()
        self._thread = threading.local()

    def run(self, solution: str, tests: str, coverage: bool | None = None) -> Verdict:
        """Judge one program with a test file.

        Raises:
            NotSafeError: programs cannot be run safely on this machine.
        """
        return self.wait(self.submit(self._job(solution, tests, coverage)))

    def run_all(
        self, jobs: Sequence[tuple[str, str]], coverage: bool | None = None, references: Sequence[str] = ()
    ) -> list[Verdict]:
        """Judge (solution, tests) pairs, `workers` at a time.

        Args:
            jobs: the pairs.
            coverage: record the lines that each test runs; None: as the runner.
            references: a correct solution for each pair, or an empty text. If the reference has a
                verdict, a program without one has failed, because it may have caused that itself.
                So has a program with fewer tests. An exception may be swallowed where the reference
                swallows it. A program that runs out of time is run again with REFERENCE_TIMES the
                reference's time, if that is more.

        Returns:
            The verdicts in the order of the pairs.
        """
        all_jobs = [self._job(solution, tests, coverage) for solution, tests in jobs]
        futures = {job: self.submit(job) for job in dict.fromkeys(all_jobs)}
        verdicts = [self.wait(futures[job]) for job in all_jobs]
        return self._resolve_with_references(all_jobs, verdicts, references) if references else verdicts

    def _resolve_with_references(
        self, jobs: Sequence[Job], verdicts: Sequence[Verdict], references: Sequence[str]
    ) -> list[Verdict]:
        """Return the verdicts, with those that depend on the reference decided by its result."""
        pending: dict[tuple[Job, str], Future[Verdict]] = {}
        pairs = list(zip(jobs, verdicts, references, strict=True))
        for job, verdict, reference in pairs:
            if reference and _is_open(verdict):
                patient = dataclasses.replace(
                    job, solution=reference, coverage=False, seconds=max(REFERENCE_SECONDS, self.seconds)
                )
                pending[job, reference] = self.submit(patient)
        return [
            self._resolve(job, verdict, self.wait(pending[job, reference]))
            if (job, reference) in pending
            else verdict
            for job, verdict, reference in pairs
        ]

    def _resolve(self, job: Job, verdict: Verdict, reference: Verdict) -> Verdict:
        if reference.outcome in NO_VERDICT:
            return verdict
        if verdict.passed or any(result.swallowed for result in verdict.results):
            return _compare_with_reference(verdict, reference)
        if verdict.outcome in NO_VERDICT:
            return dataclasses.replace(
                verdict, outcome="failed", error=f"{verdict.error}; the reference has a verdict"
            )
        if reference.outcome == "timeout":
            return dataclasses.replace(verdict, outcome="unsupported", error=f"the reference: {reference.error}")
        seconds = REFERENCE_TIMES * reference.seconds
        return (
            self.wait(self.submit(dataclasses.replace(job, seconds=seconds))) if seconds > self.seconds else verdict
        )

    def run_io(self, solution: str, cases: Sequence[tuple[str, str]]) -> Verdict:
        """Judge a script with (stdin, expected output) pairs, ignoring trailing whitespace."""
        if not cases:
            return Verdict("no_tests", error="no cases")
        return self.wait(self.submit(Job(solution, cases=tuple((stdin, expected) for stdin, expected in cases))))

    def wait(self, verdict: Future[Verdict]) -> Verdict:
        """Wait for a job; subclasses may watch for signals meanwhile."""
        return verdict.result()

    async def arun(self, solution: str, tests: str, coverage: bool | None = None) -> Verdict:
        """Judge one program with a test file, asynchronously."""
        return await asyncio.wrap_future(self.submit(self._job(solution, tests, coverage)))

    def submit(self, job: Job) -> Future[Verdict]:
        """Queue a job and return the future of its verdict."""
        verdict = self._verdicts.get(job) or job.refusal()
        if verdict is not None:
            future: Future[Verdict] = Future()
            future.set_result(verdict)
            return future
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")
            return self._pool.submit(self._judge, job)

    def _job(self, solution: str, tests: str, coverage: bool | None) -> Job:
        return Job(solution, tests, coverage=self.coverage if coverage is None else coverage)

    def _judge(self, job: Job) -> Verdict:
        """Run a job on the server of this thread; if it dies, try once more on a new one."""
        for _ in range(_ATTEMPTS):
            started = time.monotonic()
            server = self._server(job.needs())
            try:
                verdict = job.run(server, job.seconds or self.seconds)
            except Dead as error:
                reason = str(error)
                self._forget(server)
                continue
            verdict = dataclasses.replace(verdict, tier=server.tier, seconds=time.monotonic() - started)
            with self._lock:
                self._verdicts[job] = verdict
                if len(self._verdicts) > _REMEMBERED:
                    self._verdicts.popitem(last=False)
            return verdict
        return Verdict("crashed", error=f"the sandbox died {_ATTEMPTS} times with this program: {reason}")

    def _server(self, preload: tuple[str, ...]) -> Server:
        servers: dict[tuple[str, ...], Server] = self._thread.__dict__.setdefault("servers", {})
        if preload not in servers:
            servers[preload] = self.start_server(preload)
            self._servers.add(servers[preload])
        return servers[preload]

    def start_server(self, preload: tuple[str, ...]) -> Server:
        """Start a server in the tier of this runner, with modules already imported.

        Raises:
            NotSafeError: programs cannot be run safely on this machine.
        """
        return start(self.tier, self.memory_mb, preload)

    def _forget(self, server: Server) -> None:
        server.close()
        self._servers.discard(server)
        servers = self._thread.servers
        self._thread.servers = {preload: other for preload, other in servers.items() if other is not server}


def _is_open(verdict: Verdict) -> bool:
    """Return True if the verdict depends on the result of the reference."""
    swallows = any(result.swallowed for result in verdict.results)
    return verdict.outcome in NO_VERDICT or verdict.outcome == "timeout" or verdict.early or swallows


def _compare_with_reference(verdict: Verdict, reference: Verdict) -> Verdict:
    """Return a verdict that fails with fewer tests than the reference and swallows as it does."""
    allowed = {result.name: set(result.swallowed) for result in reference.results}
    results = tuple(
        dataclasses.replace(result, passed=True, error="")
        if result.error == SWALLOWED and set(result.swallowed) <= allowed.get(result.name, set())
        else result
        for result in verdict.results
    )
    if len(results) < len(reference.results) and verdict.passed:
        return dataclasses.replace(verdict, outcome="failed", error="fewer tests than with the reference")
    complete = verdict.passed or (verdict.outcome == "failed" and not verdict.error)
    outcome: Outcome = "passed" if complete and all(result.passed for result in results) else verdict.outcome
    return dataclasses.replace(verdict, outcome=outcome, results=results)
