"""Write and read z: one JSON object with a critique, its spans as quotes, and a verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from text2grad.errors import InvalidFields
from text2grad.feedback import Critique, Failure, Span, Tolerance, turns_of
from text2grad.feedback.quotes import Quote, resolve, sort_spans, to_quotes
from text2grad.json_text import storable
from text2grad.wire.objects import UnreadableError, invalid, read_object

_FIELDS = {
    "critique": "critique",
    "good_spans": "good",
    "poor_spans": "poor",
    "improvable_spans": "improvable",
    "omissions": "omissions",
    "reasoning": "reasoning",
    "score": "score",
    "turn_scores": "turn_scores",
}
_REQUIRED = ({"critique", "good", "poor"}, {"critique", "poor", "improvable"})
_MAX_LOST = 300
IMPROVABLE = "improvable_spans"
MAX_CHARACTERS = 1_000_000
"""Length of the longest answer that is parsed."""
_MAX_RAW = 2_000
_NUMBER = re.compile(r"\s*[+-]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE]-?[0-9]{1,2})?\s*")
_REASONS = ("reason", "suggestion")
_COUNTS = ("turn", "occurrence")
_ITEM_KEYS = {"quote", *_REASONS, *_COUNTS, "part"}
# A single key is a phrase with its reason, unless it is a field name of another format.
_OTHER_KEYS = (
    *("text", "span", "phrase", "start", "end", "label", "comment", "explanation", "missing", "omission"),
    *("omitted", "issue", "problem", "error", "fix", "word", "words", "sentence", "excerpt", "snippet"),
    *("code", "line", "content", "value", "reasoning"),
)
_NOT_PHRASES = frozenset({*_ITEM_KEYS, *_OTHER_KEYS})

Item = str | dict[str, str | int | bool]


def render(critique: Critique, response: str) -> str:
    """Write a critique of `response` as z.

    `parse(render(c, r), r) == c` if the spans of c are sorted (see `parse`) and it has no counts.

    Args:
        critique: the critique to write.
        response: the text that its spans quote.

    Returns:
        One JSON object. An unambiguous quote is a plain string. Otherwise it is an object with the
        turn, the occurrence, `part` (the quote begins or ends inside a word), or the reason.

    Raises:
        ValueError: a span does not quote the response.
    """
    value: dict[str, object] = {"critique": critique.text}
    for key, label in (("good_spans", 1), ("poor_spans", -1), (IMPROVABLE, 0)):
        spans = [span for span in sort_spans(critique.spans) if span.label == label]
        if spans or label:
            value[key] = _render_spans(spans, response)
    if critique.omissions:
        value["omissions"] = critique.omissions
    numbered = enumerate(critique.turn_scores, start=1)
    if turn_scores := [{"turn": turn, "score": score} for turn, score in numbered if score is not None]:
        value["turn_scores"] = turn_scores
    if critique.score is not None:
        value["score"] = critique.score
    return json.dumps(value, ensure_ascii=False)


def _render_spans(spans: Sequence[Span], response: str) -> list[Item]:
    quotes = to_quotes(spans, response)
    following = [quote.text for quote in quotes[1:]]
    return [_render_quote(quote, after, response) for quote, after in zip_longest(quotes, following)]


def _render_quote(quote: Quote, after: str | None, response: str) -> Item:
    """Write a quote so that `parse` cannot mistake it and the next one for one unescaped string."""
    plain = not (quote.reason or quote.occurrence or quote.part or quote.turn)
    if plain and (after is None or f'{quote.text}", "{after}' not in response):
        return quote.text
    item: dict[str, str | int | bool] = {"quote": quote.text}
    if quote.turn:
        item["turn"] = quote.turn
    if quote.occurrence:
        item["occurrence"] = quote.occurrence
    if quote.part:
        item["part"] = True
    if quote.reason:
        item["reason"] = quote.reason
    following = next((key for key in item if key != "quote"), None)
    if following and f'{quote.text}", "{following}' in response:
        item["quote"] = item.pop("quote")  # moved last, where no text of the response can follow
    return item


def parse(z: str, response: str, tolerance: Tolerance = "exact") -> Critique | Failure:
    """Read a critic's answer z about `response`.

    Quotes that are not in the response are counted as `unmatched` and stored in `lost`. A quote
    that is listed once but occurs several times is counted as `ambiguous`. Improvable spans have
    label 0. Reasoning before the critique is dropped. Spans are unique and sorted by start, end and
    label (good first).

    Args:
        z: the answer.
        response: the judged text.
        tolerance: permitted difference between a quote and the response.

    Returns:
        The critique, or a `Failure`: "truncated" (the object is not closed), "refused" (no object,
        words of refusal), "invalid" (anything else that has no single reading).
    """
    if len(z) > MAX_CHARACTERS:
        return Failure(kind="invalid", message=f"an answer of {len(z):,} characters", raw=storable(z[:_MAX_RAW]))
    try:
        return _parse_critique(read_object(z, response), response, tolerance)
    except UnreadableError as error:
        return Failure(kind=error.kind, message=error.message, raw=storable(z))
    except InvalidFields as error:
        return Failure(kind="invalid", message=error.problem, raw=storable(z))


def _parse_critique(value: dict[str, Any], response: str, tolerance: Tolerance) -> Critique:
    fields = _parse_fields(value)
    good = resolve(_parse_list(fields.get("good", [])), response, 1, tolerance)
    poor = resolve(_parse_list(fields["poor"]), response, -1, tolerance)
    # Improvable spans pay nothing, so their unmatched quotes are not counted against the critique.
    improvable = resolve(_parse_list(fields.get("improvable") or []), response, 0, tolerance)
    return Critique(
        text=_parse_string(fields["critique"], "the critique"),
        spans=sort_spans([*good.spans, *poor.spans, *improvable.spans]),
        score=_parse_score(fields.get("score")),
        turn_scores=_parse_turn_scores(fields.get("turn_scores"), len(turns_of(response))),
        quotes=good.counts + poor.counts,
        lost=tuple(quote[:_MAX_LOST] for quote in (*good.unmatched, *poor.unmatched, *improvable.unmatched)),
        omissions=_parse_omissions(fields.get("omissions")),
    )


def _parse_fields(value: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the object under the names of `_FIELDS`."""
    names = [_FIELDS.get(key.strip().lower().replace(" ", "_")) for key in value]
    if None in names:
        invalid(f"unknown key {list(value)[names.index(None)][:30]!r}")
    if len(set(names)) < len(names):
        invalid("a key occurs twice")
    if not any(needed <= set(names) for needed in _REQUIRED):
        invalid(f"the keys are {', '.join(value) or 'missing'}; needed: critique, good_spans, poor_spans")
    return {str(name): item for name, item in zip(names, value.values(), strict=True)}


