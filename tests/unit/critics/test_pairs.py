"""Passing and failing programs of one question as preference pairs."""

from __future__ import annotations

from typing import Any

import pytest

from text2grad.critics.program import preference_pairs
from text2grad.feedback import Failure, Feedback, Message, Source


def record(question: str, response: str, score: float | None, **changes: Any) -> Feedback:
    prompt = (Message(role="user", content=question),)
    source = Source(kind="program")
    return Feedback(
        **{"id": question, "prompt": prompt, "response": response, "score": score, "source": source, **changes}
    )


RECORDS = [
    record("a", "good 1", 1.0),
    record("a", "bad 1", -1.0),
    record("a", "good 1", 1.0),
    record("a", "bad 2", -1.0),
    record("a", "bad 3", -1.0),
    record("a", "good 2", 1.0),
    record("b", "good", 1.0),
    record("c", "bad", -1.0),
    record("d", "good", 1.0),
    record("d", "no verdict", None, error=Failure(kind="unsupported", message="no tests")),
    record("e", "good", 1.0),
    record("e", "a person's", -1.0, source=Source(kind="human")),
]


@pytest.mark.parametrize(
    ("most", "wanted"),
    [
        (1, [("good 1", "bad 1")]),
        (9, [("good 1", "bad 1"), ("good 2", "bad 2"), ("good 1", "bad 3")]),
    ],
)
def test_distinct_programs_of_one_question_are_paired(most: int, wanted: list[tuple[str, str]]) -> None:
    pairs = list(preference_pairs(RECORDS, most))
    assert {pair.id for pair in pairs} == {"a"}
    assert [(pair.chosen[0].content, pair.rejected[0].content) for pair in pairs] == wanted


def test_a_pair_has_the_shape_trl_reads() -> None:
    (pair,) = preference_pairs(RECORDS, 1)
    assert pair.model_dump() == {
        "id": "a",
        "prompt": ({"role": "user", "content": "a"},),
        "chosen": ({"role": "assistant", "content": "good 1"},),
        "rejected": ({"role": "assistant", "content": "bad 1"},),
    }
