"""Records on disk: what is written is read back, and what is wrong is said with its place."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from text2grad.errors import InvalidFields, UserError
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Message, QuoteCounts, Source, Span
from text2grad.json_text import from_json, record_json
from text2grad.jsonl import read_jsonl, write_jsonl

EXAMPLE = Example(id="1", prompt=(Message(role="user", content="Sum up."),), meta={"post": 7})
SOURCE = Source(kind="human", model="ann")
SPAN = Span(start=3, end=5, label=-1, text="中🙂", reason="no")
JUDGEMENTS = [
    Critique(text="So\nso.", spans=(SPAN,), score=-0.5, quotes=QuoteCounts(unmatched=2, ambiguous=1)),
    Critique(text=""),
    Failure(kind="truncated", message="cut", raw='{"cri'),
]


@pytest.mark.parametrize("judgement", JUDGEMENTS)
def test_a_record_holds_its_judgement(judgement: Judgement, tmp_path: Path) -> None:
    record = Feedback.of(EXAMPLE, "ab 中🙂", judgement, SOURCE)
    write_jsonl(tmp_path / "f.jsonl", [record])
    (again,) = read_jsonl(tmp_path / "f.jsonl", Feedback)
    assert again == record
    assert again.judgement() == judgement
    assert again.meta["post"] == 7


def test_counts_of_quotes_add_up_and_stand_in_the_record_one_by_one() -> None:
    counts = QuoteCounts(unmatched=2, normalised=1) + QuoteCounts(unmatched=1, repeated=3)
    assert counts == QuoteCounts(unmatched=3, normalised=1, repeated=3)
    record = Feedback.of(EXAMPLE, "ab", Critique(text="", quotes=counts), SOURCE)
    assert record.meta == {"post": 7, "unmatched": 3, "normalised": 1, "repeated": 3}
    assert record.quotes == counts
    other = Feedback(id="1", prompt=EXAMPLE.prompt, response="", source=SOURCE, meta={"repeated": "often"})
    assert other.quotes == QuoteCounts()


@given(st.text(), st.text())
def test_any_text_survives_the_file(response: str, critique: str) -> None:
    record = Feedback.of(EXAMPLE, response, Critique(text=critique), SOURCE)
    assert Feedback.model_validate_json(record.model_dump_json(exclude_none=True)) == record


def test_a_calm_record_is_written_as_it_always_was_and_absent_fields_are_left_out(tmp_path: Path) -> None:
    record = Feedback.of(EXAMPLE, "ab 中🙂", JUDGEMENTS[0], SOURCE)
    assert record_json(record, exclude_none=True) == record.model_dump_json(exclude_none=True)
    write_jsonl(tmp_path / "f.jsonl", [Feedback.of(EXAMPLE, "x", Critique(text=""), SOURCE)])
    assert "null" not in (tmp_path / "f.jsonl").read_text(encoding="utf-8")


def test_spans_labels_and_scores_are_checked() -> None:
    with pytest.raises(InvalidFields, match=r"span \[3, 5\)"):
        Feedback.of(EXAMPLE, "ab 🙂中", Critique(text="", spans=(SPAN,)), SOURCE)
    good = {"start": 0, "end": 1, "label": 1, "text": "a"}
    bad = [{"start": 2}, {"start": 1}, {"start": -1}, *({"label": label} for label in (0.5, 2, -2, "good", None))]
    for change in bad:
        with pytest.raises(ValidationError):
            Span.model_validate({**good, **change})
    for score in (1.1, -1.1, float("nan")):
        with pytest.raises(InvalidFields, match=r"^Critique: score: [^\n]*$"):
            Critique(text="", score=score)


def test_a_bad_line_or_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    for line, problem in (("{", "not JSON"), ('{"id": "1"}', "prompt"), ("[]", "Input")):
        file.write_text(f"{EXAMPLE.model_dump_json()}\n\n{line}\n", encoding="utf-8")
        with pytest.raises(UserError, match=rf"prompts\.jsonl:3.*{problem}"):
            list(read_jsonl(file, Example))
    with pytest.raises(UserError, match=r"none\.jsonl"):
        list(read_jsonl(tmp_path / "none.jsonl", Example))
    file.write_bytes(b'{"id": "\xe9"}\n')
    with pytest.raises(UserError, match=r"prompts\.jsonl.*not UTF-8"):
        list(read_jsonl(file, Example))


def test_writing_replaces_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "e.jsonl"
    assert write_jsonl(file, [EXAMPLE, EXAMPLE]) == 2 == len(list(read_jsonl(file, Example)))
    assert write_jsonl(file, []) == 0
    assert file.read_text(encoding="utf-8") == ""
    assert [path.name for path in file.parent.iterdir()] == ["e.jsonl"]


HALF = "half \ud83d a pair"


def test_half_a_surrogate_pair_anywhere_in_a_record_is_written_as_a_question_mark(tmp_path: Path) -> None:
    example = EXAMPLE.model_copy(update={"reference": HALF, "meta": {HALF: [HALF]}})
    span = Span(start=5, end=8, label=1, text=HALF[5:8])
    said = Critique(text=HALF, spans=(span,), omissions=(HALF,))
    records = [
        Feedback.of(example, HALF, said, SOURCE),
        Feedback.of(example, HALF, Failure(kind="invalid", message=HALF, raw=HALF), SOURCE),
    ]
    write_jsonl(tmp_path / "f.jsonl", records)
    first, second = read_jsonl(tmp_path / "f.jsonl", Feedback)
    assert first.response == second.response == "half ? a pair" and first.spans[0].text == "? a"
    assert second.error and second.error.message == "half ? a pair" and "half ? a pair" in first.meta["omissions"]


def test_every_writer_of_json_writes_half_a_pair(tmp_path: Path) -> None:
    from text2grad.data.export import WRITERS, export
    from text2grad.durable.log import RunLog
    from text2grad.page.render import embedded
    from text2grad.stages.run_folder import write_json

    better, worse = (
        Feedback.of(EXAMPLE, f"{HALF} {score}", Critique(text=HALF, score=score), SOURCE) for score in (1, 0)
    )
    for kind in WRITERS:
        export([better, worse], kind, tmp_path / kind)
        (tmp_path / kind).read_text(encoding="utf-8")
    write_json(tmp_path / "a.json", {"error": HALF})
    log = RunLog(tmp_path / "log", "log", 1)
    log.sample({"response": HALF})
    for file in (tmp_path / "a.json", tmp_path / "log" / "samples.jsonl"):
        assert "half ? a pair" in file.read_text(encoding="utf-8")
    assert "half ? a pair" in embedded({"response": HALF})


def test_json_that_could_not_be_written_again_is_a_bad_line_not_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    for text in ("[" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, "9" * 5000, "[" * 101 + "]" * 101):
        file.write_text(f'{{"id": {text}}}\n', encoding="utf-8")
        with pytest.raises(UserError, match=r"prompts\.jsonl:1: not JSON"):
            list(read_jsonl(file, Example))
    for text in ('"' + "[" * 3000 + '"', "[" + "[]," * 3000 + "1]", '["\\"[{", ' + "[" * 90 + "]" * 91):
        assert from_json(text) == json.loads(text)  # brackets that are not nested


def test_a_disk_that_is_full_is_one_line_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "e.jsonl"
    write_jsonl(file, [EXAMPLE])
    before = file.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*No space left on device"):
        write_jsonl(file, [EXAMPLE, EXAMPLE])
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