def _parse_list(value: object) -> list[Quote]:
    """Parse a span list: strings, objects with a quote, or phrases as {phrase: reason}."""
    if isinstance(value, dict):
        return list(_parse_phrases(value))
    if not isinstance(value, list):
        invalid("a span list is not a list")
    return [quote for item in value for quote in _parse_item(item)]


def _parse_item(item: object) -> Iterator[Quote]:
    if isinstance(item, str):
        yield Quote(item)
    elif isinstance(item, dict) and "quote" in item:
        yield _parse_object(item)
    elif isinstance(item, dict) and len(item) == 1:
        yield from _parse_phrases(item)
    else:
        invalid(f"a span is neither a quote nor an object with one: {str(item)[:60]}")


def _parse_phrases(pairs: dict[str, Any]) -> Iterator[Quote]:
    for phrase, reason in pairs.items():
        if phrase.strip().lower() in _NOT_PHRASES:
            invalid(f"{phrase!r} where a phrase of the response belongs")
        yield Quote(phrase, _parse_string(reason, "a reason"))


def _parse_object(item: dict[str, Any]) -> Quote:
    if unknown := sorted(set(item) - _ITEM_KEYS):
        invalid(f"unknown key {unknown[0][:30]!r} in a span")
    part = item.get("part")
    turn, occurrence = (_parse_count(item.get(name), name) for name in _COUNTS)
    if part is not None and not isinstance(part, bool):
        invalid(f"part is {str(part)[:30]}, not true or false")
    reasons = [_parse_string(item[name], f"a {name}") for name in _REASONS if item.get(name) is not None]
    return Quote(_parse_string(item["quote"], "a quote"), "; ".join(reasons), occurrence, bool(part), turn)


