"""z in the making: everything `render` writes is accepted, and every beginning of it can be closed well."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotable_responses import HOSTILE, judged
from text2grad.feedback import Critique
from text2grad.wire import occurrences, parse, render
from text2grad.wire.draft import Draft
from text2grad.wire.quotable import NUMBER, Quotable, longest_repeats
from text2grad.wire.quotes import boundaries


def begun(response: str, text: str) -> Draft | None:
    """A draft of `text`, byte by byte; None when it does not resolve."""
    draft = Draft(Quotable(response))
    return draft if all(draft.feed(bytes([byte])) for byte in text.encode()) else None


def resolves(z: str, response: str) -> bool:
    read = parse(z, response)
    clear = isinstance(read, Critique) and not read.quotes.unmatched and not read.quotes.ambiguous
    return isinstance(read, Critique) and clear and not read.lost


def z_of(good: str, poor: str = "", critique: str = "c") -> str:
    return f'{{"critique": "{critique}", "good_spans": [{good}], "poor_spans": [{poor}]}}'


@given(judged())
def test_what_is_rendered_is_accepted(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    if parse(z, response) == critique:
        draft = begun(response, z)
        assert draft is not None and draft.done and draft.closing() == b""


@given(judged(), st.data())
def test_every_beginning_can_be_closed_and_then_resolves(case: tuple[Critique, str], data: st.DataObject) -> None:
    critique, response = case
    z = render(critique, response).encode()
    cut = data.draw(st.integers(0, len(z)))
    draft = Draft(Quotable(response))
    if parse(z.decode(), response) == critique and draft.feed(z[:cut]):
        closing = draft.closing()
        assert closing is not None
        assert resolves((z[:cut] + closing).decode(), response)


@pytest.mark.parametrize("response", HOSTILE.values(), ids=list(HOSTILE))
def test_an_answer_that_has_not_begun_can_be_closed(response: str) -> None:
    closing = Draft(Quotable(response)).closing()
    assert closing == z_of("", critique="").encode()


@pytest.mark.parametrize(
    ("response", "good"),
    [
        ("a b", '"b", "b"'),  # a second mention has no second place
        ("a b", '{"quote": "b"}, "b"'),
        ("a b a", '{"quote": "a"}'),  # which one
        ("a b a", '{"quote": "a", "occurrence": 3}'),
        ("a b", '{"quote": "b", "occurrence": 2}'),
        ("start", '{"quote": "tar"}'),  # inside a word
        ("start a", '{"quote": "a", "occurrence": 2}'),
        ("tar tar", '{"quote": "a", "part": true}'),
        ('x", "y', '"x", "y"'),  # one phrase, its quotation marks unescaped?
        ('x x", "occurrence', '{"quote": "x", "occurrence": 1}'),
        ('x", "reason', '{"quote": "x", "reason": ""}'),
    ],
)
def test_what_does_not_resolve_is_refused(response: str, good: str) -> None:
    assert not resolves(z_of(good), response)
    assert begun(response, z_of(good)) is None


@pytest.mark.parametrize(
    ("response", "good"),
    [
        ("a b a", '{"quote": "a", "occurrence": 2}, {"quote": "a", "occurrence": 2}'),
        ("start", '{"quote": "tar", "part": true, "reason": "why \\"so\\""}'),
        ('x", "y', '{"quote": "x"}, "y"'),
        ('x", "reason', '{"quote": "x", "occurrence": 1, "reason": ""}'),
        ("a b", '"a", "b"'),
    ],
)
def test_what_resolves_is_accepted(response: str, good: str) -> None:
    assert resolves(z_of(good), response)
    assert begun(response, z_of(good)) is not None


@pytest.mark.parametrize("score", ["4e-00", "9.0058849e-00", "-2e-04", "1.5", "01", "1e-5"])
def test_a_number_that_is_no_verdict_is_refused(score: str) -> None:
    """Python prints exponents from e-05 on; `4e-00` is 4."""
    assert re.fullmatch(NUMBER, score) is None


@pytest.mark.parametrize("begin", ["-", "4", "4.", "4.5", "4e", "4e-", "4e-0", "4e-1", "-1.", "0."])
def test_a_number_that_is_begun_is_closed_as_a_verdict(begin: str) -> None:
    draft = begun("a cat", z_of("")[:-1] + f', "score": {begin}')
    assert draft is not None and (closing := draft.closing()) is not None
    assert re.fullmatch(NUMBER, begin + closing.decode().removesuffix("}"))


@pytest.mark.parametrize("score", [0.0, 1.0, -1.0, 0.25, 1e-5, -3.5e-12, 2e-308])
def test_a_verdict_as_python_prints_it_is_accepted(score: float) -> None:
    assert begun("a cat", z_of("")[:-1] + f', "score": {score}' + "}") is not None
    assert re.fullmatch(NUMBER, f"{score}")


def test_the_second_list_may_repeat_the_first() -> None:
    assert begun("a b", z_of('"b"', '"b"')) is not None


def test_a_draft_that_was_copied_goes_its_own_way() -> None:
    draft = begun("a b", '{"critique": "c", "good_spans": ["a"')
    assert draft is not None
    other = draft.copy()
    assert other.feed(b', "b"') and draft.feed(b"]")
    assert (draft.in_list, other.in_list) == (False, True)


@given(st.text(alphabet="aé _.🙂\u0301", max_size=12))
def test_boundaries_are_where_whole_words_begin_and_end(response: str) -> None:
    edges = boundaries(response)
    for start in range(len(response)):
        for end in range(start + 1, len(response) + 1):
            whole = start in occurrences(response[start:end], response)
            assert whole == (start in edges and end in edges)


@given(st.lists(st.sampled_from("abc"), max_size=24))
def test_longest_repeats_counted_by_hand(words: list[str]) -> None:
    def repeat(i: int) -> int:
        lengths = range(len(words) - i, 0, -1)
        others = [j for j in range(len(words)) if j != i]
        return next((n for n in lengths if any(words[i : i + n] == words[j : j + n] for j in others)), 0)

    assert longest_repeats(words).tolist() == [repeat(i) for i in range(len(words))]


@pytest.mark.parametrize("response", [text for text in HOSTILE.values() if text])
def test_the_bytes_of_a_response_are_those_of_json(response: str) -> None:
    quotable = Quotable(response)
    if quotable:
        assert quotable.body == json.dumps(response, ensure_ascii=False)[1:-1].encode()
        assert quotable.char_starts[-1] == len(quotable.body) == quotable.word_starts[-1]
    else:
        assert "\ud800" in response or not response.strip("\n")
