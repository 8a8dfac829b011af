"""The machine around the sandbox, as hostile programs could touch it: files, processes, the
network.

In a hostile program `{out}` is a folder everybody may write to, `{port}` a port of 127.0.0.1 where
somebody listens (TCP and UDP).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path

FIRST_USER = 1_900_000_000
WATCHED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.cwd(), Path.home())


class Machine:
    """What could be touched from the sandbox: files, processes, the network."""

    def __init__(self) -> None:
        self.out = Path("/var/tmp") / f"codeverdict-hostile-{os.getpid()}"
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
                if path.name.startswith("codeverdict-") and path.is_dir():
                    continue  # of this machine, or of another one that is tried at the same time
                if "hostile" in path.name or path.stat().st_uid >= FIRST_USER:
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

    def filled_in(self, code: str) -> str:
        """A hostile program that knows where to write and where to connect."""
        return code.replace("{out}", str(self.out)).replace("{port}", str(self.port))

    def close(self) -> None:
        self.stream.close()
        self.datagrams.close()
        shutil.rmtree(self.out)


def programs_of(server: int, tier: str) -> set[int]:
    """The living processes of programs below a server, which is known by the process that was
    started for it."""
    level = {server}
    for _ in range(2 if tier == "namespaces" else 0):  # bubblewrap, its first process, the server
        level = below(level)
    found: set[int] = set()
    while level := below(level) - found:
        found |= level
    return {process for process in found if is_alive(process)}


def left_over(server: int, tier: str, seconds: float = 10.0) -> set[int]:
    """The same, after those that were killed have had time to end."""
    deadline = time.monotonic() + seconds
    while (found := programs_of(server, tier)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def below(processes: set[int]) -> set[int]:
    """Numbers of the processes that these are the parents of."""
    found: set[int] = set()
    for process in processes:
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found |= set(map(int, file.read_text().split()))
    return found


def is_alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
