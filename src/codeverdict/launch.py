"""Start the warm server in the best tier of this machine, and talk to it."""

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
"""Unused user numbers: when root starts the sandbox, the programs of each server run as a user of
their own."""

INSTALL = "on Debian and Ubuntu: apt install bubblewrap; or a Linux kernel of 6.2 or newer with Landlock"
"""How to get protection on a machine that has none."""


class NotSafeError(Exception):
    """None of the requested protection works on this machine. `cure` says what to install."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message} ({cure})")
        self.message, self.cure = message, cure


class Dead(Exception):
    """The server ended, or did not answer in time."""


@dataclass(frozen=True)
class Probe:
    """Whether a tier works here: what was tried from inside and was blocked, or why the tier does
    not work."""

    tier: Tier
    works: bool
    reason: str = ""
    held: dict[str, bool] = field(default_factory=dict)


class Server:
    """A running server process. It serves one job at a time."""

    def __init__(self, tier: Tier, memory_mb: int, preload: tuple[str, ...] = ()) -> None:
        """Start it and have it probe its own protection.

        Raises:
            Dead: it does not work in this tier; says why.
        """
        self.tier = tier
        _compile()
        scratch.remove_stale()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = frames.Channel(here.detach())
        with there:
            self._process = subprocess.Popen(
                _command(tier),
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath, **_ENVIRONMENT},
            )
        try:
            with _dead_if_closed():
                self._channel.send(_setup(tier, memory_mb, preload))
                reply, _ = self._channel.receive(START_SECONDS)
            self.held: dict[str, bool] = _proof(tier, reply)
        except Dead:
            self.close()
            raise

    @property
    def process(self) -> int:
        """Its process number."""
        return self._process.pid

    def run(
        self, words: dict[str, Any], descriptors: tuple[int, ...], seconds: float
    ) -> tuple[tuple[int, ...], str]:
        """Have a job done, at most `seconds` long: the files it reads and writes are duplicated for
        its processes.

        Returns: the wait status of each process (job.RUNNING where it had to be killed), and which
        limit it broke.

        Raises:
            Dead: the server is gone, or does not answer.
        """
        with _dead_if_closed():
            self._channel.send(words, descriptors)
            reply, _ = self._channel.receive(seconds + GRACE_SECONDS)
        return tuple(reply["ends"]), str(reply["broken"])

    def close(self) -> None:
        """End it, and everything it started."""
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
    """A server in the tier that was asked for, or for `auto` in the best that works here.

    Raises:
        NotSafeError: it does not work here, or none does; names the cure.
    """
    reasons = []
    for tier in _BEST_FIRST if choice == "auto" else (choice,):
        known = _PROBED.get(tier)
        reason = known.reason if known and not known.works else _missing(tier)
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
    """Start each tier once in this process, and say whether it held."""
    for tier in tiers:
        if tier not in _PROBED:
            with contextlib.suppress(NotSafeError):  # why is noted
                server = start(tier, memory_mb)
                server.close()
                _PROBED[tier] = Probe(tier, True, held=server.held)
        yield _PROBED[tier]


def _compile() -> None:
    """Compile the sources once: memory that a server spends on compiling is inherited by every
    job."""
    compileall.compile_dir(_PACKAGE / "inside", quiet=2)  # without it servers are slower, and right


def _missing(tier: Tier) -> str:
    """What this tier needs and this machine lacks; "" if nothing."""
    if tier == "none":
        return ""
    if platform.system() != "Linux":
        return "needs Linux"
    if not seccomp.supported():
        return f"no list of system calls for {platform.machine()}"
    if landlock.abi() < landlock.MINIMUM_ABI:
        return f"Landlock of version {landlock.MINIMUM_ABI} is needed, here is {landlock.abi()}"
    if tier == "namespaces" and shutil.which("bwrap", path=os.defpath) is None:
        return f"no bubblewrap in {os.defpath}"  # the server is started from there, whatever PATH is
    return ""


def _proof(tier: Tier, reply: dict[str, Any]) -> dict[str, bool]:
    if "refused" in reply:
        raise Dead(str(reply["refused"]))
    held: dict[str, bool] = reply["probes"]
    escaped = [name for name, kept in held.items() if not kept]
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
    """A box with the system's libraries, Python, its packages and this one, all read-only, and no
    network.

    Only the server of root has capabilities in it, for the change to another user in each job and
    for that user's files; others get a user namespace.
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
        words += ["--perms", "0755", "--dir", folder]  # else as closed as the folder of that name outside
    for path in bound:
        words += ["--ro-bind", path, path]
    return [*words, "--"]
