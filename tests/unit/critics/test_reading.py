"""What `critics.prompted.Reader` makes of answers that are broken: a repair never changes what they
say."""

from __future__ import annotations

import pytest

from text2grad.chat import Completion
from text2grad.critics.prompted import Reader
from text2grad.feedback import Critique, Failure

HEAD = '{"critique": "Fine.", "good_spans": ["answer"], "poor_spans": [], "score": -1'
TWICE = [
    HEAD + ', "score": 1}',
    HEAD + ", score: 1}",
    HEAD + ', "score" 1}',
    HEAD + ", 'score': 1}",
    HEAD + ',}, "score": 1}',
    HEAD + '} {"score": 1}',
    HEAD + "\n score: 1}",
    HEAD + '; "score": 1}',
    HEAD + ", “score”: 1}",
    HEAD + ", (score): 1}",
    HEAD + ", Score: 1}",
    HEAD + r", s\u0063ore: 1}",
    HEAD + " /* c */ , /* d */ score /* e */ : 1}",
    HEAD + ", // d\n score: 1}",
    HEAD + ", score 1}",
    HEAD + ", score = 1}",
    '{critique: "Fine.", score: -1, good_spans: ["answer"], poor_spans: [], score: 1}',
    '{critique: "Fine.", good_spans: [{quote: "answer", reason: "a", quote: "an"}], poor_spans: []}',
    '{critique: "Fine.", good_spans: ["nothing"], poor_spans: [], good_spans: ["answer"]}',
    "{'critique': 'Fine.', 'good_spans': ['answer'], 'poor_spans': [], 'score': -1, 'score': 1}",
]


def test_a_key_given_twice_is_invalid_repaired_or_not() -> None:
    readings = {
        (text, annotator): Reader(annotator).read(Completion(text=text), "an answer.")
        for text in TWICE
        for annotator in (True, False)
    }
    wrong = [case for case, read in readings.items() if not isinstance(read, Failure) or read.kind != "invalid"]
    assert not wrong


REPAIRABLE = "{critique: 'Late.', good_spans: [], poor_spans: ['answer'], score: %s}"
CUT = [
    """{critique: "c", "good_spans": [], "poor_spans": [{"quote": "answer", "reason": "x"}, "e f""",
    "{critique: 'a",
]


@pytest.mark.parametrize("score", ["−1", "–0.5", "－1", "1 / 10", "1 of 10", "1%", "1 star", "0.5 out of 5"])
def test_a_score_that_a_repair_would_misread_is_invalid(score: str) -> None:
    read = Reader(annotator=True).read(Completion(text=REPAIRABLE % score), "an answer.")
    assert isinstance(read, Failure) and read.kind == "invalid"


def test_a_repair_keeps_a_number_and_refuses_half_an_answer() -> None:
    reader = Reader(annotator=True)
    kept, *cut = (reader.read(Completion(text=text), "an answer.") for text in (REPAIRABLE % "-1 // bad", *CUT))
    assert isinstance(kept, Critique) and kept.score == -1
    assert all(isinstance(read, Failure) for read in cut)


NESTED = ["{" * 20_000, '{a:"' * 5000, "{'" * 12_000, "{a," * 5000, "('" * 5000, '{"a": ["a","b"' * 2000]


def test_what_a_repair_would_take_ages_for_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("json-repair was tried")

    monkeypatch.setattr("json_repair.loads", never)
    for text in NESTED:
        for answer in (text + "}", "{x: " + text + "}" * 20_000, '{critique: "' + "x" * 20_000 + '"}'):
            read = Reader(annotator=True).read(Completion(text=answer), "an answer.")
            assert isinstance(read, Failure), answer[:40]


def test_an_answer_of_a_million_characters_is_not_read() -> None:
    read = Reader(annotator=True).read(Completion(text=f"{HEAD}{' ' * 1_000_000}}}"), "an answer.")
    assert isinstance(read, Failure) and "characters" in read.message and len(read.raw) < 10_000
