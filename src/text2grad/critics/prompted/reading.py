"""Parse an answer into a critique or a typed failure."""

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

MAX_REPAIR_LENGTH, MAX_REPAIR_DEPTH = 10_000, 20
"""Maximum characters, and nested brackets, of an answer that json-repair is tried on."""
Parse = Callable[[str, str, Tolerance], Judgement]
"""Parses an answer about a response, like `wire.parse`."""
_BRACKET = re.compile(r"[][(){}]")
_ESCAPED = re.compile(r"\\+(?:u00|x)([0-9a-fA-F]{2})")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|#[^\n]*", re.DOTALL)
_SCORE = re.compile(r"""(?<!\w)score(?!\w)["'“”‘’]?\s*[:=]\s*([^,}\n]*)""", re.IGNORECASE)
_JSON_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|null|none", re.IGNORECASE)


@dataclass(frozen=True)
class Reader:
    """Reads the answers of a model trained to write z or, with `annotator`, of any other model.

    For an annotator, invalid JSON is repaired, quotes are matched with tolerance, and an answer
    with quotes that are not in the response is requested once more and then refused. For a trained
    model, quotes must match to the letter, and spans that match are kept. With `verdict_only`, only
    the number of a head is read.
    """

    annotator: bool = False
    verdict_only: bool = False

    def read(self, answer: Answer, response: str, parse: Parse = wire.parse) -> Judgement:
        """Return the judgement in an answer about `response`, using `parse`."""
        if isinstance(answer, Failure):
            return answer
        if not math.isfinite(answer.score or 0.0) or (self.verdict_only and answer.score is None):
            return Failure(kind="invalid", message=f"the verdict is {answer.score}")
        if self.verdict_only:
            return Critique(text="", score=answer.score)
        if answer.truncated:
            # Even if its JSON is complete, a truncated critique is not.
            return Failure(
                kind="truncated", message="the answer reached the token limit", raw=storable(answer.text)
            )
        judgement = parse(answer.text, response, self._tolerance)
        if self.annotator and isinstance(judgement, Failure) and judgement.kind == "invalid" and "{" in answer.text:
            judgement = self._repair(answer.text, response, parse) or judgement
        if isinstance(judgement, Failure):
            return judgement
        score = judgement.score if answer.score is None else answer.score
        return judgement.model_copy(update={"score": score, "forced": int(answer.forced)})

    def needs_retry(self, judgement: Judgement) -> bool:
        """True if an annotator's answer is unusable; a trained model is never asked again."""
        if isinstance(judgement, Failure):
            return self.annotator and judgement.kind in ("invalid", "truncated")
        return self.annotator and _count_absent(judgement) > 0

    def validate(self, judgement: Judgement) -> Judgement:
        """Return the judgement, or a failure if an annotator's quotes are not in the response."""
        if isinstance(judgement, Failure) or not self.needs_retry(judgement):
            return judgement
        message = f"{_count_absent(judgement)} of its quotes are not in the response"
        return Failure(kind="invalid", message=message, raw="; ".join(judgement.lost))

    @property
    def _tolerance(self) -> Tolerance:
        return "normalised" if self.annotator else "exact"

    def _repair(self, text: str, response: str, parse: Parse) -> Critique | None:
        """Return the result of json-repair, if each quote occurs exactly once in the response.

        json-repair guesses where strings end; a wrong guess seldom quotes whole words of the
        response. It also keeps the last value of a repeated key, so such answers are not repaired.
        """
        import json_repair

        if not _is_repairable(text) or not _is_complete(text):
            return None
        try:
            repaired = json_repair.loads(text[text.index("{") : text.rindex("}") + 1], logging=True)
            value, steps = repaired if isinstance(repaired, tuple) else (repaired, [])
            if "duplicate key" in str(steps) or not isinstance(value, dict) or repeats_key(text, value):
                return None
            critique = parse(json.dumps(value, ensure_ascii=False), response, self._tolerance)
        except (ValueError, RecursionError):  # nested too deeply, or an endless number
            return None
        if isinstance(critique, Failure) or critique.quotes.unmatched or critique.quotes.ambiguous:
            return None
        return critique


def _is_complete(text: str) -> bool:
    """False if the answer seems to be cut, or has a score that json-repair would misread.

    It reads `-1` with a typographic minus, and `1 of 10`, as 1.
    """
    scores = (match[1].strip(" \t\r'\"“”") for match in _SCORE.finditer(_COMMENT.sub(" ", text)))
    is_cut = any(sign in text.rpartition("}")[2] for sign in '"[')
    return not is_cut and all(_JSON_NUMBER.fullmatch(score) for score in scores)


def _count_absent(critique: Critique) -> int:
    """Count the quotes that are neither in the response nor in the messages between its turns."""
    return critique.quotes.unmatched - critique.quotes.foreign


def repeats_key(text: str, value: Any) -> bool:
    """True if `text` seems to give a key more values than `value`, which was parsed from it.

    False positives are accepted: prose may contain `score:` too.
    """
    readable = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    without_comments = _COMMENT.sub(" ", readable)
    names = Counter(key.strip().casefold() for key in _keys(value))
    return any(
        _count_values(name, readable) > count or _count_values(name, without_comments) > count
        for name, count in names.items()
    )


def _count_values(key: str, text: str) -> int:
    """Count the apparent values of a key, with or without a colon."""
    value = r"""(?:\W{0,20}?[:=]|["'“”‘’]\s*[-\d\[{"'tfn]|\s+[-+\d])"""
    return len(re.findall(rf"(?<!\w){re.escape(key)}(?!\w){value}", text, re.IGNORECASE))


def _keys(value: Any) -> Iterator[str]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield from value
    for child in children:
        yield from _keys(child)


def _is_repairable(text: str) -> bool:
    """True if a repair ends soon: its time grows faster than the length, above all when nested."""
    depth = max_depth = 0
    for match in _BRACKET.finditer(text):
        depth = max(0, depth + (1 if match[0] in "([{" else -1))
        max_depth = max(max_depth, depth)
    return len(text) <= MAX_REPAIR_LENGTH and max_depth <= MAX_REPAIR_DEPTH
