"""Preference pairs from execution (paper, appendix N): a program that passes, and one that fails the tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle, islice

from text2grad.feedback import Feedback, Message, Record


class PreferencePair(Record):
    """One line of a preference file in TRL's conversational shape: `chosen` and `rejected` answer `prompt`."""

    id: str
    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]


def preference_pairs(records: Iterable[Feedback], most: int) -> Iterator[PreferencePair]:
    """At most `most` pairs a question, of distinct responses; a question without both kinds gives no pair.

    Passing and failing responses are paired in the order they were sampled; the shorter side is used again, and
    no pair comes twice. Records without a verdict of the tests are left out.
    """
    for same in _by_question(records).values():
        passing, failing = (_responses(same, verdict) for verdict in (1.0, -1.0))
        if not passing or not failing:
            continue
        count = max(len(passing), len(failing))
        pairs = dict.fromkeys(islice(zip(cycle(passing), cycle(failing), strict=False), count))
        for chosen, rejected in islice(pairs, most):
            yield PreferencePair(
                id=same[0].id, prompt=same[0].prompt, chosen=(_answer(chosen),), rejected=(_answer(rejected),)
            )


def _by_question(records: Iterable[Feedback]) -> dict[tuple[str, tuple[Message, ...]], list[Feedback]]:
    groups: dict[tuple[str, tuple[Message, ...]], list[Feedback]] = {}
    for record in records:
        if record.source.kind == "program" and record.error is None:
            groups.setdefault((record.id, record.prompt), []).append(record)
    return groups


def _responses(records: Iterable[Feedback], verdict: float) -> list[str]:
    return list(dict.fromkeys(record.response for record in records if record.score == verdict))


def _answer(text: str) -> Message:
    return Message(role="assistant", content=text)
