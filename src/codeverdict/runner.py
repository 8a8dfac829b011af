"""Run candidate programs against their tests in a sandbox, and get typed verdicts.

A failure of the sandbox is never a verdict: it is an outcome of its own.
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
from codeverdict.reading import TestFile, read
from codeverdict.results import NO_VERDICT, Outcome, Verdict

_CODE_CHARACTERS = 1 << 20
_TEST_CHARACTERS = 8 << 20
_REMEMBERED = 4096
_ATTEMPTS = 2
REFERENCE_SECONDS = 60.0
"""Processor time of a reference, in seconds."""
REFERENCE_TIMES = 4.0
_HEAVY_WORDS = re.compile(r"\b(?:import|from)\s+(?:numpy|pandas|scipy)\b")


@dataclass(frozen=True)
class Job:
    """A program and what it is judged by: a test file, or (input, expected output) pairs.

    `seconds`: its processor time, 0 for the runner's. `lenient`: objects of the program are
    believed (gate.py).
    """

    solution: str
    tests: str = ""
    cases: tuple[tuple[str, str], ...] = ()
    coverage: bool = False
    seconds: float = 0.0
    lenient: bool = False

    @functools.cached_property
    def file(self) -> TestFile:
        """The test file as it was read, once, by whoever submits the job: never in a thread of the
        runner's."""
        return read(self.tests)

    def run(self, server: Server, seconds: float) -> Verdict:
        """Have a server run it.

        Raises:
            Dead: the server ended.
        """
        if self.cases:
            return judge_script(server, self.solution, self.cases, seconds)
        how = {"coverage": self.coverage, "lenient": self.lenient}
        return judge_tests(server, self.solution, self.tests, self.file, seconds, how)

    def refusal(self) -> Verdict | None:
        """The verdict on a job that is too long, or whose tests cannot be judged; None for any
        other."""
        if len(self.solution) > _CODE_CHARACTERS:
            return Verdict("broken", error=f"more than {_CODE_CHARACTERS} characters of code")
        if len(self.tests) + sum(len(text) for case in self.cases for text in case) > _TEST_CHARACTERS:
            return Verdict("unsupported", error=f"more than {_TEST_CHARACTERS} characters of tests")
        if self.cases or self.file.words:
            return None
        return Verdict(self.file.outcome, error=self.file.error)

    def needs(self) -> tuple[str, ...]:
        """What a server for it has imported: a server without is forked faster."""
        heavy = _HEAVY_WORDS.search(self.tests) or _HEAVY_WORDS.search(self.solution)
        numpy = ("numpy",) if heavy and find_spec("numpy") is not None else ()
        return (*numpy, "pytest") if self.tests and self.file.needs_pytest else numpy


