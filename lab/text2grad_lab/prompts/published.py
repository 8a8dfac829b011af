"""Answer formats of the paper's appendix B, whose keys differ from format z."""

from __future__ import annotations

import json
from typing import Any

from text2grad import wire
from text2grad.critics.prompted import AnswerFormat
from text2grad.feedback import Failure, Judgement, Tolerance
from text2grad.json_text import storable
from text2grad.wire.objects import UnreadableError, read_object

_KEYS = {
    "textual_feedback": "critique",
    "code_feedback": "critique",
    "wrong_code": "poor_spans",
    "improvement_code": "improvable_spans",
}
"""The keys of z by the lower-case keys of the paper."""


def parse_published(answer: str, response: str, tolerance: Tolerance = "exact") -> Judgement:
    """Parse an answer with the paper's keys or those of z, like `wire.parse`."""
    try:
        value = read_object(answer, response)
    except UnreadableError:
        return wire.parse(answer, response, tolerance)
    pairs = [(_KEYS.get(key.strip().lower().replace(" ", "_"), key), item) for key, item in value.items()]
    renamed = dict(pairs)
    if len(renamed) < len(pairs):
        return Failure(kind="invalid", message="a key occurs twice", raw=storable(answer))
    critique = wire.parse(json.dumps(renamed, ensure_ascii=False), response, tolerance)
    return critique.model_copy(update={"raw": storable(answer)}) if isinstance(critique, Failure) else critique


def _format(critique: str, *lists: str) -> AnswerFormat:
    """Return the format of answers with these keys."""

    def schema(prompt: str, turns: bool) -> dict[str, Any]:
        fields = wire.json_schema(turns=turns)["properties"]
        properties = {critique: fields["critique"], **dict.fromkeys(lists, fields["good_spans"])}
        shape = {"type": "object", "properties": properties, "required": list(properties)}
        return {**shape, "additionalProperties": False}

    return AnswerFormat(schema, parse_published)


TEXT = _format("textual_feedback", "good_spans", "poor_spans")
"""The format of B.1 and B.2."""
CODE = _format("Code Feedback", "wrong_code", "improvement_code")
"""The format of B.3."""
