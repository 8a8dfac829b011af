"""The folder that the programs of a server may write in, where there are no mounts for each job."""

from __future__ import annotations

import contextlib
import os

_PARENT = "/tmp"


class Scratch:
    """A folder of this process's own, or of the user that programs run as."""

    def __init__(self, user: int | None) -> None:
        """Raises OSError where none can be made."""
        self.path = os.path.join(_PARENT, f"{_prefix(os.getpid())}{os.urandom(8).hex()}")
        self._user = user
        self._make()

    def _make(self) -> None:
        os.mkdir(self.path, 0o700)  # never one that exists
        if self._user is not None:
            os.chown(self.path, self._user, self._user)

    def entries(self) -> int:
        """How many files and folders lie in it, those in its folders not counted."""
        return len(os.listdir(self.path))

    def empty(self) -> None:
        """Remove what a program left; the program has ended."""
        try:
            if os.listdir(self.path):
                _clear(self.path)
        except FileNotFoundError:  # a program without protection may remove it
            self._make()

    def remove(self) -> None:
        """Remove it with what is in it."""
        self.empty()
        os.rmdir(self.path)


def remove_of(process: int) -> None:
    """Remove the folder of a server that was killed before it could."""
    for name in os.listdir(_PARENT):
        if name.startswith(_prefix(process)):
            with contextlib.suppress(OSError):
                _clear(os.path.join(_PARENT, name))
                os.rmdir(os.path.join(_PARENT, name))


def _prefix(process: int) -> str:
    return f"text2grad-{process}-"


def _clear(folder: str) -> None:
    import shutil

    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)
