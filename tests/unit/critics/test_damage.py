"""Answers spoiled on purpose: every record quotes itself, is poor as a whole or in a part, and is
no answer."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from text2grad import wire
from text2grad.critics.damage import CORRUPTIONS, corrupt_records, repeat_phrase, shuffle_letters, shuffle_words
from text2grad.feedback import Critique, Feedback, Message, Source

ANSWER = "Dear Ms Roth,\n\nthe parcel left on Monday and will reach you by Thursday.\nKind regards"
OTHERS = ("We open at nine on weekdays, and at ten on Saturday.", "Your refund of 30 euros is on its way to you.")


def records() -> list[Feedback]:
    return [
        Feedback(
            id=f"m{i}",
            prompt=(Message(role="user", content=f"mail {i}"),),
            response=text,
            critique="fine",
            source=Source(kind="human"),
            meta={"token_ids": [1, 2, 3]},
        )
        for i, text in enumerate((ANSWER, *OTHERS))
    ]


def rng() -> random.Random:
    return random.Random(3)


def test_shuffling_keeps_the_words_and_degeneration_the_letters() -> None:
    assert Counter(shuffle_words(ANSWER, rng()).response.split()) == Counter(ANSWER.split())
    assert shuffle_words(ANSWER, rng()).response.split() != ANSWER.split()
    garbled = shuffle_letters(ANSWER, rng()).response
    assert sorted(garbled.replace(" ", "")) == sorted("".join(ANSWER.split()))
    assert not set(garbled.split()) & set(ANSWER.split())


def test_a_repetition_marks_all_that_is_repeated() -> None:
    found = repeat_phrase(ANSWER, rng())
    head, run = found.response[: found.start], found.response[found.start :]
    assert ANSWER.startswith(head) and found.end == len(found.response)
    words = run.split()
    assert len(words) == 24 and words[:3] * 8 == words


def test_every_kind_in_its_turn_with_a_critique_that_can_be_written() -> None:
    made = corrupt_records(records(), 12, 1)
    kinds = Counter(str(record.meta["damage"]) for record in made)
    assert set(kinds) == set(CORRUPTIONS) and max(kinds.values()) == 4
    for record in made:
        said = record.judgement()
        assert isinstance(said, Critique) and said.score == -1
        assert [span.label for span in said.spans] == [-1]
        found = wire.parse(wire.render(said, record.response), record.response)
        assert isinstance(found, Critique) and found.spans == said.spans
        assert "token_ids" not in record.meta


def test_the_same_seed_gives_the_same_and_another_seed_another() -> None:
    assert (
        corrupt_records(records(), 9, seed=1)
        == corrupt_records(records(), 9, seed=1)
        != corrupt_records(records(), 9, seed=2)
    )


@pytest.mark.parametrize("text", ["", "too short"])
def test_what_cannot_be_spoiled_is_left_out(text: str) -> None:
    short = [record.model_copy(update={"response": text}) for record in records()]
    assert corrupt_records(short, 9, seed=1) == []
    assert len(corrupt_records([*short, *records()], 9, seed=1)) == 9
