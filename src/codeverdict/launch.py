"""Start a warm server in the best tier of this machine, and communicate with it."""

from __future__ import annotations

import compileall
import contextlib
import itertools
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codeverdict.inside import frames, scratch
from codeverdict.inside.kernel import landlock, seccomp
from codeverdict.results import Tier

TierChoice = Literal["auto", "namespaces", "landlock", "none"]
START_SECONDS = 60.0
GRACE_SECONDS = 5.0

_PACKAGE = Path(__file__).resolve().parent
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from codeverdict.inside.server import main; main()"
_ENVIRONMENT = {
    **{"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
    **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
}
_USERS = itertools.count(1_900_000_000 + os.getpid() % 100_000 * 1000)
"""Unused user ids: if root starts the sandbox, each server runs programs as a separate user."""

INSTALL = "on Debian and Ubuntu: apt install bubblewrap; or a Linux kernel of 6.2 or newer with Landlock"
"""The cure on a machine without protection."""


class NotSafeError(Exception):
    """The requested protection does not work on this machine; `cure` names what to install."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message} ({cure})")
        self.message, self.cure = message, cure


class Dead(Exception):
    """The server ended or did not answer in time."""


@dataclass(frozen=True)
class Probe:
    """The result of starting a tier.

    `held`: by name of an escape attempt from inside, if it was blocked. `reason`: why the tier does
    not work.
    """

    tier: Tier
    works: bool
    reason: str = ""
    held: dict[str, bool] = field(default_factory=dict)


class Server:
    """A running server process, which serves one job at a time."""

    def __init__(self, tier: Tier, memory_mb: int, preload: tuple[str, ...] = ()) -> None:
        """Start the server and let it probe its protection.

        Raises:
            Dead: the tier does not work, with the reason.
        """
        self.tier = tier
        compileall.compile_dir(_PACKAGE / "inside", quiet=2)  # jobs inherit memory, also that of a compiler
        scratch.remove_stale()
        client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = frames.Channel(client_end.detach())
        with server_end:
            self._process = subprocess.Popen(
                _command(tier),
                stdin=server_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath, **_ENVIRONMENT},
            )
        try:
            with _dead_if_closed():
                self._channel.send(_setup(tier, memory_mb, preload))
                reply, _ = self._channel.receive(START_SECONDS)
            self.held: dict[str, bool] = _check_probes(tier, reply)
        except Dead:
            self.close()
            raise

    @property
    def process(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def run(
        self, words: dict[str, Any], descriptors: tuple[int, ...], seconds: float
    ) -> tuple[tuple[int, ...], str]:
        """Run a job for at most `seconds`; its `descriptors` are duplicated for its processes.

        Returns:
            The wait status of each process (job.RUNNING if it had to be killed), and the name of
            the limit that was exceeded.

        Raises:
            Dead: the server has ended or does not answer.
        """
        with _dead_if_closed():
            self._channel.send(words, descriptors)
            reply, _ = self._channel.receive(seconds + GRACE_SECONDS)
        return tuple(reply["ends"]), str(reply["broken"])

    def close(self) -> None:
        """End the server and everything that it started."""
        self._channel.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        scratch.remove_of(self.process)


@contextlib.contextmanager
def _dead_if_closed() -> Iterator[None]:
    try:
        yield
    except frames.Closed as error:
        raise Dead(f"the server ended: {error}") from error


def start(choice: TierChoice, memory_mb: int, preload: tuple[str, ...] = ()) -> Server:
    """Start a server in the requested tier, or for `auto` in the best that works here.

    Raises:
        NotSafeError: the tier does not work here, or none does.
    """
    reasons = []
    for tier in _BEST_FIRST if choice == "auto" else (choice,):
        probe = _PROBED.get(tier)
        reason = probe.reason if probe and not probe.works else _missing(tier)
        if not reason:
            try:
                return Server(tier, memory_mb, preload)
            except Dead as error:
                reason = str(error)
        _PROBED[tier] = Probe(tier, False, reason)
        reasons.append(f"{tier}: {reason}")
    raise NotSafeError(
        f"programs cannot be run safely here ({'; '.join(reasons)})", f"{INSTALL}; the tier `none` protects nothing"
    )


_BEST_FIRST: tuple[Tier, ...] = ("namespaces", "landlock")
_PROBED: dict[Tier, Probe] = {}


def probe_tiers(memory_mb: int, tiers: tuple[Tier, ...] = _BEST_FIRST) -> Iterator[Probe]:
    """Start each tier once per process and yield its probe."""
    for tier in tiers:
        if tier not in _PROBED:
            with contextlib.suppress(NotSafeError):  # `start` records the reason
                server = start(tier, memory_mb)
                server.close()
                _PROBED[tier] = Probe(tier, True, held=server.held)
        yield _PROBED[tier]


def _missing(tier: Tier) -> str:
    """Return what this machine lacks for a tier, or an empty text."""
    if tier == "none":
        return ""
    if platform.system() != "Linux":
        return "needs Linux"
    if not seccomp.supported():
        return f"no list of system calls for {platform.machine()}"
    if landlock.abi() < landlock.MINIMUM_ABI:
        return f"Landlock of version {landlock.MINIMUM_ABI} is needed, here is {landlock.abi()}"
    if tier == "namespaces" and shutil.which("bwrap", path=os.defpath) is None:
        return f"no bubblewrap in {os.defpath}"  # the server is started with this PATH
    return ""


def _check_probes(tier: Tier, reply: dict[str, Any]) -> dict[str, bool]:
    if "refused" in reply:
        raise Dead(str(reply["refused"]))
    held: dict[str, bool] = reply["probes"]
    escaped = [name for name, blocked in held.items() if not blocked]
    if escaped and tier != "none":
        raise Dead(f"a program inside could {', '.join(escaped)}")
    return held


def _setup(tier: Tier, memory_mb: int, preload: tuple[str, ...]) -> dict[str, Any]:
    user = next(_USERS) if tier != "none" and os.geteuid() == 0 else None
    words = {"tier": tier, "memory_mb": memory_mb, "user": user}
    return {**words, "libraries": _site_packages(), "preload": list(preload)}


def _site_packages() -> list[str]:
    paths = sysconfig.get_paths()
    return sorted({os.path.realpath(paths[name]) for name in ("purelib", "platlib")})


def _command(tier: Tier) -> list[str]:
    python = os.path.realpath(sys.executable)
    serve = [python, "-S", "-s", "-P", "-c", _SERVE, str(_PACKAGE.parent)]
    return [*_bubblewrap(), *serve] if tier == "namespaces" else serve


_BOX = (
    "bwrap --die-with-parent --new-session --unshare-pid --unshare-ipc --unshare-net --unshare-uts "
    "--unshare-cgroup-try"
)


_BOX_BYTES = 32 << 20
_NEEDED = "SETUID SETGID SETPCAP KILL CHOWN DAC_OVERRIDE FOWNER"


def _bubblewrap() -> list[str]:
    """Return the command for a box without network, with Python and its libraries read-only.

    A server started by root keeps the capabilities to change to another user and to manage that
    user's files. Other servers get a user namespace.
    """
    words = [*_BOX.split(), "--dev", "/dev", "--size", str(_BOX_BYTES), "--tmpfs", "/tmp", "--chdir", "/"]
    if os.geteuid() == 0:
        words += ["--cap-drop", "ALL"]
        for capability in _NEEDED.split():
            words += ["--cap-add", f"CAP_{capability}"]
    else:
        words += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    for path in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"):
        words += ["--ro-bind-try", path, path]
    prefixes = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}
    bound = [path for path in sorted({*prefixes, *_site_packages(), str(_PACKAGE)}) if not path.startswith("/usr/")]
    for folder in sorted({str(parent) for path in bound for parent in Path(path).parents} - {"/"}):
        words += ["--perms", "0755", "--dir", folder]  # by default with the permissions of the outer folder
    for path in bound:
        words += ["--ro-bind", path, path]
    return [*words, "--"]
