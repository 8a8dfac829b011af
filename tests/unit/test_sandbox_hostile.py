"""Hostile programs, in both tiers: none passes, none leaves anything behind, the next one is judged as ever."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import HOSTILE, TESTS, Hostile

from text2grad.sandbox.launch import probe_tiers
from text2grad.sandbox.results import Tier
from text2grad.sandbox.runner import Runner

FIRST_USER = 1_900_000_000
RIGHT = "def f(x):\n    return x * x\n"
WATCHED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.cwd(), Path.home())


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    tier: Tier = request.param
    [probe] = probe_tiers(1024, (tier,))
    if not probe.works:
        pytest.skip(f"{tier}: {probe.reason}")
    with Runner(seconds=2.0, tier=tier, memory_mb=512) as made:
        yield made


class Machine:
    """What could be touched from the sandbox: files, processes, the network."""

    def __init__(self) -> None:
        self.out = Path("/var/tmp") / f"text2grad-hostile-{os.getpid()}"
        self.out.mkdir()
        self.out.chmod(0o777)
        (self.out / "kept").write_text("secret")
        self.stream = socket.create_server(("127.0.0.1", 0))
        self.port = self.stream.getsockname()[1]
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(("127.0.0.1", self.port))
        self.stream.setblocking(False)
        self.datagrams.setblocking(False)
        self.files = self.listing()
        self.status = self.out.stat()

    def listing(self) -> set[str]:
        """Files of the users programs run as, and what is named like a hostile program's file."""
        found = set()
        for path in (path for folder in WATCHED for path in folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):  # other tests come and go
                if "hostile" in path.name or (path.stat().st_uid >= FIRST_USER and "text2grad-" not in path.name):
                    found.add(str(path))
        return found

    def touched(self) -> list[str]:
        """What is not as it was."""
        found = sorted(self.listing() - self.files)
        found += [str(path) for path in self.out.iterdir() if path.name != "kept"]
        if (self.out / "kept").read_text() != "secret":
            found.append("the kept file")
        now = self.out.stat()
        if (now.st_mode, now.st_mtime) != (self.status.st_mode, self.status.st_mtime):
            found.append("the folder's mode or time")
        for listener in (self.stream.accept, lambda: self.datagrams.recv(10)):
            try:
                listener()
            except BlockingIOError:
                continue
            found.append("the network")
        return found

    def close(self) -> None:
        self.stream.close()
        self.datagrams.close()
        shutil.rmtree(self.out)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def descendants(process: int) -> set[int]:
    """Numbers of the processes below one."""
    found: set[int] = set()
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found |= {child} | descendants(child)
    return found


def scratch_folders(runner: Runner) -> list[Path]:
    """Folders that the runner's servers made for programs and did not remove."""
    servers = [server._process.pid for server in runner._servers]
    return [path for pid in servers for path in Path("/tmp").glob(f"text2grad-{pid}-*")]


def below(runner: Runner) -> set[int]:
    [server] = runner._servers
    return descendants(server._process.pid)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_a_hostile_program(runner: Runner, machine: Machine, hostile: Hostile) -> None:
    assert runner.run(RIGHT, TESTS).passed
    before = below(runner) if len(runner._servers) == 1 else set()
    code = hostile.code.replace("{out}", str(machine.out)).replace("{port}", str(machine.port))
    verdict = runner.run(code, hostile.tests)
    assert not verdict.passed, verdict
    assert verdict.outcome in ("failed", "broken", "timeout", "crashed"), verdict
    assert verdict.tier == runner.tier
    assert machine.touched() == []
    assert runner.run(f"{RIGHT}# after {hostile.name}", TESTS).passed
    assert runner.run(f"def f(x):\n    return 4 # {hostile.name}", TESTS).outcome == "failed"
    if before and len(runner._servers) == 1:
        assert below(runner) == before
    assert scratch_folders(runner) == []


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 20 + 15
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE)
