"""The journal: what is written stays, what is torn is cut, and only one process writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from text2grad.errors import UserError
from text2grad.journal import Journal, Slot

LINE = {
    "text": "an answer\u2028 with \ud83d half a pair",
    "usage": {"prompt_tokens": 3.0},
    "usd": 0.5,
    "seconds": 1.0,
}


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
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


def test_a_torn_tail_is_cut_wherever_it_was_torn(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    with Journal.open(place) as journal:
        for name in "abc":
            journal.answer(name, LINE)
    whole = place.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(whole)):
        place.write_bytes(whole[:cut])
        with Journal.open(place) as journal:
            assert sorted(journal.slots) == ["a", "b"] and journal.cut_bytes == cut - start
            journal.answer("c", LINE)
        assert place.read_bytes() == whole
    place.write_bytes(b"x" * 200_000)  # one torn line, longer than what is read at once
    with Journal.open(place) as journal:
        assert journal.slots == {}


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"is": "gossip", "id": "a"}', '{"is": "state", "id": "a", "state": "x"}']
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "journal"
    with Journal.open(place) as journal:
        journal.answer("a", LINE)
    place.write_text(place.read_text() + damage + "\n" + place.read_text())
    with pytest.raises(UserError, match=r"journal:2: not a line of a journal"):
        Journal.open(place)


def test_one_writer(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    program = f"from text2grad.journal import Journal; from pathlib import Path; Journal.open(Path({str(place)!r}))"
    with Journal.open(place):
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert other.returncode == 1 and "another process is writing" in other.stderr
    Journal.open(place).close()


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
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