@dataclass
class Runner:
    """Warm sandboxed servers, `workers` of them, started when needed. Use as a context manager, or
    call `close`.

    `seconds` is the processor time of one program under all its tests, beyond that of the tests
    (the wall clock is a multiple: WALL_TIMES in exchange.py), `memory_mb` what each of its two
    processes may use. `tier`: `auto` takes the best protection that works here; below Landlock it
    refuses (NotSafeError) unless `none` is asked for. `coverage`: note the lines that each test
    runs. Equal jobs are answered once.
    """

    seconds: float = 2.0
    workers: int = 1
    tier: TierChoice = "auto"
    coverage: bool = False
    memory_mb: int = 1024
    gates: dict[tuple[str, tuple[str, ...], str], Any] = field(default_factory=dict, init=False, repr=False)
    _known: OrderedDict[Job, Verdict] = field(default_factory=OrderedDict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False, repr=False)
    _own: threading.local = field(default_factory=threading.local, init=False, repr=False)
    _servers: set[Server] = field(default_factory=set, init=False, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the servers. Waits for the jobs that run."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        while self._servers:
            self._servers.pop().close()
        self._own = threading.local()

    def run(self, solution: str, tests: str, coverage: bool | None = None) -> Verdict:
        """Judge one program by a test file.

        Raises:
            NotSafeError: programs cannot be run safely on this machine.
        """
        return self.wait(self.submit(self._job(solution, tests, coverage)))

    def run_all(
        self, jobs: Sequence[tuple[str, str]], coverage: bool | None = None, references: Sequence[str] = ()
    ) -> list[Verdict]:
        """Judge (solution, tests) pairs, `workers` at a time; verdicts in the order of the pairs.

        `references`: a right solution for each pair, "" where none is known. A program that ends
        without a verdict where the reference has one has failed: it may have caused that itself; so
        has one under which fewer tests run. An exception that it swallows is no failure where the
        reference swallows it too. One that runs out of time gets REFERENCE_TIMES as long as the
        reference takes, if that is more.
        """
        made = [self._job(solution, tests, coverage) for solution, tests in jobs]
        futures = {job: self.submit(job) for job in dict.fromkeys(made)}
        verdicts = [self.wait(futures[job]) for job in made]
        return self._beside_references(made, verdicts, references) if references else verdicts

    def _beside_references(
        self, jobs: Sequence[Job], verdicts: Sequence[Verdict], references: Sequence[str]
    ) -> list[Verdict]:
        """The verdicts; where there is none, or time ran out, decided in view of the reference's
        own result."""
        known: dict[tuple[Job, str], Future[Verdict]] = {}
        pairs = list(zip(jobs, verdicts, references, strict=True))
        for job, verdict, reference in pairs:
            if reference and _is_open(verdict):
                patient = dataclasses.replace(
                    job, solution=reference, coverage=False, seconds=max(REFERENCE_SECONDS, self.seconds)
                )
                known[job, reference] = self.submit(patient)
        return [
            self._settled(job, verdict, self.wait(known[job, reference])) if (job, reference) in known else verdict
            for job, verdict, reference in pairs
        ]

    def _settled(self, job: Job, verdict: Verdict, reference: Verdict) -> Verdict:
        if reference.outcome in NO_VERDICT:
            return verdict
        if verdict.passed or any(result.swallowed for result in verdict.results):
            return _beside(verdict, reference)
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
        """Judge a script by (standard input, expected output) pairs; trailing white space is
        ignored."""
        if not cases:
            return Verdict("no_tests", error="no cases")
        return self.wait(self.submit(Job(solution, cases=tuple((given, wanted) for given, wanted in cases))))

    def wait(self, verdict: Future[Verdict]) -> Verdict:
        """Wait for a job; what has to be looked at meanwhile is up to a subclass."""
        return verdict.result()

    async def arun(self, solution: str, tests: str, coverage: bool | None = None) -> Verdict:
        """`run` for asynchronous callers."""
        return await asyncio.wrap_future(self.submit(self._job(solution, tests, coverage)))

    def submit(self, job: Job) -> Future[Verdict]:
        """Queue a job."""
        known = self._known.get(job) or job.refusal()
        if known is not None:
            done: Future[Verdict] = Future()
            done.set_result(known)
            return done
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")
            return self._pool.submit(self._judge, job)

    def _job(self, solution: str, tests: str, coverage: bool | None) -> Job:
        return Job(solution, tests, coverage=self.coverage if coverage is None else coverage)

    def _judge(self, job: Job) -> Verdict:
        """Ask this thread's server; a server that dies is replaced, and the job is asked once
        more."""
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
            self._remember(job, verdict)
            return verdict
        return Verdict("crashed", error=f"the sandbox died {_ATTEMPTS} times with this program: {reason}")

    def _server(self, preload: tuple[str, ...]) -> Server:
        servers: dict[tuple[str, ...], Server] = self._own.__dict__.setdefault("servers", {})
        if preload not in servers:
            servers[preload] = self.start_server(preload)
            self._servers.add(servers[preload])
        return servers[preload]

    def start_server(self, preload: tuple[str, ...]) -> Server:
        """A new server in the tier of this runner, with these modules imported.

        Raises:
            NotSafeError: programs cannot be run safely on this machine.
        """
        return start(self.tier, self.memory_mb, preload)

    def _forget(self, server: Server) -> None:
        server.close()
        self._servers.discard(server)
        mine = self._own.servers
        self._own.servers = {preload: other for preload, other in mine.items() if other is not server}

    def _remember(self, job: Job, verdict: Verdict) -> None:
        with self._lock:
            self._known[job] = verdict
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)


def _is_open(verdict: Verdict) -> bool:
    """Whether it depends on what the reference does."""
    swallows = any(result.swallowed for result in verdict.results)
    return verdict.outcome in NO_VERDICT or verdict.outcome == "timeout" or verdict.early or swallows


def _beside(verdict: Verdict, reference: Verdict) -> Verdict:
    """A verdict in which the reference decides how many tests there are, and what may be
    swallowed."""
    allowed = {result.name: set(result.swallowed) for result in reference.results}
    results = tuple(
        dataclasses.replace(each, passed=True, error="")
        if each.error == SWALLOWED and set(each.swallowed) <= allowed.get(each.name, set())
        else each
        for each in verdict.results
    )
    if len(results) < len(reference.results) and verdict.passed:
        return dataclasses.replace(verdict, outcome="failed", error="fewer tests than with the reference")
    complete = verdict.passed or (verdict.outcome == "failed" and not verdict.error)
    outcome: Outcome = "passed" if complete and all(each.passed for each in results) else verdict.outcome
    return dataclasses.replace(verdict, outcome=outcome, results=results)
