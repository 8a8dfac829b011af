"""The answer format z = [critique ; span map]: one `render`, one `parse`, for annotators and reward models alike.

z is one JSON object, critique first so that reasoning comes before labels:

    {"critique": "...", "good_spans": [QUOTE ...], "poor_spans": [QUOTE ...], "score": 1.0}

QUOTE is a string, or {"quote": "...", "reason": "...", "occurrence": 2, "part": true} where a bare string would
not say which words are meant. Spans are quotes, because a model can copy but not count. `parse` never guesses:
what would need a guess is a typed `Failure`.
"""

from __future__ import annotations

import ast
import json
import re
import tokenize
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal

from text2grad.feedback import Critique, Failure, FailureKind, Judgement, Label, Span

Ambiguity = Literal["first", "all", "skip"]

_KEYS: tuple[tuple[Label, tuple[str, ...]], ...] = (
    (1, ("good_spans", "Good spans", "Good Spans", "good spans")),
    (-1, ("poor_spans", "Poor spans", "Poor Spans", "poor spans")),
)
_TEXT_KEYS = ("critique", "textual_feedback", "Textual feedback", "feedback")
_ITEM_KEYS = {"quote", "reason", "occurrence", "part"}
_JSON_OR_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[\]}])', re.DOTALL)
_REFUSAL = re.compile(
    r"\b(?:I(?:'|\u2019)?m sorry|I am sorry|I apologi[sz]e|I can(?:'|\u2019)?t|I cannot|I won(?:'|\u2019)?t"
    r"|I(?:'|\u2019)?m (?:not able|unable)|I am (?:not able|unable)|as an AI)\b",
    re.IGNORECASE,
)


