"""Dense answers: a label for every word, checked against the response."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.critics.prompted.reading import Reader
from text2grad.feedback import Critique, Failure, Span
from text2grad_lab.prompts import dense
from text2grad_lab.prompts.words import parse_words, render_words

RESPONSE = "It is\nnot </response> so."
TEXT = st.text(alphabet=st.sampled_from("ab \n.\"'{}[]<>/é\u3000"), max_size=30)


def words(*labels: object, score: object = None, **changes: str) -> str:
    """Return the dense answer for RESPONSE, with some words replaced by `changes`."""
    listed = [[changes.get(word, word), label] for word, label in zip(RESPONSE.split(), labels, strict=False)]
    return json.dumps({"words": listed, "score": score})


def parse(z: str, response: str = RESPONSE) -> Critique:
    critique = parse_words(z, response)
    assert isinstance(critique, Critique), critique
    return critique


def test_one_span_for_each_word_with_a_label() -> None:
    critique = parse(words(1, 0, -1, 0, -1, score=-0.5))
    assert [(span.text, span.start, span.label) for span in critique.spans] == [
        ("It", 0, 1),
        ("not", 6, -1),
        ("so.", 22, -1),
    ]
    assert (critique.text, critique.score, critique.quotes.unmatched) == ("", -0.5, 0)


def test_words_with_escapes_are_matched() -> None:
    critique = parse(words(0, 0, 0, -1, 0, **{"</response>": "<\\/response>"}))
    assert [span.text for span in critique.spans] == ["</response>"]


def test_words_that_differ_have_no_label_and_are_counted() -> None:
    critique = parse(words(1, 0, -1, 0, -1, It="That", so="so"))
    assert [span.text for span in critique.spans] == ["not", "so."] and critique.lost == ("That",)
    assert critique.quotes.unmatched == 1
    validated = Reader(annotator=True).validate(critique)
    assert isinstance(validated, Failure) and "1 of its quotes" in validated.message


@pytest.mark.parametrize("label", ["1", "+1", " 1 ", 1.0])
def test_labels_may_be_quoted(label: object) -> None:
    assert parse(words(label, "0", "-1", 0, -1.0, score="-.5")) == parse(words(1, 0, -1, 0, -1, score=-0.5))


@pytest.mark.parametrize(
    ("z", "problem"),
    [
        (words(1, 0, -1), "labels of 3 words, and the response has 5"),
        (words(1, 0, 2, 0, 0), "label of 1, 0 or -1"),
        (words(1, 0, True, 0, 0), "label of 1, 0 or -1"),
        (words("good", 0, 0, 0, 0), "label of 1, 0 or -1"),
        (words("1/1", 0, 0, 0, 0), "label of 1, 0 or -1"),
        (words(0.5, 0, 0, 0, 0), "label of 1, 0 or -1"),
        ('{"words": {"It": 1}, "score": 1}', "words is not a list"),
        ('{"words": [["It", 1]], "poor_spans": []}', "the keys are words, poor_spans"),
        ('{"score": 1}', "the keys are score"),
        ("no", "no JSON object"),
        (words(1, 0, 0, 0, 0, score=3), "the score is 3"),
    ],
)
def test_answers_without_a_label_for_every_word_are_failures(z: str, problem: str) -> None:
    failure = parse_words(z, RESPONSE)
    assert (
        isinstance(failure, Failure)
        and (failure.kind, failure.raw) == ("invalid", z)
        and problem in failure.message
    )


@given(response=TEXT, data=st.data())
def test_rendered_labels_are_parsed_back(response: str, data: st.DataObject) -> None:
    places = st.integers(0, max(0, len(response) - 1))
    drawn = data.draw(st.lists(st.tuples(places, places, st.sampled_from((1, -1))), max_size=3)) if response else []
    edges = [(min(a, b), max(a, b) + 1, label) for a, b, label in drawn]
    spans = [Span(start=a, end=b, label=label, text=response[a:b]) for a, b, label in edges]
    critique = parse(render_words(Critique(text="", spans=tuple(spans), score=1.0), response), response)
    place = 0
    expected = []
    for word in response.split():
        place = response.index(word, place)
        touching = {label for a, b, label in edges if a < place + len(word) and b > place}
        expected += [(place, word, *touching)] if len(touching) == 1 else []
        place += len(word)
    assert [(span.start, span.text, span.label) for span in critique.spans] == expected and not critique.lost


def test_the_prompt_asks_for_the_parsed_format() -> None:
    shape = next(line for line in dense.text.splitlines() if line.startswith("{"))
    assert parse(shape.replace("...", '["so", -1]'), "word so").spans[0].text == "so"
    assert list(json.loads(dense.schema())["properties"]) == list(json.loads(words(0)))
    assert dense.schema() == dense.schema(turns=True)


@pytest.mark.parametrize(
    ("response", "wrong"),
    [("苹果是红色的。", "红"), ("รายงานเสร็จวันจันทร์", "จันทร์"), ("Die Größe der Übung stimmt.", "Größe")],
)
def test_scripts_without_spaces_have_labels(response: str, wrong: str) -> None:
    start = response.index(wrong)
    span = Span(start=start, end=start + len(wrong), label=-1, text=wrong)
    critique = parse(render_words(Critique(text="", spans=(span,)), response), response)
    poor = {place for poor_span in critique.spans for place in range(poor_span.start, poor_span.end)}
    assert set(range(span.start, span.end)) <= poor and len(poor) < len(response)
