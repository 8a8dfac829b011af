"""Preference pairs: formats, pairs left out, and invalid records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from places import DATA
from text2grad.data.export import build_pairs, export
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source, Transcript
from text2grad.jsonl import write_jsonl
from text2grad_lab.readers.preference import read_pairs

QUESTION = ({"role": "user", "content": "Why?"},)
YES, NO = {"role": "assistant", "content": "So."}, {"role": "assistant", "content": "Not so."}
WHY = (Message(role="user", content="Why?"),)


def write_pairs(folder: Path, *rows: Any) -> str:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Why?", "chosen": "So.", "rejected": "Not so."},
        {"prompt": [*QUESTION], "chosen": "So.", "rejected": "Not so.", "meta": {"by": "me"}},
        {"prompt": [*QUESTION], "chosen": [YES], "rejected": [NO]},
        {"chosen": [*QUESTION, YES], "rejected": [*QUESTION, NO]},
        {"prompt": "Why?", "prompt_id": "x", "chosen": [*QUESTION, YES], "rejected": [*QUESTION, NO]},
    ],
)
def test_a_pair_is_read_from_every_format(tmp_path: Path, row: dict[str, Any]) -> None:
    (pair,) = read_pairs(write_pairs(tmp_path, row)).pairs
    assert (pair.prompt, pair.chosen, pair.rejected) == (WHY, "So.", "Not so.")
    assert pair.id == row.get("prompt_id", "pairs-1") and pair.meta == row.get("meta", {})


def test_repeated_and_equal_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    row = {"prompt": "Why?", "chosen": "So.", "rejected": "Not so."}
    pairs = read_pairs(write_pairs(tmp_path, row, row, {**row, "rejected": "So.\n"}, {**row, "prompt": "How?"}))
    assert len(pairs.pairs) == 2 and pairs.left_out == {"repeated": 1, "equal_sides": 1}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "Why?", "chosen": "So."}, "record 2: no 'rejected'"),
        ({"prompt": "Why?", "chosen": None, "rejected": "So."}, "record 2: no 'chosen'"),
        ({"chosen": "So.", "rejected": "Not so."}, "record 2: no text in 'prompt'"),
        ({"chosen": [*QUESTION, YES], "rejected": [NO]}, "answer different prompts"),
        ({"chosen": [*QUESTION], "rejected": [NO]}, "'chosen' does not end with the assistant"),
        ({"prompt": "Why?", "chosen": "So.", "rejected": "No", "meta": 3}, "record 2: meta: "),
        ({"prompt": "Why?"}, "record 2: no 'chosen'"),
    ],
)
def test_invalid_pairs_are_refused_by_number(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    good = {"prompt": "Why?", "chosen": "So.", "rejected": "Not so."}
    with pytest.raises(UserError, match=problem) as caught:
        read_pairs(write_pairs(tmp_path, good, row))
    assert "\n" not in str(caught.value)


def test_published_rows_make_pairs() -> None:
    (binarized,) = read_pairs(str(DATA / "ultrafeedback_binarized.jsonl")).pairs
    assert (binarized.chosen, binarized.rejected) == ("Mild, about 12 degrees.", "Yes.")
    (rated,) = read_pairs(str(DATA / "ultrafeedback.jsonl")).pairs
    assert (rated.chosen, rated.rejected) == ("Air scatters short wavelengths most.", "It mirrors the sea.")
    with pytest.raises(UserError, match="neither two scored answers"):
        read_pairs(str(DATA / "kodcode.jsonl"))


def test_a_correction_is_preferred_to_its_draft(tmp_path: Path) -> None:
    row = {"id": "1", "title": "t", "post": "p", "feedback": "f", "ideal_human_summary": "good"}
    file = tmp_path / "slf5k.jsonl"
    file.write_text(json.dumps({**row, "generated_summary_for_feedback": "draft"}), encoding="utf-8")
    (pair,) = read_pairs(str(file)).pairs
    assert (pair.chosen, pair.rejected) == ("good", "draft")


def test_exported_pairs_are_read_and_raw_feedback_is_refused(tmp_path: Path) -> None:
    talk = Transcript.of([((), "I look."), ((Message(role="tool", content="95"),), "95 km.")])
    answers: tuple[tuple[str, float], ...] = ((talk, 1.0), ("No.", -1.0))
    records = [
        Feedback(id="a", prompt=WHY, response=text, score=score, source=Source(kind="llm"))
        for text, score in answers
    ]
    export(records, "preference", tmp_path / "pairs.jsonl")
    pairs = read_pairs(str(tmp_path / "pairs.jsonl")).pairs
    assert pairs == build_pairs(records).pairs and pairs[0].chosen == talk
    write_jsonl(tmp_path / "feedback.jsonl", records)
    with pytest.raises(UserError, match=r"export .* --as preference"):
        read_pairs(str(tmp_path / "feedback.jsonl"))
