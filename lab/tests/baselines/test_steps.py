"""Steps of answers: places in any program and any text, without overlap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.feedback import Example, Message, Place, Span
from text2grad_lab.baselines.steps import labelled_steps, steps_of, text_steps

PROGRAM = """def f(xs):
    total = 0
    for x in xs:
        if x > 1:
            total += x
        else:
            continue
    return (
        total
    )
"""
PIECES = (
    *(
        "def f(x):\n",
        "    return x\n",
        "if x: y = 1; z = 2\n",
        "```python\n",
        "```\n",
        "Sure. ",
        "é ",
        "# note\n",
        "\n",
    ),
    *(
        "match x:\n  case 1:\n    pass\n",
        "'''a\nb'''\n",
        "\t",
        "x = (\n1)\n",
        "@d\n",
        "but, and ",
        "e.g. this; that",
    ),
)
ANSWERS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))


def question(tests: str = "") -> Example:
    return Example(id="1", prompt=(Message(role="user", content="?"),), meta={"tests": tests} if tests else {})


def texts(response: str, steps: list[Place]) -> list[str]:
    return [response[start:end] for start, end in steps]


@given(response=ANSWERS, tests=st.sampled_from(["", "from solution import f\nassert f(1)\n"]))
def test_steps_are_ordered_disjoint_and_not_blank(response: str, tests: str) -> None:
    steps = steps_of(question(tests), response)
    assert all(piece.strip() == piece != "" for piece in texts(response, steps))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(steps))
    assert bool(steps) == bool(response.strip())


@given(text=st.text())
def test_text_steps_cover_every_visible_character(text: str) -> None:
    """The only exceptions are commas before a conjunction."""
    inside = {place for start, end in text_steps(text) for place in range(start, end)}
    outside = {text[place] for place in range(len(text)) if place not in inside}
    assert all(character.isspace() or character == "," for character in outside)


@pytest.mark.parametrize("fence", ["{}", "Sure, here it is:\n```python\n{}```\nThat is all."])
def test_the_steps_of_a_program_are_its_statements(fence: str) -> None:
    response = fence.format(PROGRAM)
    step_texts = texts(response, steps_of(question("assert f"), response))
    assert step_texts[:5] == ["total = 0", "for x in xs:", "if x > 1:", "total += x", "continue"]
    assert step_texts[5:] == ["return (\n        total\n    )"]


def test_two_statements_in_a_line_are_two_steps() -> None:
    response = "if x: y = 1; z = 2\n"
    assert texts(response, steps_of(question("t"), response)) == ["if x:", "y = 1", "z = 2"]


def test_steps_of_an_unparsable_program_are_its_lines() -> None:
    response = "def f(x):\n    y = (x\n\n    # a note\n    return y +\n"
    assert texts(response, steps_of(question("t"), response)) == ["def f(x):", "y = (x", "return y +"]


def test_prose_instead_of_a_program_is_split_as_text() -> None:
    response = "I cannot do that. Sorry!"
    assert texts(response, steps_of(question("t"), response)) == ["I cannot do that.", "Sorry!"]


def test_texts_are_split_into_sentences_and_clauses() -> None:
    text = 'It rained (a lot). "Late!" she said; we left, and came home.\nPi is 3.14, or so'
    expected = ["It rained (a lot).", '"Late!"', "she said;", "we left", "and came home.", "Pi is 3.14", "or so"]
    assert [piece.rstrip(",") for piece in texts(text, text_steps(text))] == expected


def test_steps_that_a_poor_span_overlaps_are_poor() -> None:
    response = "One. Two. Three."
    spans = [Span(start=7, end=12, label=-1, text="o. Th"), Span(start=0, end=9, label=1, text="One. Two.")]
    labelled = labelled_steps(text_steps(response), response, spans)
    assert [(span.text, span.label) for span in labelled] == [("One.", 1), ("Two.", -1), ("Three.", -1)]


def test_a_span_that_ends_where_a_step_begins_does_not_touch_it() -> None:
    (first, second) = labelled_steps([(0, 4), (5, 9)], "One. Two.", [Span(start=0, end=5, label=-1, text="One. ")])
    assert (first.label, second.label) == (-1, 1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("今天下雨。我们在家！你呢？", 3),
        ("「好。」他说。", 2),
        ("यह सही है। वह गलत है।", 2),
        ("ما هذا؟ هذا كتاب.", 2),
    ],
)
def test_sentences_end_without_a_following_space(text: str, count: int) -> None:
    assert len(text_steps(text)) == count
