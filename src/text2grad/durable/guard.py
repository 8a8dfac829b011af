"""What may befall a training process: a second one in its folder, a signal, too little memory, a full disk."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError

from text2grad.errors import EXIT_TERMINATED, UserError

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


class StopRequest:
    """SIGTERM and Ctrl-C inside this context: the first asks to stop after the step, the second stops at once.

    `signal` is the one that came, or 0. Ignored signals (nohup) stay ignored; outside the main thread this does
    nothing.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            leave(number)
        self.signal = number
        os.write(2, b"stopping after this step; again: at once\n")


def leave(number: int) -> NoReturn:
    """End as the signal wants it: KeyboardInterrupt (exit code 130), or exit code 143."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(EXIT_TERMINATED)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a GPU, torch's CPU allocator or Python itself ran out of memory."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    told = isinstance(error, RuntimeError) and any(each in str(error) for each in words)
    return told or isinstance(error, torch.OutOfMemoryError | MemoryError)


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