def _parse_count(value: object, name: str) -> int | None:
    if value is None or (type(value) is int and value >= 1):
        return value
    invalid(f"{name} is {str(value)[:30]}, not a number from 1 on")


def _parse_string(value: object, what: str) -> str:
    return value if isinstance(value, str) else invalid(f"{what} is not a string: {str(value)[:60]}")


def _parse_omissions(value: object) -> tuple[str, ...]:
    """Parse the critic's descriptions of missing content, which cannot be quoted."""
    if value is None:
        return ()
    if not isinstance(value, list):
        invalid("omissions is not a list")
    return tuple(_parse_string(item, "an omission") for item in value)


def _parse_score(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
        invalid(f"the score is {str(value)[:30]}, not a number from -1 to 1")
    return float(value)


def _parse_turn_scores(value: object, turns: int) -> tuple[float | None, ...]:
    """Parse the verdicts on turns, a list of {"turn", "score"} with each turn at most once."""
    if value is None or value == []:
        return ()
    if not isinstance(value, list):
        invalid("turn_scores is not a list")
    scores: list[float | None] = [None] * turns
    for item in value:
        if not isinstance(item, dict) or item.keys() != {"turn", "score"}:
            invalid(f"a verdict on a turn is not an object of turn and score: {str(item)[:60]}")
        turn = _parse_count(item["turn"], "turn") or 0
        if not 1 <= turn <= turns or scores[turn - 1] is not None:
            invalid(f"a verdict on turn {str(item['turn'])[:30]}, of {turns}, each at most once")
        scores[turn - 1] = _parse_score(item["score"])
    return tuple(scores) if any(score is not None for score in scores) else ()


def json_schema(reasoning: bool = False, improvable: bool = False, turns: bool = False) -> dict[str, Any]:
    """Return the JSON schema of z, for servers that constrain answers (`response_format`).

    All keys are required, as strict servers demand; optional values may be null.

    Args:
        reasoning: add a first key in which the critic thinks.
        improvable: add the list of what is right but could be better.
        turns: let quotes name their turn, and turns have verdicts.
    """
    text = {"type": "string"}
    number = {"type": ["integer", "null"]}
    item = _object_schema(
        quote=text,
        **({"turn": number} if turns else {}),
        occurrence=number,
        part={"type": ["boolean", "null"]},
        reason={"type": ["string", "null"]},
    )
    spans = {"type": "array", "items": {"anyOf": [text, item]}}
    score = {"type": ["number", "null"], "description": "the verdict, from -1 to 1"}
    omissions = {"type": ["array", "null"], "items": text}
    thoughts = {"reasoning": text} if reasoning else {}
    third = {IMPROVABLE: spans} if improvable else {}
    verdict = _object_schema(turn={"type": "integer"}, score={"type": "number"})
    verdicts = {"turn_scores": {"type": ["array", "null"], "items": verdict}} if turns else {}
    lists = {"good_spans": spans, "poor_spans": spans, **third, "omissions": omissions}
    return _object_schema(**thoughts, critique=text, **lists, **verdicts, score=score)


def _object_schema(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
