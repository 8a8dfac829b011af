"""The journal of paid answers: append-only, nothing lost, nothing paid twice.

One JSON object per line. An answer is written as received, before it is read; how it was judged
follows in a line of its own, together with the next answer (what is lost of these is judged again,
and costs nothing). After a crash the file holds every answer that arrived, but at most the last
line whole: a torn tail is cut when the journal is opened again. One process writes at a time (a
lock that dies with its owner). A write that fails is taken back and is the last one: no line can
follow half a line.

Text of a server is not trusted when it is read again either: counts and prices that are no finite
numbers from 0 on are left out, and an answer that cannot be read is an empty one, which is judged
as invalid.
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
STATE_OF: Mapping[FailureKind, State] = {
    "refused": "refused",
    "invalid": "invalid",
    "truncated": "invalid",
    "unsupported": "invalid",
    "exhausted": "exhausted",
}
"""How a question ends whose answer is such a failure."""
SYNC_SECONDS = 0.5
"""At most so long an answer waits for its fsync: what a loss of power may cost, not a crash of the
program."""
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
    """What is known of one request: how often it was answered, how it ended, and where its last
    line is.

    `state` is None while it is pending: not asked yet, or answered and not judged. `offset` is -1
    without a line; `size` counts bytes; `answered`: the last line is an answer.
    """

    state: State | None = None
    answers: int = 0
    offset: int = -1
    size: int = 0
    answered: bool = False


@dataclass
class Totals:
    """What all answers of the journal cost. Tokens as the server counted them; USD at the prices of
    their day.

    `unpriced` answers have no price. `charged` is the highest price of requests without an answer,
    which the server may still charge for.
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
    """An open journal. Every method may be called from several threads.

    The index in memory (`slots`) has one small entry per request (about 200 bytes); answers stay on
    disk.

    Raises (from `open`):
        UserError: another process writes it, it cannot be written, or a line in its middle is
        damaged.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.slots: dict[str, Slot] = {}
        self.notes: dict[str, Any] = {}
        self.totals = Totals()
        self._earlier: dict[str, list[tuple[int, int]]] = {}  # offset and size of answers that were asked for again
        self._handle, self._end = handle, 0
        self._guard, self._synced = Lock(), time.monotonic()
        self._broken = ""
        self._states: list[bytes] = []

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take the lock, cut a torn tail, and read what is there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", "choose another --out") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            journal = cls(path, handle)
            journal._load()
        except BaseException as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                cure = "wait for it, or choose another --out"
                raise UserError(f"another process is writing {path}", cure) from error
            raise
        return journal

    @classmethod
    def temporary(cls) -> Self:
        """A journal that is gone when it is closed."""
        handle, name = tempfile.mkstemp(prefix="text2grad.")
        os.unlink(name)
        return cls(Path(name), handle)

    def _load(self) -> None:
        """Read all lines, and cut what follows the last line break."""
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
        """Bring everything to the disk and give the lock back."""
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
        """Keep a raw answer: text, truncated, usage, usd, seconds. Returns the line as it was
        written."""
        return self._append({"is": "answer", "id": id, **line})

    def failure(self, id: str, kind: str, message: str) -> dict[str, Any]:
        """Keep why there is no answer. Returns the line as it was written."""
        return self._append({"is": "failure", "id": id, "kind": kind, "message": message})

    def charge(self, id: str, usd: float, why: str) -> None:
        """Count a request that had no answer, but which the server may have counted."""
        self._append({"is": "charge", "id": id, "usd": usd, "message": why})

    def settle(self, id: str, state: State) -> None:
        """Say how a request ended. A later answer opens it again."""
        line = {"is": "state", "id": id, "state": state}
        with self._guard:
            self._states.append(_encoded(line))
            self._index(line)

    def note(self, name: str, value: Any) -> None:
        """Remember something about the job itself; the last value of a name counts."""
        self._append({"is": "note", "name": name, "value": value})

    def slot(self, id: str) -> Slot:
        """What is known of a request; an empty slot if nothing is."""
        return self.slots.get(id) or Slot()

    def last(self, id: str) -> dict[str, Any]:
        """The last answer or failure of a request, as it was written.

        Raises:
            KeyError: there is none.
        """
        slot = self.slots[id]
        return self._read(slot.offset, slot.size)

    def earlier(self, id: str) -> list[dict[str, Any]]:
        """Return the answers to a question that were paid for before its last one."""
        return [self._read(*place) for place in self._earlier.get(id, ())]

    def _read(self, offset: int, size: int) -> dict[str, Any]:
        data = os.pread(self._handle, size, offset)
        if len(data) < size:
            raise UserError(f"{self.path} has become shorter", "leave the journal alone while it is written")
        return _line_of(data)

    def _append(self, line: dict[str, Any]) -> dict[str, Any]:
        line = _clean(line)
        data = _encoded(line)
        with self._guard:
            self._index(line, self._write(data), len(data))
            late = time.monotonic() - self._synced > SYNC_SECONDS
            if late:
                self._synced = time.monotonic()
        if late:
            self._sync()
        return line

    def _write(self, data: bytes) -> int:
        """Write the waiting states and `data` at once; where `data` begins."""
        states, self._states = b"".join(self._states), []
        if not self._broken and (states or data):
            try:
                written = os.write(self._handle, states + data)
                self._broken = "" if written == len(states) + len(data) else "the disk is full"
            except OSError as error:
                self._broken = str(error.strerror)
            if self._broken:
                with suppress(OSError):  # then the torn line is cut at the next start
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
            raise UserError(f"cannot write {self.path}: {self._broken}", "make room and run the same command again")

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
    """A count or price from outside, if it is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _line_of(raw: bytes) -> dict[str, Any]:
    """A valid line of a journal; ValueError, KeyError or TypeError otherwise."""
    try:
        line = dict(from_json(raw.decode("utf-8")))
    except ExcessiveJSONError:  # it was paid for: better an empty answer than a journal that cannot be opened
        if (found := _ANSWER.match(raw)) is None:
            raise
        return _clean({"is": "answer", "id": found[1].decode("utf-8"), "text": ""})
    missing = _REQUIRED[line["is"]] - line.keys()
    name = line.get("name" if line["is"] == "note" else "id")
    if missing or not isinstance(name, str) or (line["is"] == "state" and line["state"] not in STATES):
        raise ValueError("not a line of a journal")
    return _clean(line)


def _clean(line: dict[str, Any]) -> dict[str, Any]:
    """The line without what only looks like a text, a count or a price."""
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
