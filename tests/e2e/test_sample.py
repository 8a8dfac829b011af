"""`sample` and `try` over the policies of a small run: what is shown and written, and what a line
is answered."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from commands import TOY, Command

from text2grad.cli import main
from text2grad.feedback import Failure
from text2grad.page.terminal import PolicyAnswer
from text2grad.stages import talk

ASK = "Write f(x): add one."
OWN = """
from text2grad import Critique, Source, Span

class Short:
    source = Source(kind="program")

    def critique(self, examples, responses):
        return [Critique(text="Too long.", score=-0.5, spans=(poor(text),)) for text in responses]

def poor(text):
    return Span(start=0, end=3, label=-1, text=text[:3], reason="why")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a critic of its own in it."""
    (tmp_path / "my_own_critic.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_side_by_side_with_the_critiques_of_ones_own_critic(command: Command, finished: Path, own: Path) -> None:
    words = ("sample", ASK, "--with", "base,sft,text2grad", "--run.folder", finished, "--critique")
    ended = command(*words, "--critic.kind", "my_own_critic:Short", "--generation.temperature", "0")
    assert ended.code == 0, ended.err
    for shown in (ASK, "base", "sft", "text2grad", "[-def-] f(x):", "- def: why", "Too long.", "score -0.50"):
        assert shown in ended.out


def test_a_file_of_prompts_is_answered_in_lines_of_json(command: Command, finished: Path, own: Path) -> None:
    Path("ask.txt").write_text(f"{ASK}\n\nWrite f(x): double it.\n")
    Path("ask.jsonl").write_text(json.dumps({"id": "q7", "prompt": [{"role": "user", "content": ASK}]}) + "\n")
    known = ("--run.folder", finished, "--generation.temperature", "0")
    plain = command("sample", "--prompts", "ask.txt", "--with", "sft", *known, "--json")
    rows = [json.loads(line) for line in plain.out.splitlines()]
    assert [row["id"] for row in rows] == ["ask-1", "ask-3"] and [len(row["answers"]) for row in rows] == [1, 1]
    assert rows[0]["answers"][0]["name"] == "sft" and set(rows[0]["answers"][0]) == {"name", "response"}
    critic = ("--critique", "--critic.kind", "my_own_critic:Short", "--json")
    row = json.loads(command("sample", "--prompts", "ask.jsonl", *known, *critic).out)
    assert row["id"] == "q7" and [each["name"] for each in row["answers"]] == ["base", "sft", "text2grad"]
    assert row["answers"][1]["response"] == rows[0]["answers"][0]["response"]
    assert (row["answers"][1]["critique"], row["answers"][1]["spans"][0]["label"]) == ("Too long.", -1)


def test_sampled_answers_are_marked_and_imported(command: Command, finished: Path, own: Path) -> None:
    """As a spreadsheet that a person fills in; nothing is rewritten by hand."""
    Path("ask.txt").write_text(f"{ASK}\n\nWrite f(x): double it.\n")
    words = ("sample", "--prompts", "ask.txt", "--with", "base,sft", "-k", "2", "--run.folder", finished)
    ended = command(*words, "--out", "answers.csv")
    assert ended.code == 0 and "sampling 4 answers of each policy" in ended.err
    assert "8 answers in answers.csv; fill in good, poor" in ended.err and ended.out == ""
    with Path("answers.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert len({row["id"] for row in rows}) == 8 and rows[0]["id"] == "ask-1#1:base"
    assert all(row["prompt"] for row in rows)
    assert {row[name] for row in rows for name in ("good", "poor", "critique", "score", "corrected")} == {""}
    unmarked = command("import", "answers.csv", "--out", "none.jsonl")
    assert unmarked.code == 1 and "no judgement of the response: fill in critique, good, poor" in unmarked.err
    marked = [{**row, "response": f"def {row['response']}", "poor": "def", "score": "-0.5"} for row in rows]
    with Path("marked.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(marked)
    done = command("import", "marked.csv", "--out", "feedback.jsonl")
    assert done.code == 0 and "records: 8" in done.err and "failed: 0" in done.err


def test_sampled_answers_are_records_that_nobody_has_judged(command: Command, finished: Path, own: Path) -> None:
    words = ("sample", ASK, "--with", "sft", "-k", "3", "--run.folder", finished, "--generation.temperature", "1")
    assert command(*words, "--out", "answers.jsonl").code == 0
    report = command("feedback-report", "answers.jsonl", "--json")
    assert report.code == 0 and json.loads(report.out)["failed"] == {"unsupported": 3}
    imported = command("import", "answers.jsonl", "--out", "imported.jsonl")
    assert imported.code == 0 and "failed: 3" in imported.err, "an answer that nobody judged is no praise"
    critic = ("--critic.kind", "my_own_critic:Short", "--task.name", "qa")
    judged = command("annotate", "--responses", "answers.jsonl", "--out", "judged.jsonl", *critic)
    assert judged.code == 0, judged.err
    records = [json.loads(line) for line in Path("judged.jsonl").read_text().splitlines()]
    assert [record["critique"] for record in records] == ["Too long."] * 3
    assert command(*words, "--out", "said.jsonl", "--critique", *critic[:2]).code == 0
    said = [json.loads(line) for line in Path("said.jsonl").read_text().splitlines()]
    assert [(each["critique"], each["source"]["kind"]) for each in said] == [("Too long.", "program")] * 3
    assert command(*words, "--out", ".").code == 1, "a folder is refused before anything is sampled"


def test_try_keeps_the_conversation_until_it_is_told_to_begin_again(
    command: Command, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("try", "--with", "sft", "--run.folder", finished, "--generation.temperature", "0", "--json")
    seen = []
    for lines, option in ((f"{ASK}\n{ASK}\n\n/new\n{ASK}\n", "--keep"), (f"{ASK}\n{ASK}", "--single")):
        typed(monkeypatch, lines)
        ended = command(*words, option)
        assert ended.code == 0, ended.err
        seen.append([json.loads(line)["answers"][0]["response"] for line in ended.out.splitlines()])
    kept, single = seen
    assert len(kept) == 3 and kept[0] == kept[2] == single[0] == single[1]
    typed(monkeypatch, f"/quit\n{ASK}\n")
    assert command(*words).out == ""


def test_try_begins_again_where_a_line_does_not_fit(
    command: Command, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, f"{'word ' * 3000}\n{ASK}\n")
    ended = command("try", "--run.folder", finished)
    assert ended.code == 0 and "too long" in ended.err and "new conversation" in ended.err
    assert "def" in ended.out


def test_a_folder_of_a_training_loop_is_a_run_to_report_and_to_ask(
    command: Command, finished: Path, own: Path
) -> None:
    folder = finished / "ppo" / "text2grad"
    before = set(folder.iterdir())
    ended = command("report", folder)
    page = folder / "report.html"
    assert ended.code == 0 and "text2grad" in page.read_text(encoding="utf-8")
    page.unlink()
    assert set(folder.iterdir()) == before
    asked = command("sample", ASK, "--with", folder, "--run.folder", finished, "--json")
    assert asked.code == 0 and json.loads(asked.out)["answers"][0]["response"]
    assert command("evaluate", folder, "--run.folder", own / "elsewhere", *TOY).code == 0


def test_a_failed_critique_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = PolicyAnswer("base", "So.", Failure(kind="exhausted", message="no answer"))
    result = talk.PromptAnswers(talk.typed_prompt("prompt", ASK), (answer,))
    monkeypatch.setattr(talk, "run_sample", lambda *_: [result])
    with pytest.raises(SystemExit) as left:
        main(["sample", ASK, "--critique"])
    assert left.value.code == 3
