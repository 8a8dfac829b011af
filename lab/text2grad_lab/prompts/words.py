"""Dense answers: a label for every word of the response (paper, Tables 2 and 11).

    {"words": [["It", 0], ["is", 0], ["wrong.", -1]], "score": -1.0}

Words are separated by whitespace; in scripts without spaces each character is a word. The n-th item
labels the n-th word, so every item can be checked.
"""

from __future__ import annotations

import json
from typing import Any

from text2grad import wire
from text2grad.critics.prompted import AnswerFormat
from text2grad.feedback import Critique, Failure, Judgement, QuoteCounts, Span, Tolerance
from text2grad.feedback.escaping import escape_text
from text2grad.json_text import storable
from text2grad.unicode_words import pieces
from text2grad.wire.objects import UnreadableError, invalid, read_object

_NO_SPANS: dict[str, Any] = {"critique": "", "good_spans": [], "poor_spans": []}


def render_words(critique: Critique, response: str) -> str:
    """Render a critique's spans and verdict as labels of words.

    The label is 1 or -1 if only spans of that sign overlap the word, else 0.
    """
    listed = [[response[start:end], _label(critique, start, end)] for start, end in pieces(response)]
    score = {} if critique.score is None else {"score": critique.score}
    return json.dumps({"words": listed, **score}, ensure_ascii=False)


def parse_words(answer: str, response: str, tolerance: Tolerance = "exact") -> Judgement:
    """Read labels of all words of a response as one span per good or poor word.

    A word that differs from the response gives no span and is counted as `unmatched`.
    `tolerance` is ignored: words are copied, not quoted.

    Returns:
        The critique, or a `Failure`: "invalid" where the answer is not a label for every word.
    """
    try:
        value = read_object(answer, response)
        if set(value) - {"score"} != {"words"}:
            invalid(f"the keys are {', '.join(value) or 'missing'}; needed: words, score")
        critique = _parse_labels(value["words"], response)
    except UnreadableError as error:
        return Failure(kind=error.kind, message=error.message, raw=storable(answer))
    scored = wire.parse(json.dumps(_NO_SPANS | {"score": value.get("score")}), "")
    if isinstance(scored, Failure):
        return scored.model_copy(update={"raw": storable(answer)})
    return critique.model_copy(update={"score": scored.score})


def _parse_labels(listed: object, response: str) -> Critique:
    if not isinstance(listed, list):
        invalid("words is not a list")
    places = list(pieces(response))
    if len(listed) != len(places):
        invalid(f"labels of {len(listed)} words, and the response has {len(places)}")
    spans: list[Span] = []
    unmatched: list[str] = []
    for item, (start, end) in zip(listed, places, strict=True):
        word, label = _labelled(item)
        text = response[start:end]
        if word not in (text, escape_text(text)):
            unmatched.append(word)
        elif label:
            spans.append(Span(start=start, end=end, label=1 if label > 0 else -1, text=text))
    return Critique(
        text="", spans=tuple(spans), quotes=QuoteCounts(unmatched=len(unmatched)), lost=tuple(unmatched)
    )


def _label(critique: Critique, start: int, end: int) -> int:
    return sum({span.label for span in critique.spans if span.start < end and span.end > start})


def _labelled(item: object) -> tuple[str, int]:
    match item:
        case [str(word), int(label) | float(label)] if label in (-1, 0, 1) and not isinstance(label, bool):
            return word, int(label)
        case [str(word), str(label)] if label.strip().removeprefix("+") in ("-1", "0", "1"):
            return word, int(label)
    invalid(f"a word is not [word, label] with a label of 1, 0 or -1: {str(item)[:60]}")


def words_schema(prompt: str, turns: bool) -> dict[str, Any]:
    """Return the JSON schema of a dense answer."""
    pair = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}
    score = {"type": ["number", "null"], "description": "the verdict, from -1 to 1"}
    properties = {"words": {"type": "array", "items": pair}, "score": score}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORDS = AnswerFormat(words_schema, parse_words)
"""A label for every word."""
