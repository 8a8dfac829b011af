"""Mark-up in responses: marks, reasons and corrections; what is none stays, and what may be some is
named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.data.spans.marks import Mark
from text2grad.data.spans.markup import read_markup, write_markup

CORRECTIONS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("It is due [-next week-]{+on Friday+}.", "It is due next week.", "It is due on Friday.", ()),
    ("[-Ann-]{+Bob+}{the mail} signs", "Ann signs", "Bob signs", ()),
    ("[-Ann-]{the mail}{+Bob+} signs", "Ann signs", "Bob signs", ()),
    ("It is {+not +}due", "It is due", "It is not due", ("not",)),
    ("It is {+not+} due", "It is due", "It is not due", ("not",)),
    ("It is due {+today+}.", "It is due.", "It is due today.", ("today",)),
    ("It is due{+ today+}", "It is due", "It is due today", ("today",)),
    ("It is [-very-] late {+now+}", "It is very late", "It is late now", ("now",)),
    ("It is late[-, very-]{+.+}", "It is late, very", "It is late.", ()),
    ("x [+is+] y[--]", "x is y[--]", "", ()),
    ("[-a-]{why} and [-b-]{+c+}", "a and b", "", ()),
    ("due [-a-]{+b+}{+c+} d", "due a d", "due bc d", ("c",)),
    ("f(x){+1", "f(x){+1", "", ()),
]
MARKS: list[tuple[str, list[tuple[str, str, str]]]] = [
    ("due [-next week-]{use {x} here}", [("next week", "-1", "use {x} here")]),
    ("due [-next week-]{a {b {c}} d} {e}", [("next week", "-1", "a {b {c}} d")]),
    ("due [-next week-]{+Friday+}", [("next week", "-1", "should be: Friday")]),
    ("<bad>next week</bad> or <GOOD>today</GOOD>{so}", [("next week", "-1", ""), ("today", "+1", "so")]),
    ("<poor>two\nlines</poor>", [("two\nlines", "-1", "")]),
    ("<bad>never closed", []),
    ("x = a[-b[0]-]{why}", [("b[0]", "-1", "why")]),
    ("[-a-][+b+]", [("a", "-1", ""), ("b", "+1", "")]),
    ("[--] [-", []),
    ("a[-1] x[-n:] re.sub('[+-]', s) {+} if (a) {++i}", []),
]


def test_corrections_marks_and_reasons() -> None:
    for text, plain, corrected, omissions in CORRECTIONS:
        found = read_markup(text)
        assert (found.text, found.corrected, found.omissions) == (plain, corrected, omissions)
        assert all(found.text[mark.start : mark.end] == mark.text for mark in found.marks)
    for text, marks in MARKS:
        assert [(mark.text, mark.label, mark.reason) for mark in read_markup(text).marks] == marks


def test_mark_up_that_is_wrong_and_what_looks_like_some() -> None:
    """The first is refused; the other stays, and is named."""
    inside = "a mark is inside another"
    for text, problem in (("[-a-]{why", "not closed"), ("[-a [+b+] c-]", inside), ("<bad>a [-b-]</bad>", inside)):
        with pytest.raises(ValueError, match=problem):
            read_markup(text)
    critic = ("{--next week--}", "{++on Friday++}", "{~~a~>b~~}", "{==a==}{>>why<<}")
    tags = ("<del>a</del>", "<ins>a</ins>", "<error>a</error>", '<bad reason="x">a</bad>')
    for text in (*critic, *tags, "[-next week.", "[+next"):
        found = read_markup(f"It is {text}")
        assert found.text == f"It is {text}" and not found.marks and len(found.doubts) == 1


@given(st.text(alphabet="ab [](){}+-\n<>🙂", max_size=30))
def test_text_and_marks_belong_together_whatever_is_written(text: str) -> None:
    try:
        found = read_markup(text)
    except ValueError:
        return
    assert all(found.text[mark.start : mark.end] == mark.text and mark.text for mark in found.marks)
    if not (found.marks or found.omissions):
        assert found.text == text


@given(
    st.lists(
        st.tuples(st.sampled_from(["word", "two words", "x[0]"]), st.sampled_from(["", "+1", "-1"])), max_size=8
    )
)
def test_what_is_marked_up_is_read_again(pieces: list[tuple[str, str]]) -> None:
    text = ", ".join(word for word, _ in pieces)
    marks, place = [], 0
    for word, label in pieces:
        marks += [Mark(place, place + len(word), label, word, "why {so}")] if label else []
        place += len(word) + 2
    found = read_markup(write_markup(text, marks))
    assert (found.text, list(found.marks)) == (text, marks)
