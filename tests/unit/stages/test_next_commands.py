"""The commands that a stage prints as what to do next, as they are typed."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from text2grad.cli import main
from text2grad.commands import learn
from text2grad.commands.console import show_sft
from text2grad.feedback import Example, Feedback, Message, Source
from text2grad.jsonl import read_jsonl
from text2grad.page.answers import unjudged
from text2grad.stages.evaluate import policy
from text2grad.stages.talk import write_to_mark


def typed(line: str) -> int:
    """The exit code of a command that was printed."""
    program, *words = shlex.split(line)
    assert program == "text2grad"
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def test_the_command_behind_a_table_to_fill_in_reads_it(tmp_path: Path) -> None:
    table = tmp_path / "held out.csv"
    example = Example(id="a", prompt=(Message(role="user", content="When?"),))
    line = write_to_mark(table, [unjudged(example, "It is due next week.")])
    with table.open(newline="", encoding="utf-8-sig") as file:
        rows = [{**row, "poor": "next week"} for row in csv.DictReader(file)]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert typed(line.partition("run: ")[2]) == 0
    [record] = read_jsonl(tmp_path / "held out.jsonl", Feedback)
    assert [span.text for span in record.spans] == ["next week"] and record.source == Source(kind="human")


def test_sft_ends_with_the_commands_that_measure_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_sft(tmp_path, {"steps": 1})
    commands = re.findall(r"text2grad evaluate \w+ --run.folder [^\s,]+", capsys.readouterr().err)
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(policy, "run_evaluate", lambda *given: len(asked.append(given) or ()))
    assert [typed(command) for command in commands] == [0, 0]
    assert [given[1] for given in asked] == ["sft", "base"]
    assert all(given[0].run.folder == tmp_path for given in asked) and learn.show_sft is show_sft
