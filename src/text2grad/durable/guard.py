"""Detect concurrent runs in a folder and full disks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from text2grad.errors import UserError

LOCK = "run.lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for this process.

    The lock ends with its owner, so the folder of a killed run can be locked again.

    Raises:
        UserError: another process trains there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    handle = _acquire_lock(path)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _acquire_lock(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise UserError(
                f"another run is training in {path.parent} (process {owner})", "wait for it, or rename the run"
            ) from error
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)  # its owner removed the file between our two calls


@contextmanager
def report_disk_errors(target: object) -> Iterator[None]:
    """Turn a failure to write `target` into a one-line error.

    Raises:
        UserError: the disk is full or cannot be written to.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        cure = "free disk space or fix the disk; the same command resumes from the last checkpoint"
        raise UserError(f"cannot write {target}: {reason}", cure) from error
