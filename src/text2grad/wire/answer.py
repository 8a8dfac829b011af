"""Write and read z: a critique, its spans as quotes, and a verdict, as one JSON object."""

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
_NEEDED = ({"critique", "good", "poor"}, {"critique", "poor", "improvable"})
_LONGEST_LOST = 300
IMPROVABLE = "improvable_spans"
MOST_CHARACTERS = 1_000_000
"""Of an answer; what is longer is not read."""
_KEPT = 2_000
_NUMBER = re.compile(r"\s*[+-]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE]-?[0-9]{1,2})?\s*")
_REASONS = ("reason", "suggestion")
_COUNTS = ("turn", "occurrence")
_ITEM_KEYS = {"quote", *_REASONS, *_COUNTS, "part"}
# A lone key is a phrase with its reason, unless it names a field of some other format.
_NOT_PHRASES = frozenset({*_ITEM_KEYS, "text", "span", "phrase", "start", "end", "label", "comment", "explanation"})

Item = str | dict[str, str | int | bool]


def render(critique: Critique, response: str) -> str:
    """Write a critique as z. `parse(render(c, r), r) == c` for spans in order (see `parse`) and no
    counts.

    Args:
        critique: what is written.
        response: what it is about.

    Returns:
        One JSON object. A quote is a plain string where that is unambiguous; otherwise an object
        says which turn or occurrence is meant, whether it begins or ends inside a word, or why it
        was quoted.

    Raises:
        ValueError: a span does not quote the response.
    """
    value: dict[str, object] = {"critique": critique.text}
    for key, label in (("good_spans", 1), ("poor_spans", -1), (IMPROVABLE, 0)):
        spans = [span for span in sort_spans(critique.spans) if span.label == label]
        if spans or label:
            value[key] = _items(spans, response)
    if critique.omissions:
        value["omissions"] = critique.omissions
    numbered = enumerate(critique.turn_scores, start=1)
    if turn_scores := [{"turn": turn, "score": score} for turn, score in numbered if score is not None]:
        value["turn_scores"] = turn_scores
    if critique.score is not None:
        value["score"] = critique.score
    return json.dumps(value, ensure_ascii=False)


def _items(spans: Sequence[Span], response: str) -> list[Item]:
    quotes = to_quotes(spans, response)
    following = [quote.text for quote in quotes[1:]]
    return [_item(quote, after, response) for quote, after in zip_longest(quotes, following)]


def _item(quote: Quote, after: str | None, response: str) -> Item:
    """A quote as written, so that `parse` cannot take two strings for one unescaped one."""
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
        item["quote"] = item.pop("quote")  # last, where nothing of the response can follow it
    return item


def parse(z: str, response: str, tolerance: Tolerance = "exact") -> Critique | Failure:
    """Read a critic's answer about `response`.

    Quotes that are not in the response are counted as `unmatched` and kept in `lost`, single quotes
    with several candidates as `ambiguous`. What is right and could be better is a span with label
    0. What a critic reasons before its critique is not part of it. Spans come sorted by (start,
       end, good first), each once.

    Args:
        z: the answer.
        response: what it is about.
        tolerance: how far a quote may be from the letter of the response.

    Returns:
        The critique, or a `Failure`: "truncated" (the object is not closed), "refused" (no object,
        words of refusal), "invalid" (anything else that has no single reading).
    """
    if len(z) > MOST_CHARACTERS:
        return Failure(kind="invalid", message=f"an answer of {len(z):,} characters", raw=storable(z[:_KEPT]))
    try:
        return _critique(read_object(z, response), response, tolerance)
    except UnreadableError as error:
        return Failure(kind=error.kind, message=error.message, raw=storable(z))
    except InvalidFields as error:
        return Failure(kind="invalid", message=error.problem, raw=storable(z))


def _critique(value: dict[str, Any], response: str, tolerance: Tolerance) -> Critique:
    fields = _fields(value)
    good = resolve(_quotes(fields.get("good", [])), response, 1, tolerance)
    poor = resolve(_quotes(fields["poor"]), response, -1, tolerance)
    # It pays nothing, so a quote of it that is not there costs no critique and is no reason to ask
    # again.
    better = resolve(_quotes(fields.get("improvable") or []), response, 0, tolerance)
    return Critique(
        text=_string(fields["critique"], "the critique"),
        spans=sort_spans([*good.spans, *poor.spans, *better.spans]),
        score=_score(fields.get("score")),
        turn_scores=_turn_scores(fields.get("turn_scores"), len(turns_of(response))),
        quotes=good.counts + poor.counts,
        lost=tuple(quote[:_LONGEST_LOST] for quote in (*good.unmatched, *poor.unmatched, *better.unmatched)),
        omissions=_omissions(fields.get("omissions")),
    )


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object's values under our own names."""
    names = [_FIELDS.get(key.strip().lower().replace(" ", "_")) for key in value]
    if None in names:
        invalid(f"unknown key {list(value)[names.index(None)][:30]!r}")
    if len(set(names)) < len(names):
        invalid("a key stands twice")
    if not any(needed <= set(names) for needed in _NEEDED):
        invalid(f"the keys are {', '.join(value) or 'missing'}; needed: critique, good_spans, poor_spans")
    return {str(name): item for name, item in zip(names, value.values(), strict=True)}


