"""Shares that a step reports, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest import approx

from span_cases import TEXT, UNREADABLE, critique, word_span, words_aligned
from text2grad.align import Aligned, CreditSettings
from text2grad.feedback import Example, Judgement, Message, Source
from text2grad.policy.generate import Sample
from text2grad.train.report import label_shares, named_spans, repeats, same_answers, unmatched_share
from text2grad.train.rollout import Responses, judge


def judged(said: Sequence[Judgement], places: Sequence[Aligned]) -> Responses:
    """Answers without prompts: those at `places`, of which a critic says `said`."""

    class Says:
        source = Source(kind="program")

        def critique(self, *_: object) -> list[Judgement]:
            return list(said)

    class Table:
        align = staticmethod(lambda ids: places[ids[0]])

    examples = [Example(id=str(n), prompt=(Message(role="user", content="-"),)) for n in range(len(said))]
    samples = [Sample([n], False) for n in range(len(said))]
    table: Any = Table()
    return judge(examples, samples, table, Says(), CreditSettings())


def test_shares_of_good_and_poor_tokens_leave_failures_out() -> None:
    """Ten words and three; three good and one poor. What failed has six words more."""
    said = [critique(word_span(1, 1, 3), word_span(-1, 9, 9)), critique(), UNREADABLE]
    places = [words_aligned(TEXT), words_aligned("one two three"), words_aligned("a b c d e f")]
    found = label_shares(judged(said, places))
    assert found == {"good_tokens": approx(3 / 13), "poor_tokens": approx(1 / 13)}
    nothing = label_shares(judged([UNREADABLE], places[2:]))
    assert nothing == {"good_tokens": 0.0, "poor_tokens": 0.0}


def test_quotes_that_pay_nothing_are_no_part_of_the_share_that_is_lost() -> None:
    said = [critique(word_span(1, 1, 3), word_span(0, 5, 6), unmatched=1), critique(unmatched=1, ambiguous=1)]
    assert unmatched_share(said) == 2 / 4
    assert unmatched_share([critique(word_span(0, 5, 6))]) == 0


def test_spans_that_the_text_of_a_critique_repeats() -> None:
    """Three words in a row name a longer span; a shorter one has to be there in full."""
    prose = "The mail says Friday, so NEXT week is wrong."
    assert repeats(prose, "next week") and repeats(prose, "the mail says that it is due")
    assert not repeats(prose, "next month") and not repeats(prose, "the mail is late") and not repeats("", "next")
    assert repeats("`x - 1` is wrong", "return x - 1")
    spans = (word_span(1, 0, 1), word_span(-1, 5, 6))
    text = f"{spans[0].text} fits."
    said = [critique(*spans).model_copy(update={"text": text}), critique(spans[0]).model_copy(update={"text": "-"})]
    assert named_spans(said) == approx(1 / 3) and named_spans([critique()]) == 0


def test_prompts_whose_answers_are_all_the_same() -> None:
    """Two answers to each of two prompts, of which one has the same twice; and one answer to a
    third."""
    examples = [Example(id=id, prompt=(Message(role="user", content=id),)) for id in ("a", "b", "a", "b", "c")]
    answers = [[1, 2], [1, 2], [1, 2], [3], [1, 2]]
    samples = [Sample(ids, False) for ids in answers]
    assert same_answers(Responses(examples, samples, [], [], [], [])) == {"same_answers": 0.5}
    assert same_answers(Responses(examples[3:], samples[3:], [], [], [], [])) == {}
