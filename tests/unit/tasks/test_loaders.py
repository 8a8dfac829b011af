"""Published shapes become examples; what cannot be read is one line that says where."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from places import DATA
from text2grad.data import files
from text2grad.data.files import convert_rows, load_rows, read_rows
from text2grad.data.published import KODCODE, QUESTIONS, SLF5K, read_examples
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.sandbox import Runner


def read(name: str, shapes: Any) -> list[Example]:
    return read_examples(str(DATA / name), shapes)


def test_slf5k() -> None:
    first, second = read("slf5k.jsonl", SLF5K)
    assert first.id == "t3_a1" and first.reference.startswith("Half of the author's")
    assert "Title: My tomatoes split\n\nI watered them every day" in first.prompt[0].content
    assert first.meta == {"human_feedback": "Leaves out the question.", "draft": "The author grows tomatoes."}
    assert second.reference == "Pads squeak when wet.", "no ideal summary: the TL;DR of the author"
    (post,) = read("slf5k_text2grad.json", SLF5K)
    assert (post.id, post.reference) == ("t3_c3", ""), "the paper's own file has posts by id"
    assert post.prompt[0].content.endswith("Is she bored?")


def test_ultrafeedback() -> None:
    (example,) = read("ultrafeedback_binarized.jsonl", QUESTIONS)
    assert [turn.role for turn in example.prompt] == ["user", "assistant", "user"]
    assert example.reference == "Mild, about 12 degrees."
    (example,) = read("ultrafeedback_text2grad.json", QUESTIONS)
    assert (example.id, example.reference) == ("p1", "23"), "only the chosen response is a reference"


def test_kodcode() -> None:
    first, second = read("kodcode.jsonl", KODCODE)
    assert first.prompt[0].content.endswith("Start from this declaration: `def sum_squares(numbers):`")
    assert first.reference.startswith("def sum_squares") and first.meta["entry_point"] == "sum_squares"
    assert second.prompt[0].content == "Reverse a string." and "entry_point" not in second.meta


def test_the_tests_of_a_problem_tell_its_reference_from_a_wrong_program() -> None:
    with Runner() as runner:
        for problem in read("kodcode.jsonl", KODCODE):
            wrong = re.sub(r"return .*", "return None", problem.reference)
            assert runner.run(problem.reference, problem.meta["tests"]).outcome == "passed"
            assert runner.run(wrong, problem.meta["tests"]).outcome == "failed"


def test_a_packed_file_that_unpacks_to_far_too_much_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MIN_LIMIT", 100_000)
    row = b'{"id": 1}\n'
    bomb, calm = tmp_path / "bomb.jsonl.gz", tmp_path / "calm.jsonl.gz"
    for content in (b" " * 50_000_000, row * 5_000_000):
        bomb.write_bytes(gzip.compress(content))
        tracemalloc.start()
        with pytest.raises(UserError, match=r"bomb.jsonl.gz unpacks to more than \d MiB"):
            list(read_rows(bomb))
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
        tracemalloc.stop()
    calm.write_bytes(gzip.compress(row * 9000))
    assert len(list(read_rows(calm))) == 9000


@pytest.mark.parametrize(
    "damage", [b"", b"\x1f\x8b", b"not gzip", gzip.compress(b"{}", mtime=0)[:-9], b"\x1f\x8b\x08" + b"\xff" * 40]
)
def test_a_packed_file_that_is_damaged_is_one_line(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "bad.jsonl.gz"
    file.write_bytes(damage)
    with pytest.raises(UserError):
        load_rows(str(file))


BAD: dict[str, tuple[str, str]] = {
    # golden/test_messages.py has files that are missing, empty, torn or no UTF-8
    "empty.json": ("\n", "has no records"),
    "number.json": ("3", "neither a list nor an object"),
    "strings.json": ('["a"]', "record 1 is not an object"),
    "strange.jsonl": ('{"colour": "red"}', "unknown shape with keys colour .*known shapes"),
    "gap.jsonl": ('{"title": "b", "post": "a"}\n{"title": "b"}', "record 2: no 'post'"),
    "blank.jsonl": ('{"title": "b", "post": "a"}\n{"title": "b", "post": " "}', "record 2: no text in 'post'"),
    "list.jsonl": ('{"title": "b", "post": ["a"]}', "record 1: no text in 'post'"),
    "x.markdown": ("| a | b |\n|---|---|\n| 1 | 2 |\n", "is Markdown .*save its table as CSV"),
    "x.diff": ("-a\n+b\n", "is a diff .*as corrected"),
    "x.zip": ("PK", "is an archive .*unpack it"),
    "x.xmi": ("<a/>", "is XML .*export JSON"),
    "x.conll": ("a\tO\n", "tokens and no text .*export JSON with offsets"),
    "x.YAML.json": ("a: 1\n", ":1: not JSON"),
    "brackets.jsonl": ("[" * 3000, "jsonl:1: not JSON"),
    "braces.json": ('{"a": ' * 3000, "json:1: not JSON"),
    "digits.json": ('[{"a": ' + "9" * 5000 + "}]", "json:1: not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_that_says_where(tmp_path: Path, name: str) -> None:
    content, words = BAD[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words) as caught:
        read_examples(str(tmp_path / name), SLF5K) if "x." not in name else list(read_rows(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*files.HUB, "KodCode/KodCode-Light-RL-10K", "someone/else"])
def test_hub_names_are_asked_for_as_published_and_offline_names_the_cure(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def unreachable(name: str, what: str = "", **options: str) -> None:
        asked.append((name, what or options["split"]))
        raise ConnectionError("Couldn't reach the Hub\nRetrying")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    with pytest.raises(UserError, match=r"local \.json or \.jsonl file") as caught:
        load_rows(name)
    assert "\n" not in str(caught.value)
    wanted = {
        "JeremyAlain/SLF5K": "train.jsonl",
        "HuggingFaceH4/ultrafeedback_binarized": "train_prefs",
    }
    assert asked == [(name, wanted.get(name, "train"))]


def test_a_hub_data_set_is_read_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = load_rows(str(DATA / "kodcode.jsonl"))
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: rows)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: str(DATA / "slf5k.jsonl"))
    assert len(read_examples("KodCode/KodCode-Light-RL-10K", KODCODE, limit=1)) == 1
    assert len(read_examples("JeremyAlain/SLF5K", SLF5K)) == 2


def write_rows(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    "rows",
    [
        ({"id": "a", "prompt": "One?"}, {"id": "a", "prompt": "Two?"}),
        ({"prompt": "One?"}, {"id": "f-1", "prompt": "Two?"}),
        ({"id": "a", "prompt": "One?"}, {"id": "a", "prompt": [{"role": "system", "content": "One?"}]}),
    ],
)
def test_two_prompts_with_one_id_are_not_taken_for_one(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"two prompts have the id .* and "):
        read_examples(write_rows(tmp_path / "f.jsonl", *({**row, "response": "Yes."} for row in rows)), QUESTIONS)
    data = write_rows(tmp_path / "f.jsonl", {"prompt": "One?"}, {"prompt": "Two?"}, {"prompt": "One?"})
    assert len(read_examples(data, QUESTIONS)) == 3


def test_a_second_reference_answer_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "a", "prompt": "One?", "reference": text} for text in ("", "Yes.", "Yes.", "No.")]
    (example,) = read_examples(write_rows(tmp_path / "f.jsonl", *rows), QUESTIONS)
    assert example.reference == "Yes."
    assert (
        "1 rows have another reference answer to a prompt and id seen before: not used" in capsys.readouterr().err
    )


ROWS = [{"a": "1"}, {"a": "2"}]
LINES = '{"a": "1"}\n{"a": "2"}\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.jsonl", LINES),
        ("x.JSONL", LINES),
        ("x.ndjson", LINES),
        ("x.json", LINES),
        ("x.txt", LINES),
        ("x.jsonl", LINES.replace("\n", "\r\n") + "\r\n"),
        ("x.json", json.dumps(ROWS)),
        ("x.JSON", json.dumps(ROWS, indent=1)),
        ("x.jsonl", json.dumps(ROWS)),
        ("x.jsonl", "\ufeff" + json.dumps(ROWS, indent=1)),
        ("x.json", json.dumps({"total": 2, "results": ROWS})),
        ("x.CSV", "a\n1\n2\n"),
        ("x.TSV", "a\n1\n2\n"),
    ],
)
def test_what_is_in_a_file_decides_how_it_is_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert list(read_rows(tmp_path / name)) == ROWS


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ({"p": {"a": "1"}, "q": {"a": "2"}}, [{"id": "p", "a": "1"}, {"id": "q", "a": "2"}]),
        ({"a": "1"}, [{"a": "1"}]),
        ({"data": {"text": "t"}, "annotations": [{"id": 1}]}, None),
    ],
)
def test_an_object_is_rows_by_id_or_one_row(tmp_path: Path, content: Any, rows: list[Any] | None) -> None:
    (tmp_path / "x.json").write_text(json.dumps(content), encoding="utf-8")
    assert list(read_rows(tmp_path / "x.json")) == ([content] if rows is None else rows)


def test_a_line_separator_inside_a_string_does_not_end_a_record(tmp_path: Path) -> None:
    row = {"title": "t", "post": "one\u2028two"}
    (tmp_path / "x.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    assert load_rows(str(tmp_path / "x.jsonl")) == [row]


def test_the_command_that_turns_a_parquet_file_into_lines_does_so(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    file = tmp_path / "x.parquet"
    pandas.DataFrame(ROWS).to_parquet(file)
    with pytest.raises(UserError, match="is a Parquet file, not text") as error:
        list(read_rows(file))
    command = str(error.value).partition("(")[2].removesuffix(")")
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert list(read_rows(tmp_path / "x.parquet.jsonl")) == ROWS


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"b": 1}, {"a": 1}], r"record 2: no 'b' \(correct or remove"),
        ([{"a": 1}] * 3, r"record 1, record 2, record 3: no 'b' \(is it the right file\?\)"),
        ([{"a": 1}, {"b": 1}, {"a": 1}], r"record 1, record 3: no 'b' \(correct"),
    ],
)
def test_all_bad_rows_are_said_at_once(rows: list[Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(convert_rows(rows, "x.json", frozenset({"b"}), lambda row, id: [id], "row"))
