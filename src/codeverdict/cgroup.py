"""A memory limit for a server and all its programs together, where this process may make control groups.

Version 1 and 2; probed, never required: without it each process still has its own limit (RLIMIT_AS).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_JOIN = 'echo $$ > "$0" && exec "$@"'
_NUMBERS = itertools.count()
_REMOVAL_SECONDS = 1.0


class MemoryGroup:
    """A control group of our own; `path` is None where none can be made."""

    def __init__(self, limit_bytes: int) -> None:
        self.path: Path | None = None
        for parent, limit in _candidates(Path("/proc/self/cgroup")):
            _remove_orphans(parent)
            folder = parent / f"codeverdict-{os.getpid()}-{next(_NUMBERS)}"
            with contextlib.suppress(OSError):
                folder.mkdir()
                if _limited(folder, limit, limit_bytes):
                    self.path = folder
                    return
                folder.rmdir()

    def joined(self, command: list[str]) -> list[str]:
        """The command, made to join the group before it begins."""
        return command if self.path is None else ["/bin/sh", "-c", _JOIN, str(self.path / "cgroup.procs"), *command]

    def close(self) -> None:
        """Remove the group; its processes must have ended (the kernel may need a moment)."""
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while self.path is not None:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
            self.path = None


def _candidates(membership: Path) -> list[tuple[Path, str]]:
    """(this process's group, name of the file with the limit), for each hierarchy that may have memory."""
    try:
        lines = membership.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append((_ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"))
        elif not controllers:
            found += [(root / path.lstrip("/"), "memory.max") for root in (_ROOT, _ROOT / "unified")]
    return found


def _remove_orphans(parent: Path) -> None:
    """Remove groups whose creator ended without removing them."""
    for folder in parent.glob("codeverdict-*-*"):
        if not Path(f"/proc/{folder.name.split('-')[1]}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _limited(folder: Path, limit: str, limit_bytes: int) -> bool:
    file = folder / limit
    if not file.exists():
        return False
    file.write_text(str(limit_bytes), encoding="ascii")
    return True
