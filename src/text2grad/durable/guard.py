"""Detect concurrent runs in a folder, low memory and full disks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from text2grad.errors import UserError

LOCK = "run.lock"


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold the folder. The lock dies with its owner, so what a killed run left is taken over.

    Raises:
        UserError: another process trains there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    handle = _locked(path)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise UserError(
                f"another run is training in {path.parent} (process {owner})", "wait for it, or take another name"
            ) from error
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)  # its owner removed it between our two calls


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if a GPU, torch's CPU allocator or Python ran out of memory: in this error or in
    its cause."""
    if error is None:
        return False
    words = ("can't allocate memory", "not enough memory", "out of memory")
    told = isinstance(error, RuntimeError) and any(each in str(error) for each in words)
    return told or isinstance(error, torch.OutOfMemoryError | MemoryError) or is_out_of_memory(error.__cause__)


@contextmanager
def writing(what: object) -> Iterator[None]:
    """A disk error as one line; what was written before stays as it is.

    Raises:
        UserError: the disk is full, or cannot be written to for another reason.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        cure = (
            "make room on the disk, or see what else is wrong with it; the same command resumes from what is saved"
        )
        raise UserError(f"cannot write {what}: {reason}", cure) from error
