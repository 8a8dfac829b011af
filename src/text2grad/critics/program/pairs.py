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
    questions: dict[tuple[str, tuple[Message, ...]], list[Feedback]] = {}
    for record in records:
        if record.source.kind == "program" and record.error is None:
            questions.setdefault((record.id, record.prompt), []).append(record)
    for (question, prompt), same in questions.items():
        passing, failing = (
            dict.fromkeys(each.response for each in same if each.score == verdict) for verdict in (1.0, -1.0)
        )
        count = max(len(passing), len(failing)) if passing and failing else 0
        pairs = dict.fromkeys(islice(zip(cycle(passing), cycle(failing), strict=False), count))
        for pair in islice(pairs, most):
            chosen, rejected = (Message(role="assistant", content=text) for text in pair)
            yield PreferencePair(id=question, prompt=prompt, chosen=(chosen,), rejected=(rejected,))
