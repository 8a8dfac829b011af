"""Critiques that are made in Python: of quotes, of another program's JSON, and of what does not
fit."""

from __future__ import annotations

from typing import Any

import pytest

import text2grad as t2g
from text2grad.errors import InvalidFields, UserError
from text2grad.feedback import Critique, QuoteCounts, Span, Transcript
from text2grad.wire import parse

RESPONSE = "Ann writes it next week, and Ann is late."


def places(critique: Critique) -> list[tuple[int, int, int, str]]:
    return [(span.start, span.end, span.label, span.text) for span in critique.spans]


def test_quotes_become_spans() -> None:
    critique = Critique.from_quotes(RESPONSE, good=["writes it"], poor=["next week"], score=-0.5, text="No.")
    assert places(critique) == [(4, 13, 1, "writes it"), (14, 23, -1, "next week")]
    assert (critique.text, critique.score, critique.quotes) == ("No.", -0.5, QuoteCounts())


def test_quotes_that_give_no_span_are_counted_as_those_of_a_critic_that_writes() -> None:
    quotes = {"good": ["Ann", "on Friday"], "poor": ["late", "rites"]}
    critique = Critique.from_quotes(RESPONSE, **quotes, text="So.")
    assert critique.quotes == QuoteCounts(unmatched=2, ambiguous=1) and critique.lost == ("on Friday", "rites")
    z = '{"critique": "So.", "good_spans": ["Ann", "on Friday"], "poor_spans": ["late", "rites"]}'
    assert parse(z, RESPONSE) == critique
    twice = Critique.from_quotes(RESPONSE, good=["Ann", "Ann"])
    assert [span.start for span in twice.spans] == [0, 29]
    assert Critique.from_quotes(RESPONSE, poor=["LATE"], tolerance="any_case").quotes.normalised == 1


def test_what_others_said_cannot_be_quoted() -> None:
    talk = Transcript.of_messages(
        [t2g.Message(role="tool", content="Due on Friday."), t2g.Message(role="assistant", content="So be it.")]
    )
    critique = Critique.from_quotes(talk, good=["So be it", "on Friday"])
    assert places(critique) == [(0, 8, 1, "So be it")] and critique.quotes.foreign == 1


def test_a_string_in_place_of_quotes_is_refused() -> None:
    with pytest.raises(UserError, match="lists of quotes"):
        Critique.from_quotes(RESPONSE, good="Ann")


THEIRS: dict[str, Any] = {
    "issues": [
        {"from": 14, "to": 23, "type": "error", "text": "next week", "why": "Friday"},
        {"from": 0, "to": 3, "type": "fine"},
    ],
    "grade": -1,
    "summary": "Late.",
}
NAMES: dict[str, Any] = {"spans": "issues", "start": "from", "end": "to", "kind": "type", "reason": "why"}
NAMES |= {"score": "grade", "text": "summary", "label": {"error": -1, "fine": 1}, "quote": "text"}


def test_another_programs_json_is_read_by_its_own_names() -> None:
    critique = Critique.from_dict(THEIRS, RESPONSE, **NAMES)
    assert places(critique) == [(14, 23, -1, "next week"), (0, 3, 1, "Ann")]
    assert (critique.text, critique.score, critique.spans[0].reason) == ("Late.", -1, "Friday")
    ours = {"spans": [{"start": 0, "end": 3, "label": 1}], "score": None}
    assert places(Critique.from_dict(ours, RESPONSE)) == [(0, 3, 1, "Ann")]
    assert Critique.from_dict({}, RESPONSE) == Critique(text="")


BAD: list[dict[str, Any]] = [
    *({"from": start, "to": end} for start, end in ((5, 5), (-1, 3), (2, 400), (2.0, 3), ("2", 3), (True, 3))),
    {"type": "praise"},
    {"type": ["error"]},
    {"text": "next month"},
]


@pytest.mark.parametrize("change", BAD)
def test_a_span_that_does_not_fit_is_one_line_that_names_it(change: dict[str, Any]) -> None:
    items = [THEIRS["issues"][1], {**THEIRS["issues"][0], **change}]
    with pytest.raises(UserError, match=r"^issues\[1\]: [^\n]*$"):
        Critique.from_dict({**THEIRS, "issues": items}, RESPONSE, **NAMES)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(({"issues": [item]}, r"issues\[0\]") for item in (3, {})),
        ({"issues": {}}, "issues"),
        *(({"grade": grade}, "score") for grade in (2, "bad")),
        ({"summary": 3}, "text"),
    ],
)
def test_json_of_another_shape_is_one_line(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=rf"^{named}[^\n]*$"):
        Critique.from_dict({**THEIRS, **change}, RESPONSE, **NAMES)


WRONG: list[tuple[type, dict[str, Any], str]] = [
    (Span, {"start": 5, "end": 2, "label": 1, "text": "x"}, "empty span"),
    (Span, {"start": 1, "end": 2, "label": 3, "text": "x"}, "label"),
    (Critique, {"text": "", "score": 3}, "score"),
    (t2g.CreditSettings, {"scheme": "x"}, "scheme"),
    (t2g.CreditSettings, {"weights": 1}, "weights"),
    (t2g.Example, {"id": "1", "prompt": []}, "prompt"),
]


@pytest.mark.parametrize(("made", "fields", "named"), WRONG)
def test_what_does_not_fit_is_one_line(made: type, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidFields, match=rf"^{made.__name__}: {named}[^\n]*$"):
        made(**fields)
