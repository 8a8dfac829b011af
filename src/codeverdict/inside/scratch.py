"""Scratch folders for programs, a new one for every job.

A server creates and locks a folder, and creates one for each job in it. All operations use
descriptors of folders and follow no links, so that a program gains nothing by replacing a folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time

BYTES = 16 << 20
"""Maximum total size of a job's files in bytes."""
ENTRIES = 256
"""Maximum number of a job's files and folders at any depth."""

_PARENT = "/tmp"
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_JOB = "job"
_NAME = re.compile(r"codeverdict-\d+-[0-9a-f]{16}")
_COUNTS = 100
_DYING_SECONDS = 1.0


class Scratch:
    """A folder of this process with a folder for the running job, owned by the programs' user."""

    def __init__(self, user: int | None) -> None:
        """Create the folder of this process.

        Raises:
            OSError: it cannot be created.
        """
        self._user = user
        self._job = -1
        self._begin()

    def _begin(self) -> None:
        path = os.path.join(_PARENT, f"{_prefix(os.getpid())}{os.urandom(8).hex()}")
        unlocked = f"{path}-new"  # not a name that `remove_stale` matches
        os.mkdir(unlocked, 0o700)  # fails if it exists
        self._own = _open_folder(unlocked)
        fcntl.flock(self._own, fcntl.LOCK_SH)  # as long as this process lives
        os.rename(unlocked, path)
        os.fchmod(self._own, 0o700 if self._user is None else 0o711)
        self.folder = os.path.join(path, _JOB)
        self._removed = re.compile(rb" (\d+) +%s/.* \(deleted\)\n" % self.folder.encode())

    def renew(self) -> None:
        """Create the folder of the next job, and set `folder` to its path, which may change.

        Raises:
            OSError: it cannot be created.
        """
        self.empty()
        try:
            self._make()
        except OSError:  # an unprotected program may have damaged the folder of the server
            os.close(self._own)
            self._begin()
            self._make()

    def _make(self) -> None:
        os.mkdir(_JOB, 0o700, dir_fd=self._own)
        self._job = os.open(_JOB, os.O_RDONLY | _FOLDER, dir_fd=self._own)
        if self._user is not None:
            os.fchown(self._job, self._user, self._user)

    def nameless(self, maps: int) -> int:
        """Count the removed files of the job that a process still maps.

        They still hold data but appear in no folder. `maps` is the descriptor of the process's
        /proc/<process>/maps.
        """
        removed: set[bytes] = set()
        os.lseek(maps, 0, os.SEEK_SET)
        while lines := os.read(maps, 1 << 16):  # the kernel returns complete lines
            removed.update(self._removed.findall(lines))
        return len(removed)

    def overfull(self, unnamed: int = 0) -> bool:
        """Return True if a job, which may be running, exceeds its limits of entries or bytes.

        `unnamed` are bytes of removed files, which are added. Counting restarts if a file was
        renamed or removed meanwhile. A job exceeds its limits if no count can be completed, or if
        folders are nested deeper than a path can be long.
        """
        for _ in range(_COUNTS):
            try:
                return self._exceeds(unnamed)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                break
        return True

    def _exceeds(self, size: int) -> bool:
        entries, waiting = 0, ["."]
        while waiting:
            name = waiting.pop()
            sizes, folders = _list_folder(name, self._job)
            entries += len(sizes) + len(folders)
            size += sum(sizes)
            if entries > ENTRIES or size > BYTES:
                return True
            waiting += [f"{name}/{inner}" for inner in folders]
        return False

    def empty(self) -> None:
        """Remove the folder of an ended job; what cannot be removed now is left to `remove`."""
        if self._job < 0:
            return
        os.close(self._job)
        self._job = -1
        try:
            os.rmdir(_JOB, dir_fd=self._own)
        except OSError:  # it is not empty, or was replaced
            _remove(self.folder)

    def remove(self) -> None:
        """Remove everything when the server ends."""
        self.empty()
        os.close(self._own)
        remove_of(os.getpid())


def remove_of(process: int) -> None:
    """Remove the folders of a server that has ended or was killed.

    Folders of other users with such names are kept.
    """
    for entry in os.scandir(_PARENT):
        with contextlib.suppress(FileNotFoundError):
            if entry.name.startswith(_prefix(process)) and _owner(entry) == os.geteuid():
                _remove(entry.path, _DYING_SECONDS)


def remove_stale() -> None:
    """Remove the folders of servers that were killed with their caller, which are unlocked."""
    for entry in os.scandir(_PARENT):
        if _NAME.fullmatch(entry.name):
            with contextlib.suppress(OSError):  # another user's, already removed, or of a running server
                folder = os.open(entry.path, os.O_RDONLY | _FOLDER)
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _owner(entry) == os.geteuid():
                        _remove(entry.path)
                finally:
                    os.close(folder)


def _owner(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_uid


def _prefix(process: int) -> str:
    return f"codeverdict-{process}-"


def _remove(path: str, seconds: float = 0.0) -> None:
    """Try to remove a folder, or what replaced it, recursively and without following links.

    Retries for `seconds`, because killed processes may still write for a moment.
    """
    deadline = time.monotonic() + seconds
    while not _run("rm", "-rf", "--", path):
        if os.geteuid() and not os.path.islink(path):
            _run("chmod", "-R", "u+rwx", "--", path)  # folders that a program closed
        if time.monotonic() > deadline:
            _run("rm", "-rf", "--", path)
            return
        time.sleep(0.01)


def _run(*words: str) -> bool:
    """Run a system tool, which can handle trees of any depth; return True if it succeeded."""
    to = os.POSIX_SPAWN_OPEN
    silent = [(to, 1, os.devnull, os.O_WRONLY, 0), (to, 2, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawnp(words[0], words, {"PATH": os.defpath}, file_actions=silent)
    return os.waitpid(process, 0)[1] == 0


def _list_folder(name: str, above: int) -> tuple[list[int], list[str]]:
    """Return file sizes and folder names in a folder, cut off above the limit of entries."""
    folder = _open_folder(name, above)
    sizes, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    sizes.append(entry.stat(follow_symlinks=False).st_size)
                if len(sizes) + len(folders) > ENTRIES:
                    break
    finally:
        os.close(folder)
    return sizes, folders


def _open_folder(name: str, above: int | None = None) -> int:
    """Open a folder and make it accessible to its owner; refuse links and other file systems.

    Raises:
        OSError: it does not exist, or is not such a folder.
    """
    place = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
    try:
        status = os.fstat(place)
        if above is not None and os.fstat(above).st_dev != status.st_dev:
            raise PermissionError(errno.EPERM, "not a folder of ours", name)
        if status.st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", os.O_RDONLY | _FOLDER, dir_fd=place)
    finally:
        os.close(place)
