"""The folders of jobs without mounts of their own: counted whole, removed whole, and nobody else's
touched.

Where the tests run as root, what an ordinary user would meet is tried as one: in a forked process,
or in another Python that such a user may run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from corpus import sections
from hostile import is_alive, programs_of

import codeverdict
from codeverdict import Job, Runner, Tier
from codeverdict.inside import job, scratch
from codeverdict.inside.kernel import jail, system
from codeverdict.inside.scratch import BYTES, ENTRIES, Scratch

ROOT = os.geteuid() == 0
SOMEBODY, SOMEBODY_ELSE = 65_534, 1_899_999_999
USERS = [0, SOMEBODY] if ROOT else [os.geteuid()]
SOURCE = str(Path(codeverdict.__file__).parents[1])
TESTS = "from solution import f\n\ndef test_three():\n    assert f(3) == 9\n"
RIGHT = "def f(x):\n    return x * x\n"


def as_somebody(work: Callable[[], None]) -> None:
    """Do the work in a forked process of an ordinary user; what it raises fails the test."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            if ROOT:
                os.setgroups([])
                os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
                os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
            work()
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(process, 0)
    with open(reader, encoding="utf-8") as raised:
        assert raised.read() == ""


def folders_of(process: int) -> list[str]:
    return [name for name in os.listdir("/tmp") if name.startswith(f"codeverdict-{process}-")]


@contextlib.contextmanager
def scratch_of(user: int | None) -> Iterator[Scratch]:
    made = Scratch(user)
    made.renew()
    yield made
    made.remove()
    assert folders_of(os.getpid()) == []


@pytest.fixture
def own() -> Iterator[Scratch]:
    with scratch_of(SOMEBODY_ELSE if ROOT else None) as made:
        yield made


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    before = os.open(".", os.O_RDONLY)  # by its path another user may not find the way back, as from /root
    os.chdir(folder)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def nest(folder: str, depth: int, name: str = "d", mode: int = 0o700) -> None:
    """Folders in folders, with a file in each, deeper than a path can be long."""
    with inside(folder):
        for _ in range(depth):
            Path("file").write_text("of a job")
            os.mkdir(name, 0o700)
            os.chdir(name)
        os.chmod(".", mode)


def test_each_job_has_a_new_folder_of_the_programs_user(own: Scratch) -> None:
    first = os.stat(own.folder)
    assert first.st_mode & 0o777 == 0o700
    assert first.st_uid == (SOMEBODY_ELSE if ROOT else os.getuid())
    assert os.stat(os.path.dirname(own.folder)).st_uid == os.geteuid()
    Path(own.folder, "x").mkdir()
    held = os.open(own.folder, os.O_RDONLY)
    own.empty()
    assert not os.path.exists(own.folder)
    own.renew()
    assert os.listdir(own.folder) == []
    assert not os.path.samestat(os.fstat(held), os.stat(own.folder))
    os.close(held)


def test_nested_folders_are_removed_however_deep(own: Scratch) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))  # as a server has
    try:
        for depth, name in ((60, "d"), (1100, "d"), (1100, "long" * 60)):
            own.renew()
            nest(own.folder, depth, name)
            own.empty()
            assert os.listdir(os.path.dirname(own.folder)) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_folders_that_their_owner_closed_are_counted_and_removed() -> None:
    def work(mode: int) -> None:
        with scratch_of(None) as made:
            for number in range(3):
                nest(made.folder, 3, f"{number}", mode)
            Path(made.folder, "2", "2", "closed").mkdir(mode)
            assert not made.overfull()
            full = Path(made.folder, "full")
            full.mkdir()
            for number in range(ENTRIES):
                Path(full, str(number)).touch(0o000)
            full.chmod(mode)
            assert made.overfull()
            os.chmod(made.folder, mode)
            made.empty()
            assert os.listdir(os.path.dirname(made.folder)) == []

    for mode in (0o000, 0o100, 0o300, 0o500):
        as_somebody(partial(work, mode))


