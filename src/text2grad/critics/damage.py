"""Corrupted answers with matching critiques, as training data for small reward models.

A reward model trained on few critiques has only seen plausible answers. It may praise text that is
no answer at all, and a policy in training finds such text. These records teach it that such text is
poor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from text2grad.feedback import Critique, Example, Feedback, Source, Span, Transcript, turns_of
from text2grad.unicode_words import pieces, unspaced

SOURCE = Source(kind="program", model="damage")
MIN_WORDS = 3
"""Words of the shortest answer that can be corrupted."""
REPEATS = 8
"""Repetitions of a phrase."""


class CorruptedAnswer(NamedTuple):
    """A corrupted answer, its poor interval [start, end), and its critique."""

    response: str
    start: int
    end: int
    critique: str


def shuffle_words(response: str, rng: random.Random) -> CorruptedAnswer:
    """Shuffle the words of a response."""
    words = _words(response)
    rng.shuffle(words)
    text = _join(words, response)
    return CorruptedAnswer(text, 0, len(text), "The words are in no order and say nothing.")


def repeat_phrase(response: str, rng: random.Random) -> CorruptedAnswer:
    """Cut a response at a random phrase and repeat the phrase."""
    starts = [start for start, _ in pieces(response)]
    first = rng.randrange(len(starts) - MIN_WORDS + 1)
    ends = [*starts, len(response)]
    phrase = response[starts[first] : ends[first + MIN_WORDS]].strip()
    head = response[starts[0] : starts[first]]
    text = head + _join([phrase] * REPEATS, response)
    return CorruptedAnswer(text, len(head), len(text), "It says the same again and again.")


def shuffle_letters(response: str, rng: random.Random) -> CorruptedAnswer:
    """Shuffle the letters of a response, with the original word lengths."""
    letters = [letter for letter in response if not letter.isspace()]
    rng.shuffle(letters)
    lengths = [len(word) for word in _words(response)]
    text = _join(["".join(letters.pop() for _ in range(length)) for length in lengths], response)
    return CorruptedAnswer(text, 0, len(text), "These are no words.")


def _words(response: str) -> list[str]:
    return [response[start:end] for start, end in pieces(response)]


def _join(words: Sequence[str], response: str) -> str:
    """Join words with spaces, or without if most words of the response have an unspaced script."""
    count = sum(map(unspaced, _words(response)))
    return ("" if 2 * count > len(_words(response)) else " ").join(words)


Corruption = Callable[[str, random.Random], CorruptedAnswer]
CORRUPTIONS: Mapping[str, Corruption] = {
    "shuffled": shuffle_words,
    "repeated": repeat_phrase,
    "degenerate": shuffle_letters,
}
"""Corruptions by the name that `meta.damage` has for them."""


def corrupt_records(records: Sequence[Feedback], count: int, seed: int) -> list[Feedback]:
    """Return `count` records of corrupted responses with their critiques.

    The kinds of `CORRUPTIONS` alternate; `meta.damage` names the kind. Equal records and seeds give
    equal results. Responses of fewer than `MIN_WORDS` words, and those that a corruption leaves
    unchanged, are skipped, so there may be fewer records. In a transcript, one turn is corrupted
    and later turns are dropped, because they answered other words.
    """
    rng = random.Random(f"{seed}/damage")
    usable = [record for record in records if _long_turns(record.response)]
    kinds = cycle(CORRUPTIONS)
    selected = [usable[i % len(usable)] for i in rng.sample(range(count), count)] if usable else []
    corrupted = [_corrupt_record(record, next(kinds), rng) for record in selected]
    return [record for record in corrupted if record is not None]


def _long_turns(response: str) -> list[int]:
    """Return the indices of the turns with at least `MIN_WORDS` words."""
    texts = (response[turn.start : turn.end] for turn in turns_of(response))
    return [index for index, text in enumerate(texts) if len(_words(text)) >= MIN_WORDS]


def _corrupt_turn(response: str, corrupt: Corruption, rng: random.Random) -> CorruptedAnswer:
    """Corrupt a response, or one turn of a transcript."""
    if not isinstance(response, Transcript):
        return corrupt(response, rng)
    *before, last = response.turns[: rng.choice(_long_turns(response)) + 1]
    corrupted = corrupt(response[last.start : last.end], rng)
    turns = [(turn.messages, response[turn.start : turn.end]) for turn in before]
    text = Transcript.of([*turns, (last.messages, corrupted.response)])
    return CorruptedAnswer(text, last.start + corrupted.start, last.start + corrupted.end, corrupted.critique)


def _corrupt_record(record: Feedback, kind: str, rng: random.Random) -> Feedback | None:
    """Return the record of a corrupted response; None if the response is unchanged."""
    answer = _corrupt_turn(record.response, CORRUPTIONS[kind], rng)
    if answer.response == record.response:
        return None
    span = Span(start=answer.start, end=answer.end, label=-1, text=answer.response[answer.start : answer.end])
    # Without meta: sampled token ids and test results belong to the original response.
    example = Example(id=record.id, prompt=record.prompt)
    critique = Critique(text=answer.critique, spans=(span,), score=-1.0, meta={"damage": kind})
    return Feedback.of(example, answer.response, critique, SOURCE)