def _quotes(value: object) -> list[Quote]:
    """The items of a span list: strings, objects with a quote, or phrases with reasons ({phrase:
    reason})."""
    if isinstance(value, dict):
        return list(_phrases(value))
    if not isinstance(value, list):
        invalid("a span list is not a list")
    return [quote for item in value for quote in _quote(item)]


def _quote(item: object) -> Iterator[Quote]:
    if isinstance(item, str):
        yield Quote(item)
    elif isinstance(item, dict) and "quote" in item:
        yield _object_quote(item)
    elif isinstance(item, dict) and len(item) == 1:
        yield from _phrases(item)
    else:
        invalid(f"a span is neither a quote nor an object with one: {str(item)[:60]}")


def _phrases(pairs: dict[str, Any]) -> Iterator[Quote]:
    for phrase, reason in pairs.items():
        if phrase in _NOT_PHRASES:
            invalid(f"{phrase!r} where a phrase of the response belongs")
        yield Quote(phrase, _string(reason, "a reason"))


def _object_quote(item: dict[str, Any]) -> Quote:
    if unknown := sorted(set(item) - _ITEM_KEYS):
        invalid(f"unknown key {unknown[0][:30]!r} in a span")
    part = item.get("part")
    turn, occurrence = (_count(item.get(name), name) for name in _COUNTS)
    if part is not None and not isinstance(part, bool):
        invalid(f"part is {str(part)[:30]}, not true or false")
    reasons = [_string(item[name], f"a {name}") for name in _REASONS if item.get(name) is not None]
    return Quote(_string(item["quote"], "a quote"), "; ".join(reasons), occurrence, bool(part), turn)


def _count(value: object, name: str) -> int | None:
    if value is None or (type(value) is int and value >= 1):
        return value
    invalid(f"{name} is {str(value)[:30]}, not a number from 1 on")


def _string(value: object, what: str) -> str:
    return value if isinstance(value, str) else invalid(f"{what} is not a string: {str(value)[:60]}")


def _omissions(value: object) -> tuple[str, ...]:
    """What the response leaves out, in the critic's words: it cannot be quoted."""
    if value is None:
        return ()
    if not isinstance(value, list):
        invalid("omissions is not a list")
    return tuple(_string(item, "an omission") for item in value)


def _score(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
        invalid(f"the score is {str(value)[:30]}, not a number from -1 to 1")
    return float(value)


def _turn_scores(value: object, turns: int) -> tuple[float | None, ...]:
    """The verdicts on single turns: a list of {"turn", "score"}, each turn at most once."""
    if value is None or value == []:
        return ()
    if not isinstance(value, list):
        invalid("turn_scores is not a list")
    found: list[float | None] = [None] * turns
    for item in value:
        if not isinstance(item, dict) or item.keys() != {"turn", "score"}:
            invalid(f"a verdict on a turn is not an object of turn and score: {str(item)[:60]}")
        turn = _count(item["turn"], "turn") or 0
        if not 1 <= turn <= turns or found[turn - 1] is not None:
            invalid(f"a verdict on turn {str(item['turn'])[:30]}, of {turns}, each at most once")
        found[turn - 1] = _score(item["score"])
    return tuple(found) if any(score is not None for score in found) else ()


def json_schema(reasoning: bool = False, improvable: bool = False, turns: bool = False) -> dict[str, Any]:
    """The JSON schema of z, for servers that constrain their answers (`response_format`).

    With `reasoning` the critic thinks first, in a key of its own; `improvable` is the list of code
    that works and could be better; with `turns` a quote may name its turn, and a turn have a
    verdict of its own. Strict servers want every key to be required; what may be left out may be
    null.
    """
    text = {"type": "string"}
    number = {"type": ["integer", "null"]}
    item = _object(
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
    verdict = _object(turn={"type": "integer"}, score={"type": "number"})
    verdicts = {"turn_scores": {"type": ["array", "null"], "items": verdict}} if turns else {}
    lists = {"good_spans": spans, "poor_spans": spans, **third, "omissions": omissions}
    return _object(**thoughts, critique=text, **lists, **verdicts, score=score)


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
