"""Shares that a step reports, by hand."""

from __future__ import annotations

from pytest import approx

from span_cases import TEXT, UNREADABLE, critique, word_span, words_aligned
from text2grad.feedback import Example, Message
from text2grad.policy.generate import Sample
from text2grad.train.account import label_shares, same_answers
from text2grad.train.rollout import Answered


def test_shares_of_good_and_poor_tokens_leave_failures_out() -> None:
    """Ten words and three; three good and one poor. What failed has six words more."""
    said = [critique(word_span(1, 1, 3), word_span(-1, 9, 9)), critique(), UNREADABLE]
    places = [words_aligned(TEXT), words_aligned("one two three"), words_aligned("a b c d e f")]
    found = label_shares(Answered([], [], places, list(said), []))
    assert found == {"good_tokens": approx(3 / 13), "poor_tokens": approx(1 / 13)}
    nothing = label_shares(Answered([], [], places[2:], [UNREADABLE], []))
    assert nothing == {"good_tokens": 0.0, "poor_tokens": 0.0}


def test_prompts_whose_answers_are_all_the_same() -> None:
    """Two answers to each of two prompts, of which one has the same twice; and one answer to a third."""
    examples = [Example(id=id, prompt=(Message(role="user", content=id),)) for id in ("a", "b", "a", "b", "c")]
    answers = [[1, 2], [1, 2], [1, 2], [3], [1, 2]]
    samples = [Sample(ids, False) for ids in answers]
    assert same_answers(Answered(examples, samples, [], [], [])) == {"same_answers": 0.5}
    assert same_answers(Answered(examples[3:], samples[3:], [], [], [])) == {}
