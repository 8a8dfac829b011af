"""Damaged answers with the critiques they deserve, as training data for small reward models.

A reward model trained on a few critiques has only read answers worth a remark. It may praise text
that is no answer at all, and a policy in training finds such text. These records teach it that such
text is poor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from text2grad.feedback import Critique, Example, Feedback, Source, Span, Transcript, turns_of
from text2grad.unicode_words import pieces, unspaced

SOURCE = Source(kind="program", model="damage")
FEWEST_WORDS = 3
"""Of an answer that can be spoiled."""
REPEATS = 8
"""How often a phrase is repeated."""


class DamagedAnswer(NamedTuple):
    """A damaged answer, the interval that is poor, and the critique it deserves."""

    response: str
    start: int
    end: int
    critique: str


def shuffled(response: str, rng: random.Random) -> DamagedAnswer:
    """The same words in another order."""
    words = _words(response)
    rng.shuffle(words)
    return _whole(_joined(words, response), "The words are in no order and say nothing.")


def repeated(response: str, rng: random.Random) -> DamagedAnswer:
    """The beginning of the answer, then one phrase of it again and again."""
    starts = [start for start, _ in pieces(response)]
    first = rng.randrange(len(starts) - FEWEST_WORDS + 1)
    ends = [*starts, len(response)]
    phrase = response[starts[first] : ends[first + FEWEST_WORDS]].strip()
    head = response[starts[0] : starts[first]]
    text = head + _joined([phrase] * REPEATS, response)
    return DamagedAnswer(text, len(head), len(text), "It says the same again and again.")


def degenerate(response: str, rng: random.Random) -> DamagedAnswer:
    """The same letters in another order."""
    letters = [letter for letter in response if not letter.isspace()]
    rng.shuffle(letters)
    lengths = [len(word) for word in _words(response)]
    words = ["".join(letters.pop() for _ in range(length)) for length in lengths]
    return _whole(_joined(words, response), "These are no words.")


def _words(response: str) -> list[str]:
    return [response[start:end] for start, end in pieces(response)]


def _joined(words: Sequence[str], response: str) -> str:
    """Words with a space between them, unless most of the response's are of a script without
    spaces."""
    alone = sum(map(unspaced, _words(response)))
    return ("" if 2 * alone > len(_words(response)) else " ").join(words)


def _whole(text: str, critique: str) -> DamagedAnswer:
    return DamagedAnswer(text, 0, len(text), critique)


Spoil = Callable[[str, random.Random], DamagedAnswer]
DAMAGE: Mapping[str, Spoil] = {
    "shuffled": shuffled,
    "repeated": repeated,
    "degenerate": degenerate,
}


def spoiled(records: Sequence[Feedback], count: int, seed: int) -> list[Feedback]:
    """`count` records of spoiled responses with their critiques, each kind of `DAMAGE` in its turn.

    `meta.damage` names the kind. The same records and seed give the same damage. Fewer, or none,
    where responses have not `FEWEST_WORDS` words, or a kind left a response as it was. Of several
    turns one is spoiled, and what came after it is left out: that answered other words.
    """
    rng = random.Random(f"{seed}/damage")
    able = [record for record in records if _turns_able(record.response)]
    turns = cycle(DAMAGE)
    chosen = [able[i % len(able)] for i in rng.sample(range(count), count)] if able else []
    made = [_damage(record, next(turns), rng) for record in chosen]
    return [record for record in made if record is not None]


def _turns_able(response: str) -> list[int]:
    """Which turns have words enough to be spoiled."""
    words = (response[turn.start : turn.end] for turn in turns_of(response))
    return [number for number, each in enumerate(words) if len(_words(each)) >= FEWEST_WORDS]


def _in_a_turn(response: str, spoil: Spoil, rng: random.Random) -> DamagedAnswer:
    if not isinstance(response, Transcript):
        return spoil(response, rng)
    *before, last = response.turns[: rng.choice(_turns_able(response)) + 1]
    found = spoil(response[last.start : last.end], rng)
    turns = [(turn.messages, response[turn.start : turn.end]) for turn in before]
    text = Transcript.of([*turns, (last.messages, found.response)])
    return DamagedAnswer(text, last.start + found.start, last.start + found.end, found.critique)


def _damage(record: Feedback, kind: str, rng: random.Random) -> Feedback | None:
    """The record with a spoiled response, a span over what is poor in it, and the critique it
    deserves."""
    found = _in_a_turn(record.response, DAMAGE[kind], rng)
    if found.response == record.response:
        return None
    span = Span(start=found.start, end=found.end, label=-1, text=found.response[found.start : found.end])
    # Without its meta: the ids that were sampled, and what tests said, are of the whole response.
    example = Example(id=record.id, prompt=record.prompt)
    critique = Critique(text=found.critique, spans=(span,), score=-1.0, meta={"damage": kind})
    return Feedback.of(example, found.response, critique, SOURCE)
