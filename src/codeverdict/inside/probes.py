"""Attempts to escape, run inside the jail before anything else and by `probe_tiers`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Callable

from codeverdict.inside import frames
from codeverdict.inside.kernel import system


def report(server: int, descriptor: int) -> None:
    """Try everything, and send `{attempt: was_blocked}`."""
    frames.send(descriptor, {name: _held(attempt) for name, attempt in attempts(server).items()})


def attempts(server: int) -> dict[str, Callable[[], object]]:
    """Return attempts by name; each raises OSError if the jail blocks it."""
    return {
        "write a file outside": lambda: _write("/usr/lib/codeverdict-probe"),
        "write to /dev/shm": lambda: _write("/dev/shm/codeverdict-probe"),
        "write to /var/tmp": lambda: _write("/var/tmp/codeverdict-probe"),
        "read the password file": lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
        "read other processes": lambda: os.listdir("/proc/self"),
        "open a connection": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
        "open a unix socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close(),
        "start a process": _fork,
        "run a program": lambda: os.execv("/bin/true", ["true"]),
        "signal the server": lambda: os.kill(server, signal.SIGCONT),
        "signal every process": lambda: os.kill(-1, signal.SIGCONT),
        "trace a process": lambda: _call(101, 117, 16, server, 0, 0),
        "make a namespace": lambda: _call(272, 97, 0x10000000),
        "mount a file system": lambda: _call(165, 40, b"none", b"/tmp", b"tmpfs", 0, b""),
        "use io_uring": lambda: _call(425, 425, 1, ctypes.create_string_buffer(256)),
        "load a BPF program": lambda: _call(321, 280, 0, 0, 0),
        "become another user": lambda: os.setresuid(1, 1, 1),
        "change a file's mode": lambda: os.chmod(".", 0o777),
    }


def _held(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    with contextlib.suppress(OSError):
        os.unlink(path)


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _call(x86_64: int, aarch64: int, *args: object) -> None:
    system.call({"x86_64": x86_64, "aarch64": aarch64}.get(system.machine(), x86_64), *args)
