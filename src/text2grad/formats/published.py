"""Rows of published data sets as responses to judge: SLF5K, UltraFeedback, its binarized form, KodCode, ILF; and
rows of the input files of the paper's own code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from text2grad.feedback import DRAFT, HUMAN_FEEDBACK, Example, Message, to_json
from text2grad.tasks import code, qa, summarization
from text2grad.tasks.loaders import text_of


@dataclass(frozen=True)
class Response:
    """One response of a published row. `feedback` is what a person wrote about exactly this text."""

    id: str
    prompt: str | tuple[Message, ...]
    response: str
    reference: str = ""
    feedback: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


Answers = Iterator[tuple[str, str, dict[str, Any]]]
"""(suffix of the id, text, what else is known of it)"""


def responses_of(row: Mapping[str, Any]) -> list[Response] | None:
    """The responses that a published row comes with, each its own record; None: it is of no published shape.

    A row without an id is known by a digest of what it says. The prompt is what the task asks its policy.

    Raises:
        ValueError: a row of a published shape lacks a text (its response, say), or has something else in its place.
    """
    shapes = (*summarization.SHAPES, *qa.shapes(), *code.SHAPES)
    shape = next((shape for shape in shapes if shape.name in ANSWERS and shape.keys <= row.keys()), None)
    if shape is None or (shape.name == TURNS and not qa.repeats_prompt(row)):
        return None  # a response without the prompt is a row of nobody's
    digest = hashlib.sha256(to_json(row, sort_keys=True, default=str).encode()).hexdigest()
    try:
        example = shape.example(dict(row), digest[:16])
        return [_response(example, *answer) for answer in ANSWERS[shape.name](row)]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a row of {shape.name}: {error}") from error


def _response(example: Example, suffix: str, text: str, known: Mapping[str, Any]) -> Response:
    meta = {name: value for name, value in example.meta.items() if name not in (DRAFT, HUMAN_FEEDBACK)}
    return Response(
        id=f"{example.id}-{suffix}" if suffix else example.id,
        prompt=example.prompt,
        response=text,
        reference="" if text == example.reference else example.reference,
        feedback=str(example.meta.get(HUMAN_FEEDBACK, "")),
        meta={**meta, **known},
    )


def _draft(*keys: str) -> Callable[[Mapping[str, Any]], Answers]:
    """The data set's own draft: what its human feedback is about."""
    return lambda row: iter([("", text_of(row, *keys), {})])


def _completions(row: Mapping[str, Any]) -> Answers:
    for number, completion in enumerate(row["completions"], start=1):
        if not isinstance(completion, dict) or not isinstance(completion.get("response"), str):
            raise ValueError(f"completion {number} has no 'response'")
        known = {name: completion[name] for name in ("model", "overall_score") if completion.get(name) is not None}
        yield str(number), completion["response"], known


def _pair(row: Mapping[str, Any]) -> Answers:
    for name in ("chosen", "rejected"):
        yield name, qa.conversation(row[name], name)[-1].content, {}


def _turns(row: Mapping[str, Any]) -> Answers:
    """The last turn; its prompt has two rows, a chosen and a rejected answer."""
    chosen = row.get("is_chosen")
    suffix = {True: "chosen", False: "rejected"}.get(chosen, "") if isinstance(chosen, bool) else ""
    known = {"overall_score": row["score"]} if row.get("score") is not None else {}
    yield suffix, qa.conversation(row["response"], "response")[-1].content, known


def _programs(row: Mapping[str, Any]) -> Answers:
    """What models wrote (`r1_solution`, say); where a row has none of that, its own solution."""
    found = [
        name for name in row if name.endswith("_solution") and isinstance(row[name], str) and row[name].strip()
    ]
    for name in found:
        model = name.removesuffix("_solution")
        yield model, row[name], {"model": model}
    if not found:
        yield "", text_of(row, "solution"), {}


TURNS = "Text2Grad's UltraFeedback file"
ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], Answers]] = {
    "SLF5K": _draft("generated_summary_for_feedback"),
    "Text2Grad's SLF5K file": _draft("generated_summary"),
    "UltraFeedback": _completions,
    TURNS: _turns,
    "UltraFeedback binarized": _pair,
    "KodCode": _programs,
    "KodCode SFT": _programs,
    "ILF": _draft("original_model_completion"),
}
"""By the names of the tasks' shapes, which make the prompt and the reference of a row."""
