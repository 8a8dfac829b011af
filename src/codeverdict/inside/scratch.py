"""The folders that programs write in: a new one for every job.

A server makes a folder of its own, which it locks, and in it one for each job. All work is done
from descriptors of folders, and no link is ever followed: what a program puts in the place of a
folder leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time

BYTES = 16 << 20
"""Total size of the files of one job, in bytes."""
ENTRIES = 256
"""How many files and folders one job may have, at any depth."""

_PARENT = "/tmp"
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_JOB = "job"
_NAME = re.compile(r"codeverdict-\d+-[0-9a-f]{16}")
_COUNTS = 100
_DYING_SECONDS = 1.0


class Scratch:
    """A folder of this process's own, and in it one of the job that runs, for the user that
    programs run as."""

    def __init__(self, user: int | None) -> None:
        """Raises OSError if none can be made."""
        self._user = user
        self._job = -1
        self._begin()

    def _begin(self) -> None:
        path = os.path.join(_PARENT, f"{_prefix(os.getpid())}{os.urandom(8).hex()}")
        unlocked = f"{path}-new"  # no name that `remove_stale` looks for
        os.mkdir(unlocked, 0o700)  # never one that exists
        self._own = _opened(unlocked)
        fcntl.flock(self._own, fcntl.LOCK_SH)  # as long as this process lives
        os.rename(unlocked, path)
        os.fchmod(self._own, 0o700 if self._user is None else 0o711)
        self.folder = os.path.join(path, _JOB)
        self._removed = re.compile(rb" (\d+) +%s/.* \(deleted\)\n" % self.folder.encode())

    def renew(self) -> None:
        """Make the folder of the next job: `folder`, which has another path from now on where it
        must.

        Raises:
            OSError: none can be made.
        """
        self.empty()
        try:
            self._make()
        except OSError:  # a program without protection may have spoilt the folder of the server
            os.close(self._own)
            self._begin()
            self._make()

    def _make(self) -> None:
        os.mkdir(_JOB, 0o700, dir_fd=self._own)
        self._job = os.open(_JOB, os.O_RDONLY | _FOLDER, dir_fd=self._own)
        if self._user is not None:
            os.fchown(self._job, self._user, self._user)

    def nameless(self, maps: int) -> int:
        """How many removed files of the job a process still maps: `maps` is its
        /proc/<process>/maps, open.

        They hold what was written to them, and no folder shows them.
        """
        found: set[bytes] = set()
        os.lseek(maps, 0, os.SEEK_SET)
        while lines := os.read(maps, 1 << 16):  # the kernel gives whole lines
            found.update(self._removed.findall(lines))
        return len(found)

    def overfull(self, unnamed: int = 0) -> bool:
        """Whether a job, which may be at work, has more files and folders or more bytes than one
        may have.

        `unnamed` bytes of files that have no name any more are added. A count that misses what was
        renamed or removed meanwhile is taken again. A job that lets no count be completed has too
        much, and so has one with folders deeper than a path can be long.
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
            sizes, folders = _listed(name, self._job)
            entries += len(sizes) + len(folders)
            size += sum(sizes)
            if entries > ENTRIES or size > BYTES:
                return True
            waiting += [f"{name}/{inner}" for inner in folders]
        return False

    def empty(self) -> None:
        """Remove the folder of the job, which has ended; what cannot be removed is left for
        `remove`."""
        if self._job < 0:
            return
        os.close(self._job)
        self._job = -1
        try:
            os.rmdir(_JOB, dir_fd=self._own)
        except OSError:  # there is something in it, or in its place
            _remove(self.folder)

    def remove(self) -> None:
        """Remove everything: the server ends."""
        self.empty()
        os.close(self._own)
        remove_of(os.getpid())


def remove_of(process: int) -> None:
    """Remove the folders of a server that ends, or that was killed before it could.

    What another user has put under such a name is left alone.
    """
    for entry in os.scandir(_PARENT):
        with contextlib.suppress(FileNotFoundError):
            if entry.name.startswith(_prefix(process)) and _owner(entry) == os.geteuid():
                _remove(entry.path, _DYING_SECONDS)


def remove_stale() -> None:
    """Remove the folders of servers that were killed together with who started them: nobody holds
    their lock."""
    for entry in os.scandir(_PARENT):
        if _NAME.fullmatch(entry.name):
            with contextlib.suppress(OSError):  # another user's, gone, or of a server that lives
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
    """Remove a folder with all that is in it, or what stands in its place; no link is followed.
    What cannot be removed is left.

    It is tried again for some `seconds` where processes that were killed may still write for a
    moment.
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
    """Run a tool of the system's that copes with trees of any depth; whether it did what it was to
    do."""
    to = os.POSIX_SPAWN_OPEN
    silent = [(to, 1, os.devnull, os.O_WRONLY, 0), (to, 2, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawnp(words[0], words, {"PATH": os.defpath}, file_actions=silent)
    return os.waitpid(process, 0)[1] == 0


def _listed(name: str, above: int) -> tuple[list[int], list[str]]:
    """The sizes of the files in a folder, and the names of the folders in it; of more than enough
    not all."""
    folder = _opened(name, above)
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


def _opened(name: str, above: int | None = None) -> int:
    """A descriptor of a folder (no link, and on the file system of the one above it), made usable
    for its owner.

    Raises:
        OSError: it is not there, or something else.
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
