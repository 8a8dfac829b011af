"""Preference pairs: every shape they come in, what gives none, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from places import DATA
from text2grad.data.export import export, left_out, pairs_of
from text2grad.data.preference import read_pairs
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source, write_jsonl

QUESTION = ({"role": "user", "content": "Why?"},)
YES, NO = {"role": "assistant", "content": "So."}, {"role": "assistant", "content": "Not so."}
WHY = (Message(role="user", content="Why?"),)


def written(folder: Path, *rows: Any) -> str:
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
def test_one_pair_in_every_shape(tmp_path: Path, row: dict[str, Any]) -> None:
    (pair,) = read_pairs(written(tmp_path, row)).pairs
    assert (pair.prompt, pair.chosen, pair.rejected) == (WHY, "So.", "Not so.")
    assert pair.id == row.get("prompt_id", "pairs-1") and pair.meta == row.get("meta", {})


def test_what_decides_nothing_is_left_out_and_counted(tmp_path: Path) -> None:
    row = {"prompt": "Why?", "chosen": "So.", "rejected": "Not so."}
    found = read_pairs(written(tmp_path, row, row, {**row, "rejected": "So.\n"}, {**row, "prompt": "How?"}))
    assert len(found.pairs) == 2 and found.left_out == {"repeated": 1, "equal_sides": 1}


@pytest.mark.parametrize(
    ("row", "said"),
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
def test_what_is_no_pair_is_refused_by_its_number(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    good = {"prompt": "Why?", "chosen": "So.", "rejected": "Not so."}
    with pytest.raises(UserError, match=said) as caught:
        read_pairs(written(tmp_path, good, row))
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


def record(id: str, response: str, score: float | None) -> Feedback:
    return Feedback(id=id, prompt=WHY, response=response, score=score, source=Source(kind="llm"))


def scored(prompt: str, *answers: tuple[str, float | None]) -> list[Feedback]:
    turns = (Message(role="user", content=prompt),)
    return [record(prompt, text, score).model_copy(update={"prompt": turns}) for text, score in answers]


RECORDS = [
    *scored("a", ("good", 1.0), ("poor", -1.0), ("so so", 0.0)),
    *scored("b", ("one", 0.5), ("other", 0.5)),
    *scored("c", ("same", 1.0), ("same ", -1.0)),
    *scored("d", ("alone", 1.0), ("unread", None)),
]


def test_the_best_answer_over_the_worst() -> None:
    found = pairs_of(RECORDS)
    assert [(pair.id, pair.chosen, pair.rejected) for pair in found.pairs] == [("a", "good", "poor")]
    assert found.left_out == {"equal_scores": 1, "equal_sides": 1, "single": 1, "without_score": 1}
    assert left_out(RECORDS, "preference") == {"left_out": found.left_out}


def test_more_pairs_of_a_prompt_come_from_both_ends_inwards(tmp_path: Path) -> None:
    answers = (("p1", 1.0), ("p1 ", 1.0), ("f1", -1.0), ("p2", 1.0), ("half", 0.5), ("f2", -1.0), ("f3", -1.0))
    records = list(scored("a", *answers))

    def found(most: int) -> list[tuple[str, str]]:
        return [(pair.chosen, pair.rejected) for pair in pairs_of(records, most).pairs]

    assert found(1) == [("p1", "f1")] and found(2) == [("p1", "f1"), ("p2", "f2")]
    assert found(4) == [("p1", "f1"), ("p2", "f2"), ("half", "f3"), ("p1", "f2")], "then in other company"
    assert len(found(99)) == len(set(found(99))) == 11, "every better over every worse one, once"
    assert not pairs_of([*scored("b", ("one", 0.5), ("other", 0.5))], 4).pairs
    assert export(records, "preference", tmp_path / "pairs.jsonl", 2) == 2


def test_one_that_passes_stands_over_each_that_fails() -> None:
    records = [*scored("a", ("good", 1.0), *((f"bad {n}", -1.0) for n in range(5)))]
    assert [pair.rejected for pair in pairs_of(records, 4).pairs] == ["bad 0", "bad 1", "bad 2", "bad 3"]
    assert {pair.chosen for pair in pairs_of(records, 4).pairs} == {"good"}


def test_records_without_a_pair_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no two answers to one prompt have different scores"):
        export(RECORDS[:1], "preference", tmp_path / "pairs.jsonl")
    assert not list(tmp_path.iterdir())


def test_exported_feedback_is_read_back_and_feedback_itself_is_not(tmp_path: Path) -> None:
    export(RECORDS, "preference", tmp_path / "pairs.jsonl")
    assert read_pairs(str(tmp_path / "pairs.jsonl")).pairs == pairs_of(RECORDS).pairs
    write_jsonl(tmp_path / "feedback.jsonl", RECORDS)
    with pytest.raises(UserError, match=r"export .* --as preference"):
        read_pairs(str(tmp_path / "feedback.jsonl"))
