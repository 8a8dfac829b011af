"""Damaged answers: each kind of damage ends as the same critique or as a failure that says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.feedback import Critique, Failure, Label, Span
from text2grad.wire import parse, render
from text2grad.wire.objects import Found, UnreadableError, _read_closely, _strict_object, read_object
from text2grad.wire.quotes import in_order

RESPONSE = 'We start art class. The art is "fine", "good" and `ratio: 5`.'
SIGNS = (" ", "\n\n", "\r\n", "\t", "\x00", '"', "'", "\\", "{", "}", "[", "]", '", "', "', '", '": "', '"}, {"')
WORDS = (
    "art",
    "start",
    '", "reason": "',
    "\\n",
    "\\u00e9",
    "é",
    "e\u0301",
    "日本",
    "語",
    "ไทย",
    "🙂",
    "👩‍💻",
    "_",
    "7",
)
TEXTS = st.lists(st.sampled_from(SIGNS + WORDS), min_size=1, max_size=25).map("".join)


@st.composite
def judged(draw: st.DrawFn) -> tuple[Critique, str]:
    """A response made of pieces that look like JSON, and a critique of any parts of it."""
    response = draw(TEXTS)
    spans = []
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(response) - 1))
        end = draw(st.integers(start + 1, len(response)))
        label: Label = draw(st.sampled_from((1, -1)))
        reason = draw(st.just("") | TEXTS)
        spans.append(Span(start=start, end=end, label=label, text=response[start:end], reason=reason))
    score = draw(st.none() | st.floats(-1, 1))
    return Critique(text=draw(TEXTS), spans=in_order(spans), score=score), response


@given(judged())
def test_the_whole_answer_is_read_back(case: tuple[Critique, str]) -> None:
    critique, response = case
    assert parse(render(critique, response), response) == critique


@given(judged())
def test_fences_prose_and_trailing_commas_change_nothing(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    assert parse(f"Here it is:\n```json\n{z[:-1]},\n}}\n```\nI hope it helps.", response) == critique


@given(judged())
def test_raw_control_characters_change_nothing(case: tuple[Critique, str]) -> None:
    critique, response = case
    value = json.loads(render(critique, response))
    z = json.dumps(value, ensure_ascii=False, indent=2).replace("\\\\", "\x00")
    bare = z.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t").replace("\x00", "\\\\")
    assert parse(bare, response) == critique


@given(judged(), st.data())
def test_a_cut_answer_is_a_failure(case: tuple[Critique, str], data: st.DataObject) -> None:
    critique, response = case
    z = render(critique, response)
    judgement = parse(z[: data.draw(st.integers(1, len(z) - 1))], response)
    assert isinstance(judgement, Failure) and judgement.kind == "truncated"


@given(judged())
def test_single_quotes_are_the_same_critique_or_a_failure(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    for damaged in (repr(json.loads(z)), z.replace('"', "'")):
        judgement = parse(damaged, response)
        assert isinstance(judgement, Failure) or judgement == critique


@given(st.lists(st.sampled_from([*'{}[]:,"\\ 1', "critique", "good_spans", "null", "'", "quote"]), max_size=40))
def test_any_rubble_is_a_judgement(pieces: list[str]) -> None:
    assert isinstance(parse("".join(pieces), RESPONSE), Failure)


@pytest.mark.parametrize(
    ("quotes", "reason", "response"),
    [
        (("fine", "good"), "", RESPONSE),
        (("fine",), "apt", 'He wrote "fine", "reason" and no more.'),
        (("quote", "fine"), "apt", 'He wrote {"quote": "fine"}, {"quote": "fair"}.'),
    ],
)
def test_strings_that_stand_as_one_in_the_response_can_still_be_written(
    quotes: tuple[str, ...], reason: str, response: str
) -> None:
    places = [(response.index(quote), quote) for quote in quotes]
    spans = [Span(start=at, end=at + len(text), label=1, text=text, reason=reason) for at, text in places]
    critique = Critique(text="c", spans=in_order(spans))
    assert parse(render(critique, response), response) == critique


def answer(**changes: object) -> str:
    """A z as a careful critic writes it, with some values changed; None leaves a key out."""
    value: dict[str, object] = {"critique": "c", "good_spans": [], "poor_spans": [], "score": 0.5, **changes}
    return json.dumps({key: each for key, each in value.items() if each is not None})


WHOLE = answer(good_spans=["class"])


@pytest.mark.parametrize(
    ("z", "kind", "words"),
    [
        ("I can’t.", "refused", "declined"),
        ("<think>well", "truncated", "think"),
        (WHOLE[:-1], "truncated", "ends before"),
        ('{"critique": "c", "score": -', "truncated", "ends before"),
        ('{"critique": "c", "score": nul', "truncated", "ends before"),
        (WHOLE + WHOLE, "invalid", "more than one"),
        (WHOLE + "}", "invalid", "more than one"),
        ("{maybe} " + WHOLE, "invalid", "unescaped"),
        (f"[{WHOLE}", "invalid", "list"),
        (f"[{WHOLE}, ", "invalid", "list"),
        (f"{WHOLE}, ...]", "invalid", "list"),
        ("{'critique': 'a '' b', 'good_spans': [], 'poor_spans': []}", "invalid", "not JSON"),
        ("{'critique': 'say \\'no\\'', 'good_spans': [], 'poor_spans': []}", "invalid", "clear meaning"),
        ("{'critique': 'a\\/b', 'good_spans': [], 'poor_spans': []}", "invalid", "clear meaning"),
        ("{'critique': '\\U99999999', 'good_spans': [], 'poor_spans': []}", "invalid", "not a string"),
        ('{"critique": \'c\', "good_spans": [], "poor_spans": []}', "invalid", "mixed"),
        (answer(critique=None), "invalid", "needed"),
        (answer(bad_spans=[]), "invalid", "unknown key"),
        (answer(textual_feedback="d"), "invalid", "twice"),
        ('{"Good spans": ["class"], "Poor spans": []}', "invalid", "no critique"),
        ('Well put.\n{"good_spans": ["class"], "poor_spans": []}', "invalid", "needed"),
        (answer(critique=7), "invalid", "critique is not a string"),
        (answer(good_spans=[{"text": "class"}]), "invalid", "'text'"),
        (answer(good_spans=[{"class": "a", "art": "b"}]), "invalid", "neither"),
        (answer(good_spans=[{"class": 1}]), "invalid", "reason"),
        (answer(good_spans=[{"quote": 5}]), "invalid", "quote is not"),
        (answer(good_spans=[{"quote": "class", "part": 1}]), "invalid", "part"),
        (answer(score="one"), "invalid", "score"),
        (answer().replace("0.5", "NaN"), "invalid", "unescaped"),
        (answer().replace("0.5", "1e999"), "invalid", "score"),
        (answer().replace("0.5", "1" * 5000), "invalid", "not JSON"),
        (answer().replace("0.5", "1 2"), "invalid", "not JSON"),
        (answer().replace("0.5", "True"), "invalid", "not JSON"),
        (answer().replace("0.5", "[" * 1000), "invalid", "deeply"),
        (answer().replace('"good_spans": [', '"good_spans": [,'), "invalid", "not JSON"),
        (answer().replace('"c"', '"\\ud83d"'), "invalid", "surrogate"),
        (answer().replace('"c"', '"\\q"'), "invalid", "not JSON"),
        (answer(good_spans=["fine", "good"]), "invalid", "one phrase of the response"),
        ('{"wrong_code": [], "improvement_code": [3], "code_feedback": ""}', "invalid", "neither"),
    ],
)
def test_a_failure_says_why(z: str, kind: str, words: str) -> None:
    judgement = parse(z, RESPONSE)
    assert isinstance(judgement, Failure), judgement
    assert (judgement.kind, judgement.raw) == (kind, z)
    assert words in judgement.message


def test_a_failure_can_always_be_stored() -> None:
    judgement = parse("no object \ud83d", RESPONSE)
    assert isinstance(judgement, Failure) and judgement.raw == "no object ?"
    assert Failure.model_validate_json(judgement.model_dump_json()) == judgement


@given(judged(), st.data())
def test_the_quick_look_sees_what_the_close_one_sees(case: tuple[Critique, str], data: st.DataObject) -> None:
    critique, response = case
    z = render(critique, response)
    place = data.draw(st.integers(0, len(z)))
    z = z[:place] + data.draw(st.sampled_from(("", *SIGNS))) + z[place + data.draw(st.integers(0, 2)) :]
    first = z.find("{")
    if first >= 0:
        assert readable(read_object, z, response) == readable(_read_closely, z, first, response)


def readable(read: Callable[..., Found], *arguments: Any) -> dict[str, Any] | None:
    """What is read, or None where that is refused."""
    try:
        return read(*arguments).value
    except UnreadableError:
        return None


@pytest.mark.parametrize(
    "z",
    [
        '{"critique": "c", "good_spans": ["a", "b"], "poor_spans": []}',
        '{"critique": NaN, "good_spans": [], "poor_spans": []}',
        '{"critique": "\\ud800", "good_spans": [], "poor_spans": []}',
        '{"critique": "c", "critique": "d", "good_spans": [], "poor_spans": []}',
        '{"critique": "c", "good_spans": [[[[[[[[["a"]]]]]]]]], "poor_spans": []}',
    ],
)
def test_what_needs_a_closer_look_gets_one(z: str) -> None:
    assert _strict_object(z, 0, 'x a", "b x') is None
    assert isinstance(parse(z, 'x a", "b x'), Failure)


SCORES = ("0.5", "-1", " 0.5 ", "+1", ".5", "1.0", "5e-1", "0")
NO_SCORES = ("4/5", "80%", "high", "", "5", "nan", "inf", "1_0", "0,5", "0.5 of 1", "1/1", "٠", "1" * 30)


@pytest.mark.parametrize("score", [*SCORES, *NO_SCORES])
def test_a_score_in_quotes_is_read_where_it_is_a_number_of_its_scale(score: str) -> None:
    z = json.dumps({"critique": "c", "good_spans": [], "poor_spans": [], "score": score})
    read = parse(z, "response")
    if score in SCORES:
        assert isinstance(read, Critique) and read.score == float(score)
    else:
        assert isinstance(read, Failure) and read.kind == "invalid" and "the score is" in read.message
