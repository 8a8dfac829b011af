"""What the cells of a remark hold: text and chat turns, lists, and scores as people write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from text2grad.errors import UsageError
from text2grad.feedback import Message, from_json
from text2grad.formats.marks import POLARITY
from text2grad.formats.remarks.columns import RATINGS
from text2grad.formats.scale import Reading, Scale, number_of, share_of, verdict
from text2grad.tasks.loaders import Row

DECLARED = Scale(-1, 1, "as scores of this format are")
_ROLES = ("system", "user", "assistant", "tool")
_REPR_OF_TURNS = re.compile(r"""\s*\[?\s*\{\s*'(?:role|content)'\s*:""")


def is_filled(value: Any) -> bool:
    """Whether a cell says anything: an empty list, blank text and NaN do not."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return not missing and str(value).strip() not in ("", "[]")


def text_of(row: Mapping[str, Any], name: str) -> str:
    """The text of a cell, "" where it is empty; of the critique, a list of texts is one in a line each.

    Raises:
        ValueError: it is no text.
    """
    value = row.get(name)
    if isinstance(value, str):
        return value
    if not is_filled(value):
        return ""
    if name == "critique" and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    if name in ("id", "annotator") and (number := number_of(value)) is not None and number.is_integer():
        return str(int(number))
    raise ValueError(f"the {name} is {kind_of(value)}, not text; write it as text, in quotation marks")


def kind_of(value: Any) -> str:
    """What a value of JSON is, in words."""
    if isinstance(value, bool):
        return f"the value {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    return "a list" if isinstance(value, list) else "an object"


def turns_of(value: Any, name: str) -> tuple[Message, ...]:
    """The chat turns of a cell that has some: a list of them, one alone, or a list as JSON text; empty: it is text.

    Raises:
        ValueError: it is another list or object, or a turn has something else than text.
    """
    if isinstance(value, str):
        if _REPR_OF_TURNS.match(value):
            raise ValueError(f"the {name} is chat turns as Python prints them; write them as JSON")
        found = _json(value) if value.lstrip().startswith(("[", "{")) else None
        listed = [found] if isinstance(found, dict) else found if isinstance(found, list) else []
        value = listed if all(map(is_turn, listed)) else None
    if isinstance(value, dict):
        value = [{"role": "assistant", **value} if name != "prompt" and "content" in value else value]
    if not isinstance(value, list):
        return ()
    return tuple(_turn(turn, name) for turn in value)


def _json(text: str) -> Any:
    try:
        return from_json(text)
    except json.JSONDecodeError:
        return None


def is_turn(value: Any) -> bool:
    """Whether this is a chat turn."""
    return isinstance(value, dict) and value.get("role") in _ROLES and "content" in value


def _turn(value: Any, name: str) -> Message:
    if not is_turn(value):
        shape = '{"role": "assistant", "content": "..."}'
        raise ValueError(f"the {name} is neither text nor a list of turns such as {shape}: {str(value)[:40]!r}")
    content = value["content"]
    if isinstance(content, list) and all(
        isinstance(part, dict) and set(part) == {"type", "text"} and isinstance(part["text"], str)
        for part in content
    ):
        content = "".join(part["text"] for part in content)
    if value.get("tool_calls") or not isinstance(content, str):
        raise ValueError(f"a turn of the {name} calls tools or has something else than text; write the text alone")
    return Message(role=value["role"], content=content)


def spans_in(value: Any) -> list[dict[str, Any]]:
    """The spans in a cell, or in its JSON text; none where it is empty.

    Raises:
        ValueError: it holds something else than objects.
    """
    found = (_json(value) if isinstance(value, str) else value) if is_filled(value) else []
    if not isinstance(found, list | dict):
        raise ValueError(f"the spans are no list of objects, as JSON: {str(value)[:40]!r}")
    spans = found if isinstance(found, list) else [found]
    if odd := [span for span in spans if not isinstance(span, dict)]:
        raise ValueError(f'a span is an object {{"text", "label", "reason"}}, not {odd[0]!r:.40}')
    return spans


class Scores(NamedTuple):
    """The column that has the scores, the score of a row, how the column was read, and what of it has no score."""

    name: str
    of: Callable[[Row], float | None]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def scores_of(rows: Sequence[Row], given: Mapping[str, Scale]) -> Scores:
    """How the scores of a file are read: `score` is from -1 to 1 unless `given` ("" or its name) has its scale.

    Of a rating the scale is given or shown by all values (`formats.scale`). `4/5` and `80 %` say it themselves.

    Raises:
        UsageError: `given` is of a rating that the file has not.
    """
    there = [name for name in ("score", *RATINGS) if any(is_filled(row.get(name)) for row in rows)]
    if given and not set(given) & {"", *there}:
        known = f"ratings there: {', '.join(there) or 'none'}"
        raise UsageError(f"--scale: the file has no rating {next(iter(given))!r}", known)
    name = next((name for name in there if name in given), next(iter(there), ""))
    values = [row[name] for row in rows if is_filled(row.get(name))]
    shares = [(value, share) for value in values if (share := _of_maximum(value)) is not None][:1]
    notes = [
        f"{str(v).strip()} read as {s:g}: of 0 to its own maximum (1 is worst: --scale 1..5)" for v, s in shares
    ]
    scale = given.get(name) or given.get("")
    if name == "score":
        if scale and not scale.words:
            notes.insert(0, f"ratings {scale} read as -1 to 1 (score: {scale.declared})")
        elif not scale and len(rows) > 1 and {number_of(row.get(name)) for row in rows} - {None} == {0.0, 1.0}:
            thumbs = "scores 0 and 1 read as they are, and 0 is neither good nor bad (thumbs: --scale 0..1)"
            notes.insert(0, thumbs)
        return Scores(name, lambda row: score_of(row.get(name), scale or DECLARED), tuple(notes))
    reading = Reading(name, [value for value in values if _of_maximum(value) is None], scale)

    def score(row: Row) -> float | None:
        share = _of_maximum(row.get(name), reading.scale)
        return reading.score(row.get(name)) if share is None and is_filled(row.get(name)) else share

    return Scores(name, score, tuple(filter(None, [reading.line, *notes])), tuple(filter(None, [reading.problem])))


def score_of(value: Any, scale: Scale = DECLARED) -> float | None:
    """A score: a number on the scale, `4/5` or `80 %` of their own, or a word of praise or of blame.

    Raises:
        ValueError: it is none of these.
    """
    if not is_filled(value):
        return None
    if (share := _of_maximum(value, scale)) is not None:
        return share
    shown, number = str(value).strip(), number_of(value)
    found = scale.score(value)
    if found is not None:
        return number if scale is DECLARED else found
    if number is not None:
        raise ValueError(f"the score {shown[:20]} is not between {scale.low:g} and {scale.high:g}")
    word = shown.casefold()
    label = verdict(word) if verdict(word) is not None else POLARITY.get(word) if word.isalpha() else None
    if label is None:
        raise ValueError(f"the score {shown[:20]!r} is not a number (none: leave the cell empty)")
    return float(label)


def _of_maximum(value: Any, scale: Scale | None = None) -> float | None:
    """`4/5` or `80 %` as a score from -1 to 1: of 0 to that maximum, or on a scale that ends there."""
    if (share := share_of(value)) is None:
        return None
    part, most = share
    if scale is not None and scale is not DECLARED and scale.high == most:
        return scale.score(value)
    return round(2 * part / most - 1, 6) if most and 0 <= part <= most else None
