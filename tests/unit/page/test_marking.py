"""Marks: on disk before they are confirmed, never doubled or overwritten, and ready to be trained
on."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from synthetic_run import write_run
from text2grad.errors import UserError
from text2grad.eval.critics.marks import read_marks
from text2grad.feedback import Failure, Feedback, Message, Source, Span
from text2grad.json_text import record_json
from text2grad.jsonl import read_records, write_records
from text2grad.page.answers import group_records, read_answers
from text2grad.page.mark import MarkPage, _comments
from text2grad.page.marking import Act, Check, Conflict, MarkedPlace, Notebook, Opinion

PROMPT = (Message(role="user", content="When?"),)
RESPONSE = "It is due 🙂 next week."
JUDGE, HUMAN = Source(kind="llm", model="judge"), Source(kind="human")


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


def test_an_opinion_becomes_a_record_and_its_checks_become_marks(source: Path) -> None:
    book, [key, _] = notebook(source)
    opinion = {"spans": [place(12, 16, reason="wrong day")], "score": -0.5, "omissions": ["the hour", " "]}
    check = Check(start=0, end=2, correct=False)
    assert book.record(act(key, "1", 0, shown="after", checks=[check], **opinion)) == 1
    [written] = read_records(book.out)
    assert written.spans == (Span(start=12, end=16, label=-1, text="next", reason="wrong day"),)
    assert (written.critique, written.score, written.source) == ("wrong day", -0.5, HUMAN)
    assert written.meta == {"annotator": "ann", "shown": "after", "omissions": ["the hour"]}
    [mark] = read_marks(book.checks)
    assert (mark.id, mark.annotator, mark.start, mark.end, mark.correct) == ("a", "ann", 0, 2, False)
    book.record(act(key, "2", 1, checks=[check]))  # a check alone is no record
    assert read_records(book.out) == [] and book.checks.exists()
    book.record(act(key, "3", 2))
    assert not book.checks.exists()


def test_a_better_answer_is_an_opinion_and_the_correction_of_its_record(source: Path) -> None:
    book, [key, _] = notebook(source)
    book.record(act(key, "1", 0, corrected="It is due on Friday. "))
    [written] = read_records(book.out)
    assert written.meta["corrected"] == "It is due on Friday." and written.example().reference
    book.close()
    again, _ = notebook(source)
    assert again.history(key, "ann")[-1].corrected == "It is due on Friday. "
    [item] = group_records([written]).values()
    other = Notebook({key: item}, source.with_name("other.jsonl"))
    assert other.history(key, "ann")[0].corrected == "It is due on Friday."


def test_comments_of_the_file_are_shown_whole_and_trained_on_with_the_marks(tmp_path: Path) -> None:
    long = "The day is wrong, and nobody is told the hour at which it is due. " * 5
    said = record(source=HUMAN, critique=long, score=-0.5, meta={"annotator": "zoe"})
    write_records(tmp_path / "said.jsonl", [said, record("b", "Judged.", critique="Fine.")])
    page = MarkPage(tmp_path / "said.jsonl")
    first, second = page.notebook.items.values()
    assert _comments(first) == [{"who": "zoe", "critique": long, "score": -0.5}] and _comments(second) == []
    commands = page.next_commands()[0][1].split(" && ")
    files = [tmp_path / "said.jsonl", tmp_path / "said.marked.jsonl"]
    words = [
        shlex.join(["text2grad", "import", str(file), "--out", f"{tmp_path}/said.all.jsonl"]) for file in files
    ]
    assert commands[:2] == words and commands[2] == f"text2grad improve {tmp_path}/said.all.jsonl"
    page.notebook.close()
    (tmp_path / "config.yaml").write_text("", encoding="utf-8")
    page = MarkPage(tmp_path / "said.jsonl")
    titles, _ = zip(*page.next_commands(), strict=True)
    assert titles == ("train on it", "sample new answers", "mark those")
    page.notebook.close()


def test_rows_without_feedback_are_marked_in_their_order(tmp_path: Path) -> None:
    lines = [
        "Question;Answer of the bot;Comment",
        "When is it?;On Friday, I think.;wrong day",
        "Who is it?;The new boss.;",
    ]
    (tmp_path / "chat.csv").write_text("\n".join(lines), encoding="utf-8")
    items = list(read_answers(tmp_path / "chat.csv").values())
    assert [(item.example.prompt[0].content, len(item.people)) for item in items] == [
        ("When is it?", 1),
        ("Who is it?", 0),
    ]
    (tmp_path / "bare.csv").write_text("\n".join(line.rpartition(";")[0] for line in lines), encoding="utf-8")
    assert [item.response for item in read_answers(tmp_path / "bare.csv").values()] == [
        item.response for item in items
    ]
    (tmp_path / "numbers.csv").write_text("a;b\n1;2\n", encoding="utf-8")
    with pytest.raises(UserError, match="no column of answers"):
        read_answers(tmp_path / "numbers.csv")


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
    with pytest.raises(UserError, match="another process"):
        notebook(source)


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


MARK = '{"id": "a", "annotator": "zoe", "start": 0, "end": 2, "correct": true}\n'
ZOE = record_json(record(source=HUMAN, critique="Zoe's.", meta={"annotator": "zoe"})) + "\n"


@pytest.mark.parametrize(("file", "text"), [("marked.jsonl", ZOE), ("marked.checks.jsonl", MARK)])
def test_what_was_not_made_here_is_never_written_over(source: Path, file: str, text: str) -> None:
    others = source.with_suffix(f".{file}")
    others.write_text(text, encoding="utf-8")
    for _ in range(2):  # the lock is given back
        with pytest.raises(UserError, match=r"1 of 1 .*--out"):
            notebook(source)
    assert others.read_text(encoding="utf-8") == text
    others.unlink()
    out, key = marked(source, critique="Bad.", checks=[Check(start=0, end=2, correct=True)])
    text = out.read_text(encoding="utf-8")
    out.write_text(text.replace("Bad.", "Bad, and long."), encoding="utf-8")  # by hand
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


def test_an_act_that_cannot_be_kept_changes_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, [key, _] = notebook(source)
    for start, end in ((0, len(RESPONSE) + 1), (len(RESPONSE), len(RESPONSE) + 3), (3, 3)):
        with pytest.raises(ValueError):
            book.record(act(key, "0", 0, spans=[place(start, end)]))
    book.record(act(key, "1", 0, critique="Bad."))
    before = book.out.with_suffix(".journal").read_bytes()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(UserError, match="No space left"):
            book.record(act(key, "2", 1, critique="Worse."))
    assert book.out.with_suffix(".journal").read_bytes() == before
    assert book.record(act(key, "2", 1, critique="Worse.")) == 2


def test_opinions_of_people_in_the_file_are_the_first_version(tmp_path: Path) -> None:
    span = Span(start=0, end=2, label=1, text="It", reason="short")
    human = record(source=HUMAN, spans=(span,), meta={"annotator": "ann", "step": 3})
    book = Notebook(group_records([human, record(critique="Judged.")]), tmp_path / "out.jsonl")
    [key] = book.items
    assert book.items[key].suggestion == record(critique="Judged.")
    assert book.history(key, "ann")[0].spans == (place(0, 2, 1, "short"),)
    assert list(book.opinions_on(key)) == ["ann"] and book.history(key, "bob") == [Opinion()]


def test_any_file_of_answers_and_any_run_can_be_marked(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "When?", "response": "Friday."})
    table = "prompt,response\nWhen?,Friday.\n"
    for name, text in (("rows.jsonl", row), ("rows.csv", table), ("rows.json", f"[{row}]")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        [item] = read_answers(tmp_path / name).values()
        assert (item.response, item.suggestion) == ("Friday.", None), name
    run = write_run(tmp_path / "run", steps=5)
    with (run / "ppo/text2grad/samples.jsonl").open("a", encoding="utf-8") as samples:
        samples.write('{"step": 9, "resp')
    first = next(iter(read_answers(run).values()))
    assert first.suggestion is not None and first.suggestion.source.kind == "reward_model"
    assert first.example.meta["policy"] == "text2grad"


def test_a_failure_is_no_suggestion_and_a_transcript_is_known_by_all_its_turns() -> None:
    [item] = group_records([record(error=Failure(kind="refused", message="no"))]).values()
    assert item.suggestion is None and item.people == {}
    turns = [[{"role": "tool", "content": text}, {"role": "assistant", "content": "Done."}] for text in "ab"]
    assert len(group_records(record(response=talk) for talk in turns)) == 2  # type: ignore[arg-type]


def test_bad_input_is_one_line(source: Path) -> None:
    for text in (None, "", "{", '{"prompt": "a", "answer": "b"}'):
        file = source.with_name("in.jsonl")
        if text is not None:
            file.write_text(text)
        with pytest.raises(UserError, match=r"^.*in\.jsonl.*$"):
            read_answers(file)
    for out in (source / "out.jsonl", source.parent):
        with pytest.raises(UserError, match=str(source.parent)):
            Notebook(read_answers(source), out)