def test_links_are_not_followed(own: Scratch, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    for number, target in enumerate((kept, kept / "file", "/nowhere", ".", "..")):
        os.symlink(target, f"{own.folder}/{number}")
    os.mkdir(f"{own.folder}/inner")
    os.symlink(kept, f"{own.folder}/inner/link")
    with contextlib.suppress(OSError):  # another file system
        os.link(kept / "file", f"{own.folder}/hard")
    os.mkfifo(f"{own.folder}/inner/fifo", 0)
    assert not own.overfull()
    own.empty()
    assert os.listdir(os.path.dirname(own.folder)) == []
    assert (kept / "file").read_text() == "x"


def test_a_link_that_replaces_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for of_server in (False, True):
        with scratch_of(None) as made:
            replaced = os.path.dirname(made.folder) if of_server else made.folder
            shutil.rmtree(replaced)
            os.symlink(tmp_path, replaced)
            made.overfull()
            made.empty()
            made.renew()
            assert os.listdir(made.folder) == []
        assert (tmp_path / "file").read_text() == "x"


def test_a_program_that_closes_the_folder_of_its_server_has_no_effect() -> None:
    def work() -> None:
        with scratch_of(None) as made:
            os.chmod(os.path.dirname(made.folder), 0)
            made.empty()
            made.renew()
            assert os.listdir(made.folder) == []

    as_somebody(work)


@pytest.mark.skipif(not ROOT, reason="only root can make files of another user")
def test_folders_of_another_user_are_kept() -> None:
    process = 4_194_305  # a number that no process has
    folder = Path(f"/tmp/codeverdict-{process}-theirs")
    (folder / "inner").mkdir(parents=True)
    link = Path(f"/tmp/codeverdict-{process}-link")
    link.symlink_to(folder)
    for path in (folder, folder / "inner", link):
        os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)
    try:
        scratch.remove_of(process)
        assert (folder / "inner").is_dir() and link.is_symlink()
        as_somebody(lambda: scratch.remove_of(process))
        assert folders_of(process) == []
    finally:
        link.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def test_folders_of_servers_that_were_killed_are_removed_at_the_next_start() -> None:
    """A server that lives keeps its folder, and what only has such a name is left alone."""
    other = Path(f"/tmp/codeverdict-{os.getpid()}-results")
    other.mkdir()
    with Runner(tier="none") as runner:
        assert runner.run(RIGHT, TESTS).passed
        [server] = runner._servers
        [folder] = folders_of(server.process)
        with Runner(tier="none") as following:
            assert following.run(RIGHT, TESTS).passed
        assert folders_of(server.process) == [folder]
        os.kill(server.process, signal.SIGKILL)
        server._process.wait()
        assert folders_of(server.process) == [folder]
        with Runner(tier="none") as following:
            assert following.run(RIGHT, TESTS).passed
        assert folders_of(server.process) == [] and other.is_dir()
    other.rmdir()


def test_a_server_that_starts_leaves_the_folder_of_one_that_starts_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = scratch._open_folder

    def opened_late(*words: Any) -> int:
        scratch.remove_stale()
        return opened(*words)

    monkeypatch.setattr(scratch, "_open_folder", opened_late)
    started = Scratch(None)
    assert folders_of(os.getpid()) == [Path(started.folder).parent.name]
    started.remove()
    assert folders_of(os.getpid()) == []


