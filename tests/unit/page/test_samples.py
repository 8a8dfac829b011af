"""The views of samples and records: the token strip, the conversation, lost quotes."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from synthetic_run import sample as synthetic
from text2grad.feedback import Span
from text2grad.page.render import stripped, token_label, visible
from text2grad.page.runs import Sample
from text2grad.page.samples import clauses, list_entry, pieces, sample_view


def span(response: str, start: int, end: int, label: int = 1) -> Span:
    return Span(start=start, end=end, label=label, text=response[start:end])  # type: ignore[arg-type]


def sound(**changed: Any) -> Sample:
    """A sample without fault: `a`, ` bad`, ` word`, end; the second token is poor."""
    row: dict[str, Any] = {
        "step": 1,
        "response": "a bad word",
        "spans": [span("a bad word", 2, 5, -1)],
        "tokens": ["a", " bad", " word", "</s>"],
        "starts": [0, 1, 5, 10],
        "ends": [1, 5, 10, 10],
        "delta": [0.0, -1.0, 0.0, 0.5],
        "kl": [0.1, 0.1, 0.0, 0.2],
        "reward": [-0.01, -1.01, 0.0, 0.48],
        "value": [0.1, 0.2, 0.3, 0.4],
        "advantage": [-0.1, -0.9, 0.1, 0.2],
    }
    return Sample.model_validate(row | changed)


def test_a_view_has_one_cell_per_token_and_what_samples_are_filtered_by() -> None:
    row = synthetic("text2grad", 10, 0, random.Random(1))
    view = sample_view(Sample.model_validate(row), "text2grad")
    names = ("delta", "kl", "reward", "value", "advantage", "logp")
    count = len(row["tokens"])
    assert {len(view["tokens"]), len(view["intervals"])} == {count}
    assert {name: len(numbers) for name, numbers in view["rows"].items()} == dict.fromkeys(names, count)
    assert view["rows"]["delta"] == row["delta"]
    entry = list_entry(sound(advantage=[0.0, 0.5, 0.0, 0.0], lost=("x",), unmatched=2), "text2grad", 3)
    assert entry["key"] == "text2grad/3" and entry["wrong"] == 1 and entry["lost_count"] == 2
    assert (entry["poor"], entry["good"], entry["length"], entry["failed"]) == (1, 0, 4, False)


def test_an_emoji_split_over_tokens_belongs_to_all_of_them() -> None:
    response = "ok 👍!"
    tokens = {"tokens": ["ok", " \ufffd", "\ufffd", "!"], "starts": [0, 2, 3, 4], "ends": [2, 4, 4, 5]}
    sample = Sample(step=0, response=response, spans=(span(response, 3, 4),), **tokens)
    [turn] = sample_view(sample, "text2grad")["talk"]
    assert turn["pieces"] == [("ok", [], [0]), (" ", [], [1]), ("👍", [0], [1, 2]), ("!", [], [3])]


def test_a_transcript_shows_the_turns_of_others_without_tokens() -> None:
    said = (("assistant", "call"), ("tool", "42"), ("assistant", "It is 42."))
    tokens = {"tokens": ["call", "It is", " 42", "."], "starts": [0, 6, 11, 14], "ends": [4, 11, 14, 15]}
    spans = (Span(start=12, end=14, label=1, text="42"),)
    response: Any = [{"role": role, "content": content} for role, content in said]
    talk = sample_view(Sample(step=0, response=response, spans=spans, **tokens), "text2grad")["talk"]
    assert [turn["role"] for turn in talk] == ["response", "tool", "response"]
    assert talk[0]["pieces"] == [("call", [], [0])]
    assert talk[1]["content"] == "42"
    assert talk[2]["pieces"] == [("It is", [], [1]), (" ", [], [2]), ("42", [0], [2]), (".", [], [3])]


def test_a_clause_of_the_critique_knows_its_spans() -> None:
    spans = (Span(start=0, end=1, label=-1, text="a", reason="too short"), span("a bad word", 2, 5, -1))
    expected = [("It is ", []), ("too short", [0]), (", and ", []), ("bad", [1]), (".", [])]
    assert clauses("It is too short, and bad.", spans) == expected
    assert clauses("", spans) == [] and clauses("Nothing of it.", ()) == [("Nothing of it.", [])]


@given(st.text(max_size=40), st.data())
def test_the_pieces_are_the_response(response: str, data: st.DataObject) -> None:
    ends = st.integers(0, len(response))
    intervals = data.draw(st.lists(st.tuples(ends, ends), max_size=6))
    spans = [span(response, a, b) for a, b in data.draw(st.lists(st.tuples(ends, ends), max_size=4)) if a < b]
    found = pieces(response, spans, intervals)
    assert "".join(text for text, _, _ in found) == visible(response)
    for index, one in enumerate(spans):
        inside = "".join(text for text, of_spans, _ in found if index in of_spans)
        assert inside == visible(one.text)


@given(st.text(st.characters(exclude_categories=())))
@example("\x1b]0; never ended\nnext line")
def test_nothing_unseen_is_left(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    for safe in (shown, stripped(text)):
        assert not set(safe) & set("\x1b\x9b\x00\r\u200b\u200e\u202a\u202e\u2066\u2069\ufeff\u2028")


def test_escapes_are_spelled_out_or_removed_whole() -> None:
    text = "a\x1b[31mred\x1b]0;title\x07 \u202eend"
    assert (visible(text), stripped(text)) == ("a␛[31mred␛]0;title␇ ⟨U+202E⟩end", "ared end")
    assert stripped("\x1b]0; never ended\nnext line") == "]0; never ended\nnext line"
    assert (token_label(" x\n\t"), token_label("")) == ("·x⏎⇥", "∅")


def test_quotes_that_were_lost_are_shown() -> None:
    """The critique blames `word`, misquoted: the token keeps a positive advantage, and a reader
    must see why."""
    view = sample_view(sound(lost=["wörd"], unmatched=2, ambiguous=1), "text2grad")
    assert view["lost"][0]["text"] == "wörd" and "not in the response" in view["lost"][0]["reason"]
    assert [each["reason"] for each in view["lost"][1:]] == [
        "more quotes that are not in the response: 1",
        "quotes that occur more than once in the response and do not say which: 1",
    ]
    assert sample_view(sound(), "text2grad")["lost"] == []
