"""The grammar of grounded answers, and what is dropped from one that the grammar alone could not
prevent."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from quotable_responses import HOSTILE, judged
from text2grad.feedback import Critique
from text2grad.feedback.quotes import occurrences
from text2grad.unicode_words import boundaries
from text2grad.wire import parse, render
from text2grad.wire.quotable import NUMBER, QuotableText, drop_unresolved


@given(judged())
def test_what_resolves_is_kept_to_the_letter(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    if parse(z, response) == critique:
        assert drop_unresolved(z, response) == z


UNRESOLVED = [
    ("a b", '"b", "b"', 1),  # a second mention has no second place
    ("a b", '{"quote": "b"}, "b"', 1),
    ("a b a", '"b", {"quote": "a"}', 1),  # which one
    ("a b a", '{"quote": "a", "occurrence": 3}', 0),
    ("a b a", '{"quote": "a", "occurrence": 2}, {"quote": "a", "occurrence": 2}', 1),
    ("tar tar", '{"quote": "a", "part": true}', 0),
    ('x", "y', '"x", "y"', 2),  # one phrase, its quotation marks unescaped?
    ('x x", "occurrence', '{"quote": "x", "occurrence": 1}', 1),
    ('x", "reason', '{"quote": "x", "reason": ""}', 1),
]


def test_what_does_not_resolve_is_dropped() -> None:
    for response, good, left in UNRESOLVED:
        z = f'{{"critique": "c", "good_spans": [{good}], "poor_spans": []}}'
        read = parse(drop_unresolved(z, response), response)
        assert isinstance(read, Critique) and not read.quotes.unmatched and not read.quotes.ambiguous
        assert len(read.spans) == left, good


def test_a_number_is_a_verdict_as_python_prints_it() -> None:
    """Python prints exponents from e-05 on; `4e-00` is 4."""
    for text in ("4e-00", "9.0058849e-00", "-2e-04", "1.5", "01", "1e-5"):
        assert re.fullmatch(NUMBER, text) is None, text
    for score in (0.0, 1.0, -1.0, 0.25, 1e-5, -3.5e-12, 2e-308):
        assert re.fullmatch(NUMBER, f"{score}"), score


def test_a_word_that_was_begun_is_finished_by_the_fewest_bytes() -> None:
    quotable = QuotableText('say "catalogue", a cat said, catch')
    ends = {b"cata": b"logue", b"a catc": b"", b"a ca": b"t", b"x": b""}
    assert {begun: quotable.complete_word(begun) for begun in ends} == ends
    assert QuotableText("").complete_word(b"") == b""
    assert all(word in QuotableText(HOSTILE["scripts"]).words for word in ("naïve".encode(), "日".encode()))


@given(st.text(alphabet="aé _.🙂\u0301", max_size=12))
def test_boundaries_are_where_whole_words_begin_and_end(response: str) -> None:
    edges = boundaries(response)
    for start in range(len(response)):
        for end in range(start + 1, len(response) + 1):
            whole = start in occurrences(response[start:end], response)
            assert whole == (start in edges and end in edges)