def test_bytes_and_entries_are_counted_at_any_depth(own: Scratch) -> None:
    deep = Path(own.folder, *"abcdefgh")
    deep.mkdir(parents=True)
    for number in range(16):
        with open(deep / str(number), "wb") as file:
            file.truncate(BYTES // 16)
    assert not own.overfull()
    assert own.overfull(1)
    Path(own.folder, "a", "one").write_bytes(b"x")
    assert own.overfull()
    Path(own.folder, "a", "one").unlink()
    for number in range(ENTRIES - 24):
        (deep / f"empty{number}").touch()
    assert not own.overfull()
    (deep.parent / "more").mkdir()
    assert own.overfull()


def test_a_job_with_folders_deeper_than_a_path_exceeds_its_limit(own: Scratch) -> None:
    nest(own.folder, 17, "d" * 255)
    assert own.overfull()


@pytest.mark.parametrize("error", [FileNotFoundError, NotADirectoryError])
def test_an_incomplete_count_is_repeated(
    own: Scratch, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Renaming folders all the time must not hide them; folders that come and go are not too
    much."""
    missed = 0

    def listed(name: str, above: int) -> tuple[list[int], list[str]]:
        nonlocal missed
        missed += 1
        if name != "." and missed % 50:
            raise error(name)
        return counted(name, above)

    counted = scratch._list_folder
    monkeypatch.setattr(scratch, "_list_folder", listed)
    Path(own.folder, "a").mkdir()
    assert not own.overfull()
    for number in range(ENTRIES):
        Path(own.folder, "a", str(number)).touch()
    missed = 0
    assert own.overfull()


def test_a_job_that_prevents_counting_exceeds_its_limit(own: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(name: str, above: int) -> tuple[list[int], list[str]]:
        raise FileNotFoundError(name)

    monkeypatch.setattr(scratch, "_list_folder", listed)
    assert own.overfull()


# What programs leave, through a runner without mounts of its own.

LEAVING = dict(sections("leaving.txt"))
LOOKING = (
    "import os, tempfile\ntop = os.getcwd()\nassert tempfile.gettempdir() == top == os.environ['TMPDIR']\n"
    "def f(x):\n    return x * x if os.listdir(top) == [] and os.stat(top).st_nlink == 2 else os.listdir(top)\n"
)


def in_folders(process: int) -> list[str]:
    """What lies in the folder of a server, besides an empty folder for the next job."""
    return [str(path) for name in folders_of(process) for path in Path("/tmp", name).glob("*/*")]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_server_killed_during_a_job_leaves_no_process_or_folder(how: signal.Signals) -> None:
    code = LEAVING["sixty nested folders | passed"] + f"import time\ntime.sleep(20)  # {how}\n" + RIGHT
    with Runner(seconds=1.0, tier="landlock") as own:
        assert own.run(RIGHT, TESTS).passed
        [server] = own._servers
        verdict = own.submit(Job(code, TESTS))  # asked again, of another server
        assert until(lambda: len(programs_of(server.process, "landlock")) == 2)
        programs = programs_of(server.process, "landlock")
        assert until(lambda: in_folders(server.process))
        os.kill(server.process, how)
        assert until(lambda: not any(map(is_alive, programs)))
        assert until(lambda: not folders_of(server.process))
        assert verdict.result().outcome == "timeout"


def until(true: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not (found := bool(true())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


DRIVER = """
import json, os, sys
from codeverdict import Runner, launch, probe_tiers
launch._site_packages = lambda: [LIBRARIES]
tier, programs, after, tests = json.load(sys.stdin)
[probe] = probe_tiers(1024, (tier,))
if not probe.works:
    sys.exit(print(json.dumps(probe.reason)))
found = {}
with Runner(seconds=10.0, tier=tier) as runner:
    for what, code in programs.items():
        verdict = runner.run(code, tests)
        [server] = runner._servers
        names = [name for name in os.listdir("/tmp") if name.startswith(f"codeverdict-{server.process}-")]
        jobs = [f"/tmp/{name}/{job}" for name in names for job in os.listdir(f"/tmp/{name}")]
        left = [each for job in jobs for each in os.listdir(job)]
        found[what] = [verdict.outcome, verdict.error, left, runner.run(after + "# " + what, tests).outcome]
    runner.run(programs[what] + "# last", tests)
left = [name for name in os.listdir("/tmp") if name.startswith(f"codeverdict-{server.process}-")]
print(json.dumps([found, left]))
"""


def answer_of(user: int, tier: str, programs: dict[str, str], after: str) -> list[Any]:
    """Run programs as a user; return how each ended, and what was left when the runner was
    closed."""
    start = f"import sys; assert sys.version_info >= (3, 11); sys.path.insert(0, {SOURCE!r})\n"
    start += f"LIBRARIES = {str(Path(pytest.__file__).parents[1])!r}\n"
    pythons = [os.path.realpath(sys.executable), *filter(None, [shutil.which("python3", path=os.defpath)])]
    for python in pythons:
        with contextlib.suppress(PermissionError):
            tried = run_as(user, [python, "-P", "-s", "-c", start + "import codeverdict.runner"], "")
            if tried.returncode == 0:
                break
    else:
        pytest.skip("no Python here that an ordinary user may run")
    asked = json.dumps([tier, programs, after, TESTS])
    done = run_as(user, [python, "-P", "-s", "-c", start + DRIVER], asked)
    assert done.returncode == 0, done
    answer: list[Any] | str = json.loads(done.stdout)
    if isinstance(answer, str):
        pytest.skip(f"{tier}: {answer}")
    return answer


def run_as(user: int, command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    ids = {"user": user, "group": user, "extra_groups": []} if user != os.geteuid() else {}
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd="/", env={}, timeout=120, **ids)


@pytest.mark.parametrize("user", USERS)
def test_a_job_finds_an_empty_folder_and_is_ended_if_it_fills_it(user: int) -> None:
    programs = {title: code + RIGHT for title, code in LEAVING.items()}
    ends, left = answer_of(user, "landlock", programs, LOOKING)
    reasons = {"passed": "", "crashed": "more output or files than a program may make"}
    outcomes = {title: title.partition(" | ")[2] for title in programs}
    assert ends == {title: [end, reasons[end], [], "passed"] for title, end in outcomes.items()}
    assert left == []


THREADS = (
    "import threading, time\nthreading.stack_size(32768)\nstarted = 0\ntry:\n    while started < 5000:\n"
    "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n        started += 1\n"
    "except RuntimeError:\n    pass\nassert started < 64, started\n"
)


def test_threads_of_programs_are_limited(tier: Tier) -> None:
    """An ordinary user's in namespaces; elsewhere a limit would count all other processes of this
    user."""
    programs = {f"threads {number}": f"# {number}\n{THREADS}{RIGHT}" for number in range(5)}
    for user in USERS:
        ends, _ = answer_of(user, tier if user == 0 else "namespaces", programs, RIGHT)
        assert ends == {what: ["passed", "", [], "passed"] for what in programs}


@pytest.mark.skipif(not ROOT, reason="only root can become a user that has no processes")
def test_a_fork_that_is_refused_is_an_error() -> None:
    """It was process -1: who ends that one ends every process there is."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        with pytest.raises(BlockingIOError):
            system.fork()

    as_somebody(work)


def test_a_fork_waits_for_processes_that_are_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter([BlockingIOError, BlockingIOError])

    def fork() -> int:
        for refusal in refusals:
            raise refusal
        return 17

    monkeypatch.setattr(system, "fork", fork)
    assert job._forked(lambda: None) == 17
    monkeypatch.setattr(job, "_FORK_SECONDS", 0.0)
    refusals = iter([BlockingIOError] * 100)
    with pytest.raises(BlockingIOError):
        job._forked(lambda: None)


def test_a_script_that_fills_the_folder_is_ended_with_or_without_output() -> None:
    fill = (
        "for n in range(700):\n    open(f'd/{n}', 'wb').write(bytes(1 << 20))\n    say(n)\n    time.sleep(0.01)\n"
    )
    with Runner(seconds=60.0, tier="landlock") as runner:
        for say in ("say = lambda n: print(n, flush=True)", "os.close(1)\nsay = lambda n: None"):
            verdict = runner.run_io(f"import os, time\nos.mkdir('d')\n{say}\n{fill}", [("", "1")])
            assert (verdict.outcome, verdict.error) == ("crashed", "more output or files than a program may make")


@pytest.mark.parametrize(("solution", "tests", "broken"), [(1.5, 1.0, ""), (1.5, 0.2, "time"), (0.9, 0.0, "")])
def test_a_program_is_not_charged_for_the_calls_that_its_tests_send(
    solution: float, tests: float, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {11: solution, 12: tests}
    monkeypatch.setattr(job, "_processor_seconds", used.__getitem__)
    folder: Any = SimpleNamespace(overfull=lambda more: False, nameless=lambda maps: 0)
    running = job.Job(None, folder, jail.Limits(seconds=1.0, wall=60.0, memory_mb=64))  # type: ignore[arg-type]
    running._processes += used
    assert running.overrun() == broken
