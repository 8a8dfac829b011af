"""Rows of published data sets become responses to judge, each with what it needs and nothing of
another's."""

from __future__ import annotations

from typing import Any

import pytest

from places import DATA
from text2grad.data.files import read_rows
from text2grad.data.published import KODCODE, QUESTIONS, SLF5K, Response, Shape, read_examples, responses_of

SHAPES: dict[str, tuple[Shape, ...]] = {
    "slf5k.jsonl": SLF5K,
    "slf5k_text2grad.json": SLF5K,
    "ultrafeedback.jsonl": QUESTIONS,
    "ultrafeedback_binarized.jsonl": QUESTIONS,
    "kodcode.jsonl": KODCODE,
}


def found(row: dict[str, Any]) -> list[Response]:
    responses = responses_of(row)
    assert responses is not None
    return responses


def rows_of(name: str) -> list[dict[str, Any]]:
    return list(read_rows(DATA / name))


def test_slf5k_feedback_is_about_the_draft() -> None:
    (response,) = found(rows_of("slf5k.jsonl")[0])
    assert (response.id, response.response) == ("t3_a1", "The author grows tomatoes.")
    assert response.feedback == "Leaves out the question." and response.meta == {}
    assert response.reference.startswith("Half of the author's")


def test_each_completion_of_ultrafeedback_is_a_record_of_its_own() -> None:
    (row,) = rows_of("ultrafeedback.jsonl")
    first, second = found(row)
    assert [each.response for each in (first, second)] == [c["response"] for c in row["completions"]]
    assert first.id.endswith("-1") and second.id.endswith("-2") and first.id[:-2] == second.id[:-2]
    assert first.meta == {"model": "a", "overall_score": 2.0}
    assert first.reference == second.response, "the best completion"
    assert second.reference == "", "no answer is compared with itself"
    assert found(row) == found(dict(reversed(row.items()))), "the id does not hang on the order of keys"
    other = {**row, "completions": [{"model": "c", "response": "It is old."}]}
    assert len({each.id for each in [*found(row), *found(other)]}) == 3, "two rows that ask the same"


def test_binarized_rows_give_both_answers() -> None:
    chosen, rejected = found(rows_of("ultrafeedback_binarized.jsonl")[0])
    mild = "Mild, about 12 degrees."
    assert (chosen.id, chosen.response, chosen.reference) == ("p2-chosen", mild, "")
    assert (rejected.id, rejected.response, rejected.reference) == ("p2-rejected", "Yes.", mild)
    assert len(chosen.prompt) == 3 and chosen.prompt == rejected.prompt


def test_kodcode_brings_its_solution_or_what_models_wrote() -> None:
    row, _ = rows_of("kodcode.jsonl")
    (own,) = found(row)
    assert (own.id, own.response, own.reference) == ("Prefill_1_I", row["solution"], "")
    assert own.meta["tests"] == row["test"] and own.meta["entry_point"] == "sum_squares"
    written = "def sum_squares(numbers): ..."
    (r1,) = found({**row, "r1_solution": written, "r1_correctness": "False"})
    assert (r1.id, r1.response, r1.reference) == ("Prefill_1_I-r1", written, row["solution"])


def test_the_prompt_is_the_tasks_own() -> None:
    for name, shapes in SHAPES.items():
        examples = {example.id: example.prompt for example in read_examples(str(DATA / name), shapes)}
        for row in rows_of(name)[:1]:
            assert {each.prompt for each in found(row)} <= set(examples.values()), name


def test_other_rows_are_of_no_published_shape_and_one_that_lacks_a_text_says_which() -> None:
    question, remark = {"prompt": "a", "response": "b"}, {"response": "a", "critique": "b"}
    for row in ({}, question, remark, {"question": "a", "solution": "b"}):
        assert responses_of(row) is None
    lacking: list[tuple[dict[str, Any], str]] = [
        ({"title": "a", "post": ""}, "'post'"),
        ({"title": "a", "post": "b"}, "'generated_summary_for_feedback'"),
        ({"instruction": "a", "completions": None}, "not a row of UltraFeedback"),
        ({"instruction": "a", "completions": [{"model": "x"}]}, "completion 1 has no 'response'"),
        ({"prompt": "a", "chosen": [], "rejected": []}, "'chosen'"),
        ({"question": "a", "solution": "", "test": "t"}, "'solution'"),
    ]
    for row, name in lacking:
        with pytest.raises(ValueError, match=name):
            responses_of(row)
