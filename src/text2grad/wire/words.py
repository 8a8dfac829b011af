"""The dense form of z: a label for every word of the response (paper, Tables 2 and 11).

    {"words": [["It", 0], ["is", 0], ["wrong.", -1]], "score": -1.0}

A word is what stands between white space; of scripts without spaces it is a character. Words are told by their
place in the list, so that each can be checked.
"""

from __future__ import annotations

import json
from typing import Any

from text2grad.feedback import Critique, QuoteCounts, Span
from text2grad.unicode_words import pieces
from text2grad.wire.objects import invalid
from text2grad.wire.shown import as_data


def render_words(critique: Critique, response: str) -> str:
    """Write a critique's spans and verdict as labels of words: 1 or -1 where a span of that sign touches the word,
    0 where none does or both do."""
    listed = [[response[start:end], _label(critique, start, end)] for start, end in pieces(response)]
    score = {} if critique.score is None else {"score": critique.score}
    return json.dumps({"words": listed, **score}, ensure_ascii=False)


def read_words(listed: object, response: str) -> Critique:
    """The labels of a list of words as one span for each good or poor word, without a text.

    A word that is not to the letter what stands at its place gives no span and is counted as `unmatched`.

    Raises:
        UnreadableError: not a list of [word, label], or not as many words as the response has.
    """
    if not isinstance(listed, list):
        invalid("words is not a list")
    places = list(pieces(response))
    if len(listed) != len(places):
        invalid(f"labels of {len(listed)} words, and the response has {len(places)}")
    spans: list[Span] = []
    lost: list[str] = []
    for item, (start, end) in zip(listed, places, strict=True):
        word, label = _labelled(item)
        text = response[start:end]
        if word not in (text, as_data(text)):
            lost.append(word)
        elif label:
            spans.append(Span(start=start, end=end, label=1 if label > 0 else -1, text=text))
    return Critique(text="", spans=tuple(spans), quotes=QuoteCounts(unmatched=len(lost)), lost=tuple(lost))


def _label(critique: Critique, start: int, end: int) -> int:
    return sum({span.label for span in critique.spans if span.start < end and span.end > start})


def _labelled(item: object) -> tuple[str, int]:
    match item:
        case [str(word), int(label) | float(label)] if label in (-1, 0, 1) and not isinstance(label, bool):
            return word, int(label)
        case [str(word), str(label)] if label.strip().removeprefix("+") in ("-1", "0", "1"):
            return word, int(label)
    invalid(f"a word is not [word, label] with a label of 1, 0 or -1: {str(item)[:60]}")


def words_schema() -> dict[str, Any]:
    """The JSON schema of the dense form, for servers that constrain their answers."""
    pair = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}
    score = {"type": ["number", "null"], "description": "the verdict, from -1 to 1"}
    properties = {"words": {"type": "array", "items": pair}, "score": score}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
