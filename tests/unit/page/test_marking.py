"""Marks: on disk before they are confirmed, never doubled or overwritten, and ready to be trained on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from synthetic_run import write_run
from text2grad.errors import UserError
from text2grad.eval.critics.marks import read_marks
from text2grad.feedback import Failure, Feedback, Message, Source, Span
from text2grad.jsonl import read_records, record_json, write_records
from text2grad.page.answers import group_records, read_answers
from text2grad.page.marking import Act, Check, Conflict, MarkedPlace, Notebook, Opinion

PROMPT = (Message(role="user", content="When?"),)
RESPONSE = "It is due 🙂 next week."
JUDGE = Source(kind="llm", model="judge")


def record(id: str = "a", response: str = RESPONSE, **fields: Any) -> Feedback:
    return Feedback(**{"id": id, "prompt": PROMPT, "response": response, "source": JUDGE, **fields})


def place(start: int, end: int, label: int = -1, reason: str = "") -> MarkedPlace:
    return MarkedPlace(start=start, end=end, label=label, reason=reason)  # type: ignore[arg-type]


def act(key: str, name: str, base: int, annotator: str = "ann", **opinion: Any) -> Act:
    return Act(act=f"act-{name:>08}", item=key, annotator=annotator, base=base, opinion=Opinion(**opinion))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    judged = Span(start=0, end=2, label=1, text="It", reason="short")
    records = [record("a", critique="Fine.", spans=(judged,), score=1.0), record("b", "It is due on Friday.")]
    write_records(tmp_path / "answers.jsonl", records)
    return tmp_path / "answers.jsonl"


def notebook(source: Path) -> tuple[Notebook, list[str]]:
    items = read_answers(source)
    return Notebook(items, source.with_suffix(".marked.jsonl")), list(items)


def marked(source: Path, **opinion: Any) -> tuple[Path, str]:
    """A file with one opinion in it, closed; the file of records, and the key of the answer."""
    book, [key, _] = notebook(source)
    book.record(act(key, "1", 0, **(opinion or {"critique": "Bad."})))
    book.close()
    return book.out, key


def critiques(file: Path) -> list[str]:
    return [record.critique for record in read_records(file)]


def test_what_is_marked_is_a_record_that_trains(source: Path) -> None:
    book, [key, _] = notebook(source)
    opinion = {"spans": [place(12, 16, reason="wrong day")], "score": -0.5, "omissions": ["the hour", " "]}
    assert book.record(act(key, "1", 0, shown="after", **opinion)) == 1
    [written] = read_records(book.out)
    assert written.spans == (Span(start=12, end=16, label=-1, text="next", reason="wrong day"),)
    assert (written.critique, written.score, written.source) == ("wrong day", -0.5, Source(kind="human"))
    assert written.meta == {"annotator": "ann", "shown": "after", "omissions": ["the hour"]}


def test_the_newest_version_counts_and_an_empty_one_makes_no_record(source: Path) -> None:
    book, [key, other] = notebook(source)
    book.record(act(key, "1", 0, critique="Bad."))
    book.record(act(key, "2", 1, critique="Good."))
    book.record(act(other, "3", 0, critique="Gone."))
    book.record(act(other, "4", 1))
    assert critiques(book.out) == ["Good."]
    assert [opinion.critique for opinion in book.history(other, "ann")] == ["", "Gone.", ""]


def test_an_act_sent_twice_counts_once_and_tabs_do_not_overwrite_each_other(source: Path) -> None:
    _, key = marked(source, critique="One tab.")
    book, _ = notebook(source)
    assert book.record(act(key, "1", 0, critique="One tab.")) == 1
    with pytest.raises(Conflict):
        book.record(act(key, "2", 0, critique="The other."))
    book.record(act(key, "3", 0, annotator="bob", critique="Another person."))
    assert critiques(book.out) == ["One tab.", "Another person."]


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_half_a_line_was_never_confirmed_and_goes(source: Path, cut: int) -> None:
    book, [key, _] = notebook(source)
    for number in range(3):
        before = book.out.read_bytes()  # the records are written after the journal
        book.record(act(key, str(number), number, critique=f"Version {number}."))
    book.close()
    book.out.write_bytes(before)
    journal = book.out.with_suffix(".journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][: min(cut, len(lines[2]) - 1)])
    again, _ = notebook(source)
    assert again.version(key, "ann") == 2 and journal.read_bytes() == b"".join(lines[:2])
    assert again.record(act(key, "9", 2, critique="Sent again.")) == 3
    assert critiques(book.out) == ["Sent again."]


def test_a_damaged_or_foreign_journal_is_left_alone(source: Path) -> None:
    out, _ = marked(source)
    journal = out.with_suffix(".journal")
    for text, error in ((b"{}\n" + journal.read_bytes(), r"journal:1"), (b"SQLite format 3\0 and", r"\.journal")):
        journal.write_bytes(text)
        with pytest.raises(UserError, match=error):
            notebook(source)
        assert journal.read_bytes() == text


@pytest.mark.parametrize("file", ["answers.marked.jsonl", "answers.marked.checks.jsonl"])
def test_what_was_not_made_here_is_never_written_over(source: Path, file: str) -> None:
    others = source.with_name(file)
    mark = '{"id": "a", "annotator": "zoe", "start": 0, "end": 2, "correct": true}\n'
    record_of_zoe = record(source=Source(kind="human"), critique="Zoe's.", meta={"annotator": "zoe"})
    others.write_text(mark if "checks" in file else record_json(record_of_zoe) + "\n", encoding="utf-8")
    before = others.read_bytes()
    for _ in range(2):  # the lock is given back
        with pytest.raises(UserError, match=r"1 of 1 .*--out"):
            notebook(source)
    assert others.read_bytes() == before


def test_a_record_that_was_changed_by_hand_is_not_written_over(source: Path) -> None:
    out, key = marked(source, critique="Bad.", checks=[Check(start=0, end=2, correct=True)])
    text = out.read_text(encoding="utf-8")
    out.write_text(text.replace("Bad.", "Bad, and long."), encoding="utf-8")
    with pytest.raises(UserError, match=r"1 of 2 .*answers\.marked\.jsonl"):
        notebook(source)
    out.write_text(text, encoding="utf-8")
    assert notebook(source)[0].version(key, "ann") == 1


def test_marks_survive_a_kill_and_another_file_of_answers(source: Path) -> None:
    out, _ = marked(source)
    out.unlink()  # killed between the journal and the records
    notebook(source)[0].close()
    assert critiques(out) == ["Bad."]
    for records in ([record("a", critique="Otherwise.", score=-1.0)], [record("c", "Another.")]):
        write_records(source, records)
        notebook(source)[0].close()
        assert critiques(out) == ["Bad."]


def test_checks_of_a_critics_spans_are_marks_until_they_are_taken_back(source: Path) -> None:
    book, [key, _] = notebook(source)
    book.record(act(key, "1", 0, checks=[Check(start=0, end=2, correct=False)]))
    assert read_records(book.out) == []
    [mark] = read_marks(book.checks)
    assert (mark.id, mark.annotator, mark.start, mark.end, mark.correct) == ("a", "ann", 0, 2, False)
    book.record(act(key, "2", 1))
    assert not book.checks.exists()


def test_a_full_disk_refuses_the_act_and_keeps_the_journal_whole(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, [key, _] = notebook(source)
    book.record(act(key, "1", 0, critique="Bad."))
    before = book.out.with_suffix(".journal").read_bytes()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="No space left"):
        book.record(act(key, "2", 1, critique="Worse."))
    monkeypatch.setattr(os, "fsync", real)
    assert book.out.with_suffix(".journal").read_bytes() == before
    assert book.record(act(key, "2", 1, critique="Worse.")) == 2


def test_a_second_notebook_is_refused(source: Path) -> None:
    book, _ = notebook(source)
    with pytest.raises(UserError, match="another process"):
        notebook(source)
    book.close()


@pytest.mark.parametrize(("start", "end"), [(0, len(RESPONSE) + 1), (len(RESPONSE), len(RESPONSE) + 3), (3, 3)])
def test_a_place_outside_the_answer_is_refused_and_not_kept(source: Path, start: int, end: int) -> None:
    book, [key, _] = notebook(source)
    with pytest.raises(ValueError):
        book.record(act(key, "1", 0, spans=[place(start, end)]))
    assert book.version(key, "ann") == 0
    assert book.record(act(key, "2", 0, spans=[place(0, len(RESPONSE))])) == 1


def test_opinions_of_people_in_the_file_are_the_first_version(tmp_path: Path) -> None:
    span = Span(start=0, end=2, label=1, text="It", reason="short")
    human = record(source=Source(kind="human"), spans=(span,), meta={"annotator": "ann", "step": 3})
    book = Notebook(group_records([human, record(critique="Judged.")]), tmp_path / "out.jsonl")
    [key] = book.items
    assert book.items[key].suggestion == record(critique="Judged.")
    assert book.history(key, "ann")[0].spans == (place(0, 2, 1, "short"),)
    assert list(book.marked(key)) == ["ann"] and book.history(key, "bob") == [Opinion()]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", json.dumps({"prompt": "When?", "response": "Friday."})),
        ("rows.csv", "prompt,response\nWhen?,Friday.\n"),
        ("rows.json", json.dumps([{"prompt": "When?", "response": "Friday."}])),
    ],
)
def test_any_file_of_answers_can_be_marked(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    [item] = read_answers(tmp_path / name).values()
    assert (item.response, item.suggestion) == ("Friday.", None)


def test_a_run_shows_its_samples_and_those_written_since(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=5)
    items = read_answers(run)
    [first, *_] = items.values()
    assert first.suggestion is not None and first.suggestion.source.kind == "reward_model"
    assert first.example.meta["policy"] == "text2grad"
    samples = run / "ppo/text2grad/samples.jsonl"
    line = json.loads(samples.read_text(encoding="utf-8").splitlines()[0])
    with samples.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "response": "A new one."}) + '\n{"step": 9, "resp')
    assert len(read_answers(run)) == len(items) + 1


def test_a_failure_is_no_suggestion_and_a_transcript_is_known_by_all_its_turns() -> None:
    [item] = group_records([record(error=Failure(kind="refused", message="no"))]).values()
    assert item.suggestion is None and item.people == {}
    turns = [[{"role": "tool", "content": text}, {"role": "assistant", "content": "Done."}] for text in "ab"]
    assert len(group_records(record(response=talk) for talk in turns)) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{", '{"prompt": "a", "answer": "b"}', None])
def test_bad_input_is_one_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "in.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"in\.jsonl") as raised:
        read_answers(tmp_path / "in.jsonl")
    assert "\n" not in str(raised.value)


def test_a_place_that_cannot_be_written_is_named(source: Path) -> None:
    (source.parent / "file").write_text("")
    for out in (source.parent / "file" / "out.jsonl", source.parent):
        with pytest.raises(UserError, match=str(source.parent)):
            Notebook(read_answers(source), out)
