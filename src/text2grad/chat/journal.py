"""An append-only journal of paid answers, so that no answer is lost or paid for twice.

The journal has one JSON object per line. An answer is written as received, before it is parsed. Its
verdict follows on a separate line, written together with the next answer; a lost verdict is judged
again at no cost. After a crash the file has every answer that arrived, except perhaps an incomplete
last line, which is cut when the journal is opened. A lock, released when its process ends, allows
one writer at a time. A failed write is undone and is the last one, so that no line can follow half
a line.

Text of a server is not trusted when the journal is loaded either: counts and prices that are not
finite numbers >= 0 are dropped, and an unreadable answer becomes an empty one, which is judged
invalid.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Self, get_args

from text2grad.errors import UserError
from text2grad.feedback import FailureKind
from text2grad.json_text import ExcessiveJSONError, from_json

State = Literal["ok", "refused", "invalid", "exhausted"]
STATES: tuple[State, ...] = get_args(State)
FAILURE_STATES: Mapping[FailureKind, State] = {
    "refused": "refused",
    "invalid": "invalid",
    "truncated": "invalid",
    "unsupported": "invalid",
    "exhausted": "exhausted",
}
"""The final state of a question whose answer is a failure."""
SYNC_SECONDS = 0.5
"""Maximum seconds between writing an answer and its fsync, which a power loss may cost."""
_ANSWER = re.compile(rb'\{"is": ?"answer", ?"id": ?"([^"\\]+)"')
_REQUIRED = {
    "note": {"name", "value"},
    "answer": {"id", "text"},
    "failure": {"id", "kind"},
    "charge": {"id", "usd"},
    "state": {"id", "state"},
}


@dataclass(slots=True)
class Slot:
    """The state of one request, and where its last line is in the file.

    `state` is None until the answer has a verdict. `offset` (-1 without a line) and `size` are in
    bytes. `answered`: the last line is an answer.
    """

    state: State | None = None
    answers: int = 0
    offset: int = -1
    size: int = 0
    answered: bool = False


@dataclass
class Totals:
    """Totals of all answers in a journal: tokens counted by the server, USD at the prices then.

    `unpriced` counts answers without a price. `charged` is the maximum price of requests without an
    answer, which the server may still charge for.
    """

    answers: int = 0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    seconds: float = 0.0
    usd: float = 0.0
    unpriced: int = 0
    charged: float = 0.0

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one answer."""
        usage = line.get("usage", {})
        self.answers += 1
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.completion_tokens += usage.get("completion_tokens", 0)
        self.seconds += line.get("seconds", 0.0)
        self.usd += line.get("usd") or 0.0
        self.unpriced += line.get("usd") is None


