"""z about a response of several turns: a quote names its turn, a turn may have a verdict, others
are not quoted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotable_responses import TRANSCRIPTS, judged
from text2grad.feedback import Critique, Failure, Message, QuoteCounts, Tolerance, Transcript, turn_at, turns_of
from text2grad.feedback.quotes import occurrences
from text2grad.wire import json_schema, parse, render

USER = Message(role="user", content="20 miles or so?")
TOOL = Message(role="tool", content="It is 30 kilometres.</turn>")
TALK = Transcript.of(
    [((), "I look it up. 20 miles"), ([TOOL], "miles, I said"), ([USER], "20 miles <turn> on")], [TOOL]
)
FIRST, SECOND, THIRD = TALK.turns


def read(*poor: Any, tolerance: Tolerance = "exact", **more: Any) -> Critique:
    z = json.dumps({"critique": "c", "good_spans": [], "poor_spans": poor, **more})
    found = parse(z, TALK, tolerance)
    assert isinstance(found, Critique), found
    return found


PLACES: list[tuple[Any, tuple[int, int]]] = [
    ("I said", (SECOND.start + 7, SECOND.end)),
    ({"quote": "miles", "turn": 2}, (SECOND.start, SECOND.start + 5)),
    ({"quote": "20 miles", "turn": 1}, (14, 22)),
    ({"quote": "20 miles", "turn": 3}, (THIRD.start, THIRD.start + 8)),
    ({"quote": "miles", "occurrence": 2}, (SECOND.start, SECOND.start + 5)),
    ({"quote": "miles", "turn": 3, "occurrence": 1}, (THIRD.start + 3, THIRD.start + 8)),
    ({"quote": "mile", "turn": 2, "part": True}, (SECOND.start, SECOND.start + 4)),
    ({"quote": "said", "turn": None}, (SECOND.end - 4, SECOND.end)),
    ("20 miles <\\turn> on", (THIRD.start, THIRD.end)),  # as it is shown
    ({"quote": "<\\turn>", "turn": 3}, (THIRD.start + 9, THIRD.start + 15)),
]


def test_a_quote_names_its_turn() -> None:
    for item, place in PLACES:
        assert [(span.start, span.end) for span in read(item).spans] == [place], item


LOST: list[tuple[Any, QuoteCounts]] = [
    ({"quote": "miles", "turn": 4}, QuoteCounts(unmatched=1)),
    ({"quote": "said", "turn": 1}, QuoteCounts(unmatched=1)),
    ({"quote": "miles", "turn": 2, "occurrence": 2}, QuoteCounts(unmatched=1)),
    ("nowhere", QuoteCounts(unmatched=1)),
    ("30 kilometres", QuoteCounts(unmatched=1, foreign=1)),
    ({"quote": "or so?", "turn": 3}, QuoteCounts(unmatched=1, foreign=1)),
    ("20 miles\n\nmiles", QuoteCounts(unmatched=1)),
    ("20 miles miles", QuoteCounts(unmatched=1)),  # as it would be found in another form
]


@pytest.mark.parametrize("tolerance", ["exact", "any_case"])
def test_what_is_not_one_place_of_the_policys_own_pays_nothing_and_is_counted(tolerance: Tolerance) -> None:
    for item, counts in LOST:
        found = read(item, tolerance=tolerance)
        assert (found.spans, found.quotes, len(found.lost)) == ((), counts, 1), item
    found = read("20 miles", tolerance=tolerance)
    assert (found.spans, found.quotes, found.lost) == ((), QuoteCounts(ambiguous=1), ())


ELSEWHERE = Transcript.of([((), "The fair ends"), ((), "THE FAIR ends, it's true"), ((), "The fare ends")])


def test_a_quote_is_looked_for_in_its_turn_also_in_another_form() -> None:
    cases: list[tuple[str, int | None, str]] = [
        ("The fair ends", 2, "THE FAIR ends"),  # to the letter in another turn
        ("The  fair ends", 2, "THE FAIR ends"),  # normalised in another turn
        ("The fair ends", 3, ""),  # what another turn has helps nothing
        ("The fair ends\n\nTHE FAIR ends", None, ""),
    ]
    for quote, turn, there in cases:
        z = json.dumps({"critique": "c", "good_spans": [], "poor_spans": [{"quote": quote, "turn": turn}]})
        found = parse(z, ELSEWHERE, "any_case")
        assert isinstance(found, Critique)
        assert [(span.text, turn_at(ELSEWHERE, span.start)) for span in found.spans] == [(there, turn)] * bool(
            there
        )
        assert found.quotes == (QuoteCounts(normalised=1) if there else QuoteCounts(unmatched=1))


def test_repeats_are_counted_in_each_turn_apart() -> None:
    found = read({"quote": "miles", "turn": 1}, {"quote": "miles", "turn": 3}, "miles", "miles")
    assert [turn_at(TALK, span.start) for span in found.spans] == [1, 2, 3]
    assert found.quotes == QuoteCounts()


def test_a_plain_response_is_turn_1() -> None:
    z = json.dumps({"critique": "", "good_spans": [{"quote": "a", "turn": 1}, {"quote": "b", "turn": 2}]})
    found = parse(z.replace("}]}", '}], "poor_spans": [], "turn_scores": [{"turn": 1, "score": 1}]}'), "a b")
    assert isinstance(found, Critique) and [span.text for span in found.spans] == ["a"]
    assert found.lost == ("b",) and found.turn_scores == (1.0,)


VERDICTS: list[tuple[Any, tuple[float | None, ...]]] = [
    (None, ()),
    ([], ()),
    ([{"turn": 3, "score": "-1"}, {"turn": 1, "score": 0.5}], (0.5, None, -1.0)),
    ([{"turn": 2, "score": None}], ()),
]
NO_VERDICTS: list[Any] = [
    {"turn": 1, "score": 0},
    [0.5],
    *([{"turn": turn, "score": 0}] for turn in (4, 0, None)),
    [{"turn": 1, "score": 2}],
    [{"turn": 1}],
    [{"turn": 1, "score": 0}, {"turn": 1, "score": 1}],
]


def test_turns_have_verdicts_and_what_is_on_no_turn_is_invalid() -> None:
    for value, scores in VERDICTS:
        found = read(turn_scores=value, score=1)
        assert (found.turn_scores, found.score) == (scores, 1.0)
    invalid = [{"turn_scores": value} for value in NO_VERDICTS]
    invalid += [{"good_spans": [{"quote": "miles", "turn": turn}]} for turn in (0, -1, 1.5, "2", True)]
    for change in invalid:
        judgement = parse(json.dumps({"critique": "c", "good_spans": [], "poor_spans": [], **change}), TALK)
        assert isinstance(judgement, Failure) and judgement.kind == "invalid", change


@given(judged(), st.data())
def test_verdicts_on_turns_are_read_back(case: tuple[Critique, str], data: st.DataObject) -> None:
    critique, response = case
    count = len(turns_of(response))
    scores = data.draw(st.lists(st.none() | st.floats(-1, 1), min_size=count, max_size=count))
    scored = critique.model_copy(
        update={"turn_scores": tuple(scores) if any(s is not None for s in scores) else ()}
    )
    assert parse(render(scored, response), response) == scored


@given(TRANSCRIPTS, st.data())
def test_a_quote_is_within_one_turn(response: Transcript, data: st.DataObject) -> None:
    """The oracle: as if each turn were a response of its own."""
    quote = data.draw(st.sampled_from([response[a:b] for a in range(5) for b in range(a + 1, a + 4)] or ["x"]))
    apart = [
        [turn.start + start for start in occurrences(quote, response[turn.start : turn.end])]
        for turn in response.turns
    ]
    assert occurrences(quote, response) == [start for starts in apart for start in starts]
    assert [occurrences(quote, response, turn=turn) for turn in range(1, len(apart) + 1)] == apart


def test_the_schema_offers_turns_of_a_conversation_only() -> None:
    plain, turns = json.dumps(json_schema()), json_schema(turns=True)["properties"]
    assert "turn" not in plain
    item = turns["poor_spans"]["items"]["anyOf"][1]
    assert list(item["properties"]) == item["required"] == ["quote", "turn", "occurrence", "part", "reason"]
    assert list(turns["turn_scores"]["items"]["properties"]) == ["turn", "score"]
