"""Which tokens a span pays, against a walk over every character of every token, and literal numbers
by hand.

The paper (section 3.3) has delta = +-1 for each token of a span, 0 outside, and takes the span's
characters as they stand: white space in it is of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from text2grad.align import Aligned
from text2grad.feedback import Critique, Span

credit = import_module("text2grad.align.credit")  # the package has a function of this name

SPACES = " \n\t\u3000"
FUNCTION = "def f(x):\n    y = x\n    return y\n"
QUICK = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""Every planted fault makes these fail: nobody waits for the smallest example of each."""
PIECES = ["def", " f", "(x", "):\n", "   ", " y", " =", " x", "\n", "   ", " return", " y", "\n", ""]
"""As byte-level tokenizers cut it: the last space of an indentation goes with the word. The end is
empty."""


def aligned(pieces: list[str]) -> Aligned:
    ends = np.cumsum([len(piece) for piece in pieces])
    return Aligned.of("".join(pieces), ends - [len(piece) for piece in pieces], ends)


def span(text: str, start: int, end: int, label: Any = -1) -> Span:
    return Span(start=start, end=end, label=label, text=text[start:end])


def quoted(text: str, quote: str, label: Any = -1) -> Span:
    start = text.index(quote)
    return span(text, start, start + len(quote), label)


# --- the oracle: O(tokens x spans x characters)


def marked(text: str, each: Span) -> set[int]:
    """The characters of a span: without white space at its edges, unless it is white space
    alone."""
    places = list(range(each.start, each.end))
    visible = [place for place in places if text[place] not in SPACES]
    return set(range(visible[0], visible[-1] + 1)) if visible else set(places)


def belongs(text: str, start: int, end: int, each: Span) -> bool:
    return bool(set(range(start, end)) & marked(text, each))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Aligned, list[Span]]:
    """A text cut anywhere, tokens without text among them, and spans at any place."""
    pieces = draw(st.lists(st.text(alphabet="ab🙂中" + SPACES, max_size=4), min_size=1, max_size=10))
    text = "".join(pieces)
    edges = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)), st.sampled_from((1, -1)))
    drawn = draw(st.lists(edges, max_size=4))
    return aligned(pieces), [span(text, min(a, b), max(a, b), label) for a, b, label in drawn if a != b]


@QUICK
@given(cases())
@example((aligned(["a", "\n", " ", "b"]), [span("a\n b", 0, 4)]))
@example((aligned(["a", "  ", " b"]), [span("a   b", 1, 4)]))
@example((aligned(["a", "  ", "b"]), [span("a  b", 0, 3)]))
@example((aligned(["a", "  ", "b"]), [span("a  b", 0, 4)]))
@example((aligned(["a", "  ", "b"]), [span("a  b", 0, 2)]))
@example((aligned(["a", "  ", "b"]), [span("a  b", 1, 2)]))
def check_members(case: tuple[Aligned, list[Span]]) -> None:
    place, spans = case
    found = credit.token_labels(spans, place)
    assert credit.token_labels(spans[::-1], place).tolist() == found.tolist()
    tokens = zip(place.starts.tolist(), place.ends.tolist(), strict=True)
    signs = [{each.label for each in spans if belongs(place.text, *t, each)} for t in tokens]
    assert found.tolist() == [sum(each) for each in signs]


@QUICK
@given(cases())
def check_cover(case: tuple[Aligned, list[Span]]) -> None:
    """Every labelled character is in a token that is paid, and every paid token has a labelled
    character."""
    place, spans = case
    poor = [each.model_copy(update={"label": -1}) for each in spans]
    paid = credit.token_labels(poor, place) != 0
    wanted = set[int]().union(*(marked(place.text, each) for each in poor))
    tokens = [set(range(*edges)) for edges in zip(place.starts.tolist(), place.ends.tolist(), strict=True)]
    written = [each for each, here in zip(tokens, paid, strict=True) if here]
    assert wanted <= set[int]().union(*written)
    assert all(each & wanted for each in written)


def test_members_are_those_of_the_walk() -> None:
    check_members()


def test_every_labelled_character_is_covered_and_none_outside() -> None:
    check_cover()


# --- by hand


def paid(spans: list[Span], **settings: Any) -> list[float]:
    place = aligned(PIECES)
    critique = Critique(text="", spans=tuple(spans), score=None)
    found = credit.credit(critique, place, credit.CreditSettings(outcome_weight=0.0, **settings))
    return [round(value, 3) for value in found.delta.tolist()]


BODY = "y = x\n    return y"


def test_a_span_over_two_lines_pays_its_line_break_and_indentation() -> None:
    assert paid([quoted(FUNCTION, BODY)]) == [0] * 5 + [-1] * 7 + [0, 0]
    assert paid([quoted(FUNCTION, BODY)], unlabelled=1.0) == [1] * 5 + [-1] * 7 + [1, 1]


def test_white_space_at_the_edges_of_a_span_is_not_of_it() -> None:
    line = quoted(FUNCTION, "y = x")
    for before, after in ((0, 1), (1, 0), (4, 0), (5, 1), (0, 5), (5, 5)):
        wider = span(FUNCTION, line.start - before, line.end + after)
        assert wider.text.strip() == "y = x"
        assert paid([wider]) == paid([line]) == [0] * 5 + [-1] * 3 + [0] * 6


def test_a_span_of_white_space_alone_pays_the_tokens_that_wrote_it() -> None:
    """The last space of an indentation stands in the token of the word behind it."""
    there = [0.0] * 9 + [-1, -1, 0, 0, 0]
    start = FUNCTION.index("    return")
    assert paid([span(FUNCTION, start, start + 4)]) == there
    assert paid([span(FUNCTION, start, start + 3)]) == [0] * 9 + [-1] + [0] * 4


def test_the_space_before_a_word_is_decided_by_the_word() -> None:
    place = aligned(["a", " word", " b"])
    assert credit.token_labels([quoted(place.text, "word")], place).tolist() == [0, -1, 0]
    assert credit.token_labels([quoted(place.text, "a ")], place).tolist() == [-1, 0, 0]


def test_shares_count_the_blank_tokens_of_a_span() -> None:
    seven = round(-1 / 7, 3)
    assert paid([quoted(FUNCTION, BODY)], weighting="span") == [0] * 5 + [seven] * 7 + [0, 0]


def test_good_and_poor_cancel_on_white_space_too() -> None:
    spans = [quoted(FUNCTION, BODY), quoted(FUNCTION, BODY, 1)]
    assert paid(spans, unlabelled=1.0) == [1] * 5 + [0] * 7 + [1, 1]