class _Unreadable(Exception):
    """Why an answer cannot be read."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


@dataclass(frozen=True)
class Quote:
    """One quote as it was written: the words, and which of their occurrences is meant, if it says so."""

    text: str
    reason: str = ""
    occurrence: int | None = None
    part: bool = False


def render(critique: Critique, response: str) -> str:
    """z of a critique of `response`; `parse(render(c, r), r)` gives back the text, the spans and the score."""
    repeats = Counter((span.label, span.text) for span in critique.spans)
    lists = {label: [] for label, _ in _KEYS}  # type: dict[Label, list[Any]]
    for span in critique.spans:
        lists[span.label].append(_item(span, response, alone=repeats[span.label, span.text] == 1))
    z: dict[str, Any] = {"critique": critique.text, "good_spans": lists[1], "poor_spans": lists[-1]}
    if critique.score is not None:
        z["score"] = critique.score
    return json.dumps(z, ensure_ascii=False)


def _item(span: Span, response: str, alone: bool) -> Any:
    places = candidates(span.text, response)
    part = span.start not in places
    if part:
        places = occurrences(span.text, response)
    item: dict[str, Any] = {"quote": span.text}
    if span.reason:
        item["reason"] = span.reason
    if len(places) > 1 or not alone:
        item["occurrence"] = places.index(span.start) + 1
    if part:
        item["part"] = True
    return span.text if len(item) == 1 else item


def occurrences(quote: str, response: str) -> list[int]:
    """Where a quote starts, overlapping ones included."""
    places, start = [], response.find(quote) if quote.strip() else -1
    while start >= 0:
        places.append(start)
        start = response.find(quote, start + 1)
    return places


def candidates(quote: str, response: str) -> list[int]:
    """Occurrences that begin and end on a word boundary: `art` is not found inside `start`.

    Only scripts that put spaces between words have such boundaries: letters with case, digits and `_`.
    """
    return [
        start
        for start in occurrences(quote, response)
        if not _inside_word(response, start) and not _inside_word(response, start + len(quote))
    ]


def _inside_word(text: str, place: int) -> bool:
    return 0 < place < len(text) and _spaced(text[place - 1]) and _spaced(text[place])


def _spaced(character: str) -> bool:
    return character == "_" or unicodedata.category(character) in ("Lu", "Ll", "Lt", "Nd")


def parse(z: str, response: str, ambiguity: Ambiguity = "skip") -> Judgement:
    """Read an answer about `response`. A quote that is not there is counted in `unmatched` and rewards nothing.

    `ambiguity` says what a quote means that occurs several times and does not say which (METHOD, "quote found
    twice"): its `first` occurrence, `all` of them, or none (`skip`); it is counted in `ambiguous` either way.
    Written k times in one list, a quote means its first k occurrences.

    Returns:
        the critique, or a `Failure`: `truncated` (the object does not end), `refused`, or `invalid`.
    """
    try:
        return _critique(_object(z), response, ambiguity)
    except _Unreadable as error:
        return Failure(kind=error.kind, message=str(error), raw=z)


def _object(z: str) -> Mapping[str, Any]:
    """The one JSON object in an answer; prose and a fence around it are passed over."""
    start = z.find("{")
    if start < 0:
        if _REFUSAL.search(z):
            raise _Unreadable("refused", "the model refused")
        raise _Unreadable("invalid", "no JSON object" if z.strip() else "empty answer")
    end = _end_of_object(z, start)
    rest = z[end:]
    if "{" in rest or '"' in rest.replace('""', ""):
        raise _Unreadable("invalid", "text after the object that looks like more of it")
    return _load(z[start:end])


def _end_of_object(z: str, start: int) -> int:
    """Where the object's last brace closes, strings skipped over in the quoting style of the object."""
    depth, place = 0, start
    style = "'" if re.match(r"\{\s*'", z[start:]) else '"'
    while place < len(z):
        character = z[place]
        if character in ("\"'" if style == "'" else '"'):
            place = _end_of_string(z, place)
            continue
        depth += (character in "{[") - (character in "}]")
        place += 1
        if depth == 0:
            return place
    raise _Unreadable("truncated", "the object does not end")


def _end_of_string(z: str, start: int) -> int:
    quote, place = z[start], start + 1
    while place < len(z):
        if z[place] == "\\":
            place += 2
        elif z[place] == quote:
            return place + 1
        else:
            place += 1
    raise _Unreadable("truncated", "a string does not end")


def _load(text: str) -> Mapping[str, Any]:
    """Strict JSON; else JSON without its trailing commas; else a Python literal, if it is one plainly."""
    for candidate in (text, _JSON_OR_COMMA.sub(lambda m: m[1] or m[2], text)):
        try:
            # strict=False: raw line breaks inside strings, which models write and which are not ambiguous
            value = json.loads(candidate, strict=False, object_pairs_hook=_no_repeats)
            break
        except ValueError as error:
            reason = str(error)
    else:
        value = _python_literal(text, reason)
    if not isinstance(value, Mapping):
        raise _Unreadable("invalid", "not an object")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Unreadable("invalid", "a key is given twice")
    return found


def _python_literal(text: str, reason: str) -> Any:
    if not re.match(r"\{\s*'", text):
        raise _Unreadable("invalid", f"not JSON: {reason}")
    try:
        kinds = [token.type for token in tokenize.generate_tokens(StringIO(text).readline)]
        tree = ast.parse(text.strip(), mode="eval")
        value = ast.literal_eval(tree)
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise _Unreadable("invalid", f"neither JSON nor a literal: {error}") from error
    kinds = [kind for kind in kinds if kind not in (tokenize.NL, tokenize.NEWLINE)]
    if any(a == b == tokenize.STRING for a, b in zip(kinds, kinds[1:], strict=False)):
        raise _Unreadable("invalid", "two strings side by side")  # Python would glue them together
    keys = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    for node in keys:
        names = [ast.dump(key) for key in node.keys if key is not None]
        if len(set(names)) != len(names):
            raise _Unreadable("invalid", "a key is given twice")
    return value


def _critique(z: Mapping[str, Any], response: str, ambiguity: Ambiguity) -> Critique:
    text_key = _one_of(z, _TEXT_KEYS, required=True)
    span_keys = {label: _one_of(z, names, required=True) for label, names in _KEYS}
    unknown = set(z) - {text_key, *span_keys.values(), "score"}
    if unknown:
        raise _Unreadable("invalid", f"unknown key {sorted(map(str, unknown))[0]!r}")
    text = z[text_key or ""]
    if not isinstance(text, str):
        raise _Unreadable("invalid", "the critique is not a text")
    spans: list[Span] = []
    unmatched = ambiguous = 0
    for label, key in span_keys.items():
        found = _ground(list(_quotes(z[key or ""])), response, label, ambiguity)
        spans += found[0]
        unmatched += found[1]
        ambiguous += found[2]
    return Critique(
        text=text, spans=_sorted(spans), score=_score(z), unmatched=unmatched, ambiguous=ambiguous
    )


def _one_of(z: Mapping[str, Any], names: Sequence[str], required: bool) -> str | None:
    present = [name for name in names if name in z]
    if len(present) > 1 or (required and not present):
        what = f"{' and '.join(present)} both given" if present else f"no {names[0]!r}"
        raise _Unreadable("invalid", what)
    return present[0] if present else None


def _score(z: Mapping[str, Any]) -> float | None:
    if "score" not in z:
        return None
    score = z["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1 <= score <= 1:
        raise _Unreadable("invalid", f"score is {score!r}, not a number from -1 to 1")
    return float(score)


def _quotes(items: Any) -> Iterator[Quote]:
    """Quotes of one label: a list of strings and objects, or the published {quote: reason} shape."""
    if isinstance(items, Mapping):
        items = [{"quote": quote, "reason": reason} for quote, reason in items.items()]
    if not isinstance(items, list):
        raise _Unreadable("invalid", "the spans are not a list")
    for item in items:
        yield _quote(item)


def _quote(item: Any) -> Quote:
    if isinstance(item, str):
        return Quote(item)
    if not isinstance(item, Mapping) or set(item) - _ITEM_KEYS or not isinstance(item.get("quote"), str):
        raise _Unreadable("invalid", "a span is neither a quote nor an object with one")
    reason, occurrence, part = item.get("reason", ""), item.get("occurrence"), item.get("part", False)
    counted = occurrence is None or (type(occurrence) is int and occurrence >= 1)
    if not isinstance(reason, str) or not counted or not isinstance(part, bool):
        raise _Unreadable("invalid", "a span's reason, occurrence or part has the wrong type")
    return Quote(item["quote"], reason, occurrence, part)


def _ground(
    quotes: Sequence[Quote], response: str, label: Label, ambiguity: Ambiguity
) -> tuple[list[Span], int, int]:
    """Spans of the quotes of one label, and how many were not found or did not say which."""
    mentions = Counter(quote.text for quote in quotes if quote.occurrence is None)
    used: Counter[str] = Counter()
    spans: list[Span] = []
    unmatched = ambiguous = 0
    for quote in quotes:
        places = occurrences(quote.text, response) if quote.part else candidates(quote.text, response)
        index = quote.occurrence
        if index is None and mentions[quote.text] > 1:
            used[quote.text] += 1
            index = used[quote.text]
        if index is None and len(places) > 1:
            ambiguous += 1
            places = {"first": places[:1], "all": places, "skip": []}[ambiguity]
        elif index is None or index <= len(places):
            places = places[index - 1 : index] if index else places
            unmatched += not places
        else:
            unmatched += 1
            places = []
        spans += [_span(place, quote, label) for place in places]
    return spans, unmatched, ambiguous


def _span(place: int, quote: Quote, label: Label) -> Span:
    end = place + len(quote.text)
    return Span(start=place, end=end, label=label, text=quote.text, reason=quote.reason)


def _sorted(spans: Sequence[Span]) -> tuple[Span, ...]:
    unique = {(span.start, span.end, -span.label, span.reason): span for span in spans}
    return tuple(unique[key] for key in sorted(unique))


def json_schema() -> dict[str, Any]:
    """The JSON schema of z, for servers that can be told to follow one."""
    item = {
        "type": "object",
        "properties": {
            "quote": {"type": "string"},
            "reason": {"type": "string"},
            "occurrence": {"type": "integer", "minimum": 1},
        },
        "required": ["quote", "reason"],
        "additionalProperties": False,
    }
    spans = {"type": "array", "items": item}
    return {
        "type": "object",
        "properties": {
            "critique": {"type": "string"},
            "good_spans": spans,
            "poor_spans": spans,
            "score": {"type": "number", "minimum": -1, "maximum": 1},
        },
        "required": ["critique", "good_spans", "poor_spans"],
        "additionalProperties": False,
    }
