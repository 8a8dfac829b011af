"""Which letter an answer in words chooses, and what is counted of it."""

from __future__ import annotations

import pytest

from text2grad.feedback import Example, Message
from text2grad_lab.benchmarks.arc import lettered
from text2grad_lab.benchmarks.letters import choice_figures, letter_rows, read_letter, with_letters


def question(id: str, answer: int) -> Example:
    meta = {"question": "Why is it wet?", "choices": ["fog", "rain", "dew"], "answer": answer}
    return Example(id=id, prompt=(Message(role="user", content="Question: ..."),), reference="x", meta=meta)


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("B", "B"),
        (" (C) dew", "C"),
        ("B. Rain", "B"),
        ("**A**", "A"),
        ("The answer is C.", "C"),
        ("The correct answer is: **B) rain**", "B"),
        ("Because (A) is wrong, the answer is B", "B"),
        ("It rains, so:\n\nB", "B"),
        ("It is not (A), it is (B)", "B"),
        ("Option A is wrong. Option B is right", "B"),
        ("", ""),
        ("b", ""),
        ("A dog is not rain", ""),
        ("I think it rains", ""),
        ("D", ""),
        ("The answer is a dog", ""),
        ("Both A and B", ""),
    ],
)
def test_a_letter_is_read_or_there_is_none(said: str, letter: str) -> None:
    assert read_letter(said, 3) == letter


def test_without_a_letter_an_answer_is_wrong_and_counted() -> None:
    said = letter_rows([question("a", 1), question("b", 0), question("c", 0)], ["B", "no idea", "C"])
    assert [row["scores"]["generated"] for row in said] == [1, 0, 0]
    figures = choice_figures(said)
    assert figures == {"generated": pytest.approx(1 / 3), "unreadable": 1, "total": 3}
    rows = [
        {"id": row["id"], "response": "fog", "scores": {"likelihood": 1.0, "likelihood_normalised": 0.0}}
        for row in said
    ]
    both = choice_figures(with_letters(rows, said))
    assert list(both) == ["likelihood", "likelihood_normalised", "generated", "unreadable", "total"]
    assert (both["likelihood"], both["generated"]) == (1.0, pytest.approx(1 / 3))


def test_a_question_is_asked_with_letters() -> None:
    asked = lettered(question("a", 1))
    assert asked.prompt[0].content == (
        "Why is it wet?\n\nA. fog\nB. rain\nC. dew\n\nWhich answer is right? Reply with its letter alone."
    )