class Journal:
    """An open journal, safe to use from many threads.

    The index in memory (`slots`) has one entry of about 200 bytes per request; answers stay on
    disk.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.slots: dict[str, Slot] = {}
        self.notes: dict[str, Any] = {}
        self.totals = Totals()
        self._earlier: dict[str, list[tuple[int, int]]] = {}  # offset and size of replaced answers
        self._handle, self._end = handle, 0
        self._guard, self._synced = Lock(), time.monotonic()
        self._broken = ""
        self._states: list[bytes] = []

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock and load a journal, and cut an incomplete last line.

        Raises:
            UserError: another process is writing it, it cannot be written, or a line is damaged.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", "choose another --out") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            journal = cls(path, handle)
            journal._load()
        except BaseException as error:  # any error: the file must not stay open and locked
            os.close(handle)
            if isinstance(error, BlockingIOError):
                cure = "wait for it, or choose another --out"
                raise UserError(f"another process is writing {path}", cure) from error
            raise
        return journal

    @classmethod
    def temporary(cls) -> Self:
        """Create a journal that is deleted when it is closed."""
        handle, name = tempfile.mkstemp(prefix="text2grad.")
        os.unlink(name)
        return cls(Path(name), handle)

    def _load(self) -> None:
        """Index all lines, and cut the file after the last line break."""
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    os.ftruncate(self._handle, self._end)
                    return
                try:
                    line = _line_of(raw)
                except (ValueError, KeyError, TypeError) as error:
                    message = f"{self.path}:{number}: not a line of a journal"
                    raise UserError(message, f"remove line {number}") from error
                self._index(line, self._end, len(raw))
                self._end += len(raw)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write everything to the disk and release the lock."""
        if self._handle >= 0:
            try:
                if not self._broken:
                    with self._guard:
                        self._write(b"")
                    self._sync()
            finally:
                os.close(self._handle)
                self._handle = -1

    def answer(self, id: str, line: Mapping[str, Any]) -> dict[str, Any]:
        """Write a raw answer (text, truncated, usage, usd, seconds) and return its line."""
        return self._append({"is": "answer", "id": id, **line})

    def failure(self, id: str, kind: str, message: str) -> dict[str, Any]:
        """Write the reason of a missing answer and return its line."""
        return self._append({"is": "failure", "id": id, "kind": kind, "message": message})

    def charge(self, id: str, usd: float, why: str) -> None:
        """Add the price of a request without an answer that the server may charge for."""
        self._append({"is": "charge", "id": id, "usd": usd, "message": why})

    def settle(self, id: str, state: State) -> None:
        """Set the final state of a request; a later answer reopens it."""
        line = {"is": "state", "id": id, "state": state}
        with self._guard:
            self._states.append(_encoded(line))
            self._index(line)

    def note(self, name: str, value: Any) -> None:
        """Store a value about the job under a name; the last value counts."""
        self._append({"is": "note", "name": name, "value": value})

    def slot(self, id: str) -> Slot:
        """Return the state of a request; an empty slot if it is not in the journal."""
        return self.slots.get(id) or Slot()

    def last(self, id: str) -> dict[str, Any]:
        """Return the last answer or failure of a request, as written.

        Raises:
            KeyError: the request has none.
        """
        slot = self.slots[id]
        return self._read_line(slot.offset, slot.size)

    def earlier(self, id: str) -> list[dict[str, Any]]:
        """Return the answers to a question before its last one."""
        return [self._read_line(*entry) for entry in self._earlier.get(id, ())]

    def _read_line(self, offset: int, size: int) -> dict[str, Any]:
        data = os.pread(self._handle, size, offset)
        if len(data) < size:
            raise UserError(f"{self.path} was truncated", "do not change the journal while it is in use")
        return _line_of(data)

    def _append(self, line: dict[str, Any]) -> dict[str, Any]:
        line = _clean(line)
        data = _encoded(line)
        with self._guard:
            self._index(line, self._write(data), len(data))
            sync_is_due = time.monotonic() - self._synced > SYNC_SECONDS
            if sync_is_due:
                self._synced = time.monotonic()
        if sync_is_due:
            self._sync()
        return line

    def _write(self, data: bytes) -> int:
        """Write the pending states and `data` in one call; return the offset of `data`."""
        states, self._states = b"".join(self._states), []
        if not self._broken and (states or data):
            try:
                count = os.write(self._handle, states + data)
                self._broken = "" if count == len(states) + len(data) else "the disk is full"
            except OSError as error:
                self._broken = str(error.strerror)
            if self._broken:
                with suppress(OSError):  # the incomplete line is otherwise cut at the next start
                    os.ftruncate(self._handle, self._end)
        self._raise_if_broken()
        self._end += len(states) + len(data)
        return self._end - len(data)

    def _sync(self) -> None:
        try:
            os.fsync(self._handle)
        except OSError as error:
            self._broken = str(error.strerror)
        self._raise_if_broken()

    def _raise_if_broken(self) -> None:
        if self._broken:
            cure = "free some space and run the same command again"
            raise UserError(f"cannot write {self.path}: {self._broken}", cure)

    def _index(self, line: Mapping[str, Any], offset: int = -1, size: int = 0) -> None:
        kind = line["is"]
        if kind == "note":
            self.notes[line["name"]] = line["value"]
            return
        if kind == "charge":
            self.totals.charged += line["usd"]
            return
        slot = self.slots.setdefault(line["id"], Slot())
        if kind == "state":
            slot.state = line["state"]
            return
        if slot.answered:
            self._earlier.setdefault(line["id"], []).append((slot.offset, slot.size))
        slot.offset, slot.size, slot.state = offset, size, None
        slot.answered = kind == "answer"
        if slot.answered:
            slot.answers += 1
            self.totals.add(line)


def amount(value: object) -> float | None:
    """Return an untrusted count or price as a float; None unless it is finite and >= 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _line_of(raw: bytes) -> dict[str, Any]:
    """Parse and validate a line of a journal.

    Raises:
        ValueError, KeyError, TypeError: it is invalid.
    """
    try:
        line = dict(from_json(raw.decode("utf-8")))
    except ExcessiveJSONError:  # an empty answer is better than a journal that cannot be opened
        if (match := _ANSWER.match(raw)) is None:
            raise
        return _clean({"is": "answer", "id": match[1].decode("utf-8"), "text": ""})
    missing = _REQUIRED[line["is"]] - line.keys()
    name = line.get("name" if line["is"] == "note" else "id")
    if missing or not isinstance(name, str) or (line["is"] == "state" and line["state"] not in STATES):
        raise ValueError("not a line of a journal")
    return _clean(line)


def _clean(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line without invalid texts, counts and prices."""
    if line["is"] == "charge":
        return {**line, "usd": amount(line["usd"]) or 0.0}
    if line["is"] == "failure":
        kind = line["kind"] if line["kind"] in get_args(FailureKind) else "invalid"
        return {**line, "kind": kind, "message": _text(line.get("message"))}
    if line["is"] != "answer":
        return line
    usage = line.get("usage")
    counts = {str(name): amount(value) for name, value in usage.items()} if isinstance(usage, dict) else {}
    cleaned = {
        "text": _text(line["text"]),
        "usage": {name: count for name, count in counts.items() if count is not None},
        "usd": amount(line.get("usd")),
        "seconds": amount(line.get("seconds")) or 0.0,
    }
    refusal = {"refusal": _text(line["refusal"]) or "refused"} if line.get("refusal") else {}
    return {**line, **cleaned, **refusal}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _encoded(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(line) + "\n").encode("ascii")
