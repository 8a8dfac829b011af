"""The journal: what is written stays, what is torn is cut, and only one process writes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from text2grad.chat.journal import Journal, Slot, amount
from text2grad.errors import UserError

LINE = {
    "text": "an answer\u2028 with \ud83d half a pair",
    "usage": {"prompt_tokens": 3.0},
    "usd": 0.5,
    "seconds": 1.0,
}


def test_a_reopened_journal_has_everything_written(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    with Journal.open(place) as journal:
        journal.answer("a", LINE)
        journal.settle("a", "ok")
        journal.answer("b", LINE)
        journal.answer("b", {**LINE, "text": "second", "usd": None})
        journal.failure("c", "exhausted", "500")
        journal.settle("c", "exhausted")
        journal.note("batch", {"id": "x"})
        held = (dict(journal.slots), journal.notes, journal.totals)
    with Journal.open(place) as again:
        assert (again.slots, again.notes, again.totals) == held
        assert again.slot("a").state == "ok" and again.slot("b").state is None and again.slot("b").answers == 2
        assert again.last("b")["text"] == "second" and again.last("a")["text"] == LINE["text"]
        assert again.last("c")["kind"] == "exhausted" and again.slot("nobody") == Slot()
        assert (again.totals.answers, again.totals.usd, again.totals.unpriced) == (3, 1.0, 1)
    assert place.stat().st_mode & 0o077 == 0


def test_an_incomplete_last_line_is_cut_at_any_byte(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    with Journal.open(place) as journal:
        for name in "abc":
            journal.answer(name, LINE)
    whole = place.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(whole)):
        place.write_bytes(whole[:cut])
        with Journal.open(place) as journal:
            assert sorted(journal.slots) == ["a", "b"]
            journal.answer("c", LINE)
        assert place.read_bytes() == whole
    place.write_bytes(b"x" * 200_000)  # one torn line, longer than what is read at once
    with Journal.open(place) as journal:
        assert journal.slots == {}


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    with Journal.open(place) as journal:
        journal.answer("a", LINE)
    good = place.read_text()
    gossip, no_state = '{"is": "gossip", "id": "a"}', '{"is": "state", "id": "a", "state": "x"}'
    of_nobody = ['{"is": "answer", "id": ["a"], "text": "x"}', '{"is": ["x"]}', "[" * 3000]
    for damage in ("{", "[]", gossip, no_state, *of_nobody):
        place.write_text(f"{good}{damage}\n{good}")
        with pytest.raises(UserError, match="journal:2:"):
            Journal.open(place)


def test_one_writer(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    program = (
        f"from text2grad.chat.journal import Journal; from pathlib import Path; Journal.open(Path({str(place)!r}))"
    )
    with Journal.open(place):
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert other.returncode == 1 and "another process is writing" in other.stderr
    Journal.open(place).close()


def test_concurrent_writes_keep_lines_intact(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    with Journal.open(place) as journal:

        def write(name: str) -> None:
            for number in range(200):
                journal.answer(f"{name}{number}", {**LINE, "text": name * number})
                assert journal.last(f"{name}{number}")["text"] == name * number
                journal.settle(f"{name}{number}", "ok")

        threads = [Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert len(lines) == 1600
    with Journal.open(place) as journal:
        assert all(journal.slot(f"{name}{n}").state == "ok" for name in "abcd" for n in range(200))
        assert journal.last("c7")["text"] == "c" * 7


def short(kept: int) -> Any:
    """An `os.write` for which the disk is full after `kept` bytes."""
    return lambda handle, data: real_write(handle, data[:kept])


real_write = os.write


def full(handle: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("write", [short(1), short(40), full], ids=["one", "forty", "none"])
def test_a_short_write_is_undone_and_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    place = tmp_path / "journal"
    journal = Journal.open(place)
    journal.answer("a", LINE)
    whole = place.read_bytes()
    journal.settle("a", "ok")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(UserError, match=r"cannot write .*journal: .*free some space"):
            journal.answer("b", LINE)
    assert place.read_bytes() == whole
    for _ in range(2):  # the disk has room again, but requests that are open must not write after half a line
        with pytest.raises(UserError, match="free some space"):
            journal.answer("c", LINE)
    assert journal.last("a")["text"] == LINE["text"]
    journal.close()
    with Journal.open(place) as again:
        assert set(again.slots) == {"a"}
        again.answer("b", LINE)


def test_an_fsync_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(tmp_path / "journal")
    journal.answer("a", LINE)

    def failing(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UserError, match="Input/output error"):
        journal.close()
    journal.close()


POISON: dict[str, str] = {
    "nested": '{"is": "answer", "id": "p", "text": "x", "usage": ' + '{"a":' * 3000 + "1" + "}" * 3000 + "}",
    "digits": '{"is": "answer", "id": "p", "text": "x", "usd": ' + "9" * 5000 + "}",
    "nan": '{"is": "answer", "id": "p", "text": "x", "usage": {"prompt_tokens": NaN}, "usd": NaN}',
    "infinite": '{"is": "answer", "id": "p", "text": "x", "usage": {"prompt_tokens": Infinity}, "usd": -Infinity}',
    "huge": '{"is": "answer", "id": "p", "text": "x", "usage": {"t": HUGE}, "usd": HUGE, "seconds": HUGE}'.replace(
        "HUGE", "1" + "0" * 400
    ),
    "negative": '{"is": "answer", "id": "p", "text": "x", "usage": {"prompt_tokens": -5}, "usd": -3}',
    "words": '{"is": "answer", "id": "p", "text": {"a": 1}, "usage": "many", "usd": "1", "seconds": true}',
    "list": '{"is": "answer", "id": "p", "text": null, "usage": {"prompt_tokens": [1]}, "refusal": ["no"]}',
    "kind": '{"is": "failure", "id": "p", "kind": "gossip", "message": 3}',
    "charge": '{"is": "charge", "id": "p", "usd": NaN}',
}


@pytest.mark.parametrize("name", POISON)
def test_no_answer_makes_a_journal_unreadable(tmp_path: Path, name: str) -> None:
    place = tmp_path / "journal"
    with Journal.open(place) as journal:
        journal.answer("a", LINE)
    place.write_text(place.read_text() + POISON[name] + "\n" + place.read_text().replace('"a"', '"b"'))
    for _ in range(2):
        with Journal.open(place) as journal:
            assert journal.totals.usd == 1.0 and journal.totals.prompt_tokens == 6.0
            assert (journal.totals.completion_tokens, journal.totals.charged) == (0.0, 0.0)
            assert journal.totals.seconds == 2.0 and journal.last("b")["text"] == LINE["text"]
            if name != "charge":
                line = journal.last("p")
                assert isinstance(line.get("text", ""), str) and line.get("usage", {}) == {}
                assert line.get("usd") is None and line.get("kind", "invalid") == "invalid"


def test_an_amount_is_finite_and_not_negative() -> None:
    for value in (float("nan"), float("inf"), -1, -0.5, 10**400, True, "3", None, [1]):
        assert amount(value) is None
    assert (amount(3), amount(0.0), amount(2.5)) == (3.0, 0.0, 2.5)
