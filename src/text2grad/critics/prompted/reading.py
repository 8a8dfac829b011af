"""What an answer says: one critique, or a typed failure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from text2grad import wire
from text2grad.chat.base import Answer
from text2grad.feedback import Critique, Failure, Judgement, Tolerance
from text2grad.json_text import storable

LONGEST_REPAIRED, DEEPEST_REPAIRED = 10_000, 20
"""Characters, and brackets open at once, of what json-repair is tried on."""
Parse = Callable[[str, str, Tolerance], Judgement]
"""Reads an answer about a response: `wire.parse`, or one of another format."""
_BRACKET = re.compile(r"[][(){}]")
_ESCAPED = re.compile(r"\\+(?:u00|x)([0-9a-fA-F]{2})")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|#[^\n]*", re.DOTALL)


@dataclass(frozen=True)
class Reader:
    """Reads answers of a model that was trained to write z or, with `annotator`, of any other.

    An annotator's invalid JSON is repaired, its quotes are located with tolerance, and an answer
    that quotes what is not in the response is asked for once more and then refused. A trained model
    is read to the letter, and keeps the spans that are there. With `verdict_only` nothing is read
    but the number that a head gives.
    """

    annotator: bool = False
    verdict_only: bool = False

    def read(self, answer: Answer, response: str, parse: Parse = wire.parse) -> Judgement:
        """Return the judgement in an answer about `response`, which `parse` reads."""
        if isinstance(answer, Failure):
            return answer
        if not math.isfinite(answer.score or 0.0) or (self.verdict_only and answer.score is None):
            return Failure(kind="invalid", message=f"the verdict is {answer.score}")
        if self.verdict_only:
            return Critique(text="", score=answer.score)
        if answer.truncated:
            # Even where the object is closed: a truncated critique is incomplete.
            return Failure(
                kind="truncated", message="the answer ran into the token limit", raw=storable(answer.text)
            )
        read = parse(answer.text, response, self._tolerance)
        if isinstance(read, Failure) and read.kind == "invalid" and self.annotator and "{" in answer.text:
            read = self._repaired(answer.text, response, parse) or read
        if isinstance(read, Failure):
            return read
        score = read.score if answer.score is None else answer.score
        return read.model_copy(update={"score": score, "forced": int(answer.forced)})

    def broken(self, judgement: Judgement) -> bool:
        """True if a fresh sample is worth its price. A trained model gets one: its answer is its
        critique."""
        if isinstance(judgement, Failure):
            return self.annotator and judgement.kind in ("invalid", "truncated")
        return self.annotator and _count_absent(judgement) > 0

    def validated(self, judgement: Judgement) -> Judgement:
        """Return the judgement, or a failure for an annotator's that quotes what is not in the
        response."""
        if isinstance(judgement, Failure) or not self.broken(judgement):
            return judgement
        message = f"{_count_absent(judgement)} of its quotes are not in the response"
        return Failure(kind="invalid", message=message, raw="; ".join(judgement.lost))

    @property
    def _tolerance(self) -> Tolerance:
        return "normalised" if self.annotator else "exact"

    def _repaired(self, text: str, response: str, parse: Parse) -> Critique | None:
        """The result of json-repair, if each of its quotes occurs in the response, and only once.

        A repair guesses where strings end; a wrong guess seldom quotes the response as whole words.
        It also takes the last of two values of a key, which is why what gives a key twice is not
        repaired.
        """
        import json_repair

        if not _is_repairable(text):
            return None
        try:
            found = json_repair.loads(text[text.index("{") : text.rindex("}") + 1], logging=True)
            value, steps = found if isinstance(found, tuple) else (found, [])
            if "duplicate key" in str(steps) or not isinstance(value, dict) or gives_a_key_twice(text, value):
                return None
            read = parse(json.dumps(value, ensure_ascii=False), response, self._tolerance)
        except (ValueError, RecursionError):  # of something nested too deeply, or a number without end
            return None
        return read if isinstance(read, Critique) and not (read.quotes.unmatched or read.quotes.ambiguous) else None


def _count_absent(critique: Critique) -> int:
    """Count the quotes that are neither in the response nor in what others said between its
    turns."""
    return critique.quotes.unmatched - critique.quotes.foreign


def gives_a_key_twice(text: str, value: Any) -> bool:
    """Whether a text names a key more often than `value`, which was made of it, has one.

    Rather once too often: prose may say `score:`, too.
    """
    readable = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    without_comments = _COMMENT.sub(" ", readable)
    names = Counter(key.strip().casefold() for key in _keys(value))
    return any(
        _mentions(name, readable) > times or _mentions(name, without_comments) > times
        for name, times in names.items()
    )


def _mentions(key: str, text: str) -> int:
    """How often a key seems to be given a value, with a colon or without."""
    value = r"""(?:\W{0,20}?[:=]|["'“”‘’]\s*[-\d\[{"'tfn]|\s+[-+\d])"""
    return len(re.findall(rf"(?<!\w){re.escape(key)}(?!\w){value}", text, re.IGNORECASE))


def _keys(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield from value
    for each in inner:
        yield from _keys(each)


def _is_repairable(text: str) -> bool:
    """Whether a repair ends soon: it takes longer than in proportion, above all where brackets are
    nested."""
    depth = deepest = 0
    for match in _BRACKET.finditer(text):
        depth = max(0, depth + (1 if match[0] in "([{" else -1))
        deepest = max(deepest, depth)
    return len(text) <= LONGEST_REPAIRED and deepest <= DEEPEST_REPAIRED
