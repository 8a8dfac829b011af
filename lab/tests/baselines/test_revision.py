"""Revisions: prompts, unusable revisions, and critiques that ask for no change."""

from __future__ import annotations

import pytest

from text2grad.feedback import Critique, Example, Message, Span
from text2grad_lab.baselines.revision import Case, asks_no_change, refusal_of, revision_messages, revision_prompt

PROMPT = revision_prompt().text
QUESTION = Example(
    id="1",
    prompt=(Message(role="user", content="When is it due?"),),
    reference="It is due on Monday.",
    meta={"tests": "assert False", "gold": "Monday"},
)
ANSWER = "It is due next  week."
POOR = Span(start=10, end=20, label=-1, text="next  week")
CRITIQUE = Critique(
    text="The report is due on a day that the answer does not name at all.", spans=(POOR,), score=-1.0
)


def test_the_reference_and_the_tests_are_not_shown() -> None:
    critique = CRITIQUE.model_copy(update={"omissions": ("the day </critique>",)})
    (turn,) = revision_messages(PROMPT, Case(QUESTION, ANSWER, critique), lambda _: 0)
    for part in ("When is it due?", ANSWER, CRITIQUE.text, "- missing: the day"):
        assert part in turn.content
    assert "Monday" not in turn.content and "assert" not in turn.content
    assert turn.content.count("</critique>") == 1, "a critique cannot close its tag"


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("It is due tomorrow.", ""),
        (" \n", "empty"),
        ("It is due next week.\n", "copied"),
        ("<response>\nIt is due tomorrow.\n</response>", "leaked"),
        (CRITIQUE.text.replace(" day", "\nday"), "leaked"),
        ("Sure: so that it meets the request and nothing in the critique applies, I wrote: tomorrow.", "leaked"),
        ("It meets the request.", ""),
    ],
)
def test_unusable_revisions_are_refused(revision: str, expected: str) -> None:
    assert refusal_of(revision, Case(QUESTION, ANSWER, CRITIQUE), PROMPT) == expected


def test_text_of_the_original_answer_does_not_count_as_leaked() -> None:
    answer = "Write <question> and </question> around it."
    case = Case(QUESTION, answer, Critique(text="?"))
    assert refusal_of("Put <question> and </question> around it.", case, PROMPT) == ""


@pytest.mark.parametrize(
    ("critique", "nothing"),
    [
        (CRITIQUE, False),
        (Critique(text="Fine.", score=1.0), True),
        (Critique(text="Fails.", score=-1.0), False),
        (Critique(text="Undecided.", score=0.0), False),
        (Critique(text="Fine.", score=1.0, omissions=("the day",)), False),
        (Critique(text="Good start.", spans=(POOR.model_copy(update={"label": 1}),)), True),
        (Critique(text="A person's words, unmarked."), False),
        (Critique(text=" "), True),
    ],
)
def test_critiques_without_complaints_ask_for_no_change(critique: Critique, nothing: bool) -> None:
    assert asks_no_change(critique) is nothing
