"""Published data sets: their rows as prompts, responses and critiques.

A `Shape` says by which keys a row is recognised and how it becomes an `Example`. SLF5K,
UltraFeedback and KodCode are read as published, and in the forms of the paper's own code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from text2grad.data.conversations import add_system_message, read_prompt, repeats_prompt
from text2grad.data.files import (
    Row,
    convert_rows,
    find_reference,
    find_texts,
    load_rows,
    optional_text,
    required_text,
)
from text2grad.data.keys import JUDGEMENT_COLUMNS, RECORD_KEYS, SYSTEM_KEYS
from text2grad.data.opinions import Importer, Names, Opinion, find_text
from text2grad.errors import UserError, warn_once
from text2grad.feedback import (
    DRAFT,
    HUMAN_FEEDBACK,
    Example,
    Feedback,
    Message,
    Record,
    ResponseText,
    Source,
    conversation_text,
)
from text2grad.json_text import to_json


class Response(Record):
    """A response to judge; `feedback` is a person's comment on it."""

    id: str = ""
    prompt: tuple[Message, ...] = Field(min_length=1)
    response: ResponseText
    reference: str = ""
    feedback: str = ""
    meta: dict[str, Any] = Field(default_factory=dict)


Answers = Iterator[tuple[str, str, dict[str, Any]]]
"""(suffix of the id, text, meta) of each response in a row."""


@dataclass(frozen=True)
class Shape:
    """A published kind of row.

    Attributes:
        name: for errors.
        keys: a row of this kind has these keys.
        example: `example(row, fallback_id)` returns the prompt; raises ValueError on a bad row.
        answers: returns the responses in a row, None for a kind that has none.
    """

    name: str
    keys: frozenset[str]
    example: Callable[[Row, str], Example]
    answers: Callable[[Row], Answers] | None = None


def read_examples(data: str, shapes: Sequence[Shape], limit: int | None = None, split: str = "") -> list[Example]:
    """Read the examples of a file or a hub data set, in order, each id once.

    Several rows may have one prompt (UltraFeedback has one per response): the first with a
    reference answer counts. Warns of other reference answers.

    Args:
        data: a local file or the name of a hub data set.
        shapes: the shapes to try, in order.
        limit: the number of rows to read, None for all.
        split: the split of the hub data set, "" for the one to train on.

    Raises:
        UserError: the data cannot be loaded, has no rows, an unknown shape or a bad row, or two
            prompts share an id.
    """
    rows = load_rows(data, limit, split)
    shape = next((shape for shape in shapes if shape.keys <= rows[0].keys()), None)
    if shape is None:
        listed = "; ".join(f"{shape.name}: {', '.join(sorted(shape.keys))}" for shape in shapes)
        keys = ", ".join(sorted(rows[0]))
        raise UserError(f"{data}: unknown shape with keys {keys}", f"known shapes: {listed}")
    convert = shape.example
    examples = list(convert_rows(rows, data, shape.keys, lambda *row: [convert(*row)], f"row of {shape.name}"))
    refuse_shared_ids(examples, data)
    by_id: dict[str, Example] = {}
    for example in examples:
        if example.id not in by_id or (example.reference and not by_id[example.id].reference):
            by_id[example.id] = example
    unused = sum(
        bool(example.reference) and example.reference != by_id[example.id].reference for example in examples
    )
    if unused:
        warn_once(f"{data}: {unused} rows have another reference answer to a prompt and id seen before: not used")
    return list(by_id.values())


def refuse_shared_ids(examples: Iterable[Example], source: str) -> None:
    """Refuse different prompts with one id.

    Raises:
        UserError: names the id and both prompts.
    """
    by_id: dict[str, Example] = {}
    for example in examples:
        first = by_id.setdefault(example.id, example)
        if first.prompt != example.prompt:
            prompts = " and ".join(repr(conversation_text(other.prompt)[:40]) for other in (first, example))
            raise UserError(
                f"{source}: two prompts have the id {example.id!r}: {prompts}",
                "give each prompt an id of its own, or leave the ids out",
            )


def single_turn_example(id: str, content: str, reference: str, meta: Mapping[str, str]) -> Example:
    """Return an example of one user turn, without empty `meta`."""
    meta = {name: text for name, text in meta.items() if text}
    return Example(id=id, prompt=(Message(role="user", content=content),), reference=reference, meta=meta)


# SLF5K.


def _slf5k(row: Row, fallback_id: str) -> Example:
    title, post = optional_text(row, "title"), required_text(row, "post")
    return _post(str(row.get("id") or row.get("idx") or fallback_id), title, post, row)


def _paper_slf5k(row: Row, fallback_id: str) -> Example:
    """Read the input file of the paper's code: post and generated summary, no reference."""
    return _post(str(row.get("id") or fallback_id), "", required_text(row, "Post"), row)


def _post(id: str, title: str, post: str, row: Row) -> Example:
    heading = f"Title: {title}\n\n" if title else ""
    content = f"Write a short summary of this post.\n\n{heading}{post}"
    feedback, draft = optional_text(row, "feedback"), optional_text(row, "generated_summary_for_feedback")
    reference = optional_text(row, "ideal_human_summary", "tldr_human_reference_summary")
    return single_turn_example(id, content, reference, {HUMAN_FEEDBACK: feedback, DRAFT: draft})


def _draft(key: str) -> Callable[[Row], Answers]:
    """Read the draft that the human feedback of a row is about."""
    return lambda row: iter([("", required_text(row, key), {})])


SLF5K = (
    Shape("SLF5K", frozenset({"title", "post"}), _slf5k, _draft("generated_summary_for_feedback")),
    Shape("Text2Grad's SLF5K file", frozenset({"Post"}), _paper_slf5k, _draft("generated_summary")),
)


# UltraFeedback, questions, and feedback of our own.

_JUDGEMENTS = tuple(column for column in JUDGEMENT_COLUMNS if column != "corrected")
"""Keys of judgements: a response that is judged is not a reference answer."""
_QUESTION_KEYS = {*_JUDGEMENTS, *SYSTEM_KEYS, "prompt", "id", "prompt_id", "response", "reference", "corrected"}
TURNS = "Text2Grad's UltraFeedback file"


def _imported(row: Row, fallback_id: str) -> Example:
    """Read the prompt of a record of ours; the reference is the corrected answer, if any."""
    record = Feedback.model_validate(row)
    corrected, gold = optional_text(record.meta, "corrected"), optional_text(record.meta, "gold")
    reference = corrected or gold if "corrected" in record.meta else ""
    return Example(id=record.id, prompt=record.prompt, reference=reference, meta=record.meta)


def _binarized(row: Row, fallback_id: str) -> Example:
    *prompt, answer = parse_conversation(row["chosen"], "chosen")
    return _example(row, fallback_id, prompt, answer.content)


def _pair(row: Row) -> Answers:
    for key in ("chosen", "rejected"):
        yield key, parse_conversation(row[key], key)[-1].content, {}


def question_example(row: Row, fallback_id: str) -> Example:
    """Read a question, as text or chat turns, with its reference answer.

    The reference is `reference`, else `corrected`, else `response` unless it is judged.
    """
    prompt, _ = add_system_message(row, *read_prompt(row))
    if not prompt:
        raise ValueError("no text in 'prompt'")
    for name in find_texts(row, _QUESTION_KEYS):
        warn_once(f"{name!r} holds text that is not part of the prompt: move what matters there")
    response = row.get("response")
    has_turns = isinstance(response, list) and any(isinstance(item, dict) for item in response)
    answer = () if has_turns or any(row.get(name) for name in _JUDGEMENTS) else ("response",)
    return _example(row, fallback_id, prompt, find_reference(row, "reference", "corrected", *answer))


def _paper_ultrafeedback(row: Row, fallback_id: str) -> Example:
    """Read a row of one response; only a chosen response is a reference."""
    if not repeats_prompt(row):
        return question_example(row, fallback_id)
    *prompt, answer = parse_conversation(row["response"], "response")
    return _example(row, fallback_id, prompt, answer.content if row.get("is_chosen") else "")


def _last_turn(row: Row) -> Answers:
    # A prompt has two rows, with the chosen and the rejected answer.
    is_chosen = row.get("is_chosen")
    suffix = ("chosen" if is_chosen else "rejected") if isinstance(is_chosen, bool) else ""
    meta = {"overall_score": row["score"]} if row.get("score") is not None else {}
    yield suffix, parse_conversation(row["response"], "response")[-1].content, meta


def _ultrafeedback(row: Row, fallback_id: str) -> Example:
    """Read a row of four completions; the reference is the one with the best score."""
    completions = [completion for completion in row["completions"] if isinstance(completion, dict)]
    scored = [completion for completion in completions if isinstance(completion.get("overall_score"), int | float)]
    best = max(scored, key=lambda completion: float(completion["overall_score"]), default={})
    prompt = [Message(role="user", content=required_text(row, "instruction"))]
    return _example(row, fallback_id, prompt, optional_text(best, "response"))


def _completions(row: Row) -> Answers:
    for number, completion in enumerate(row["completions"], start=1):
        if not isinstance(completion, dict) or not isinstance(completion.get("response"), str):
            raise ValueError(f"completion {number} has no 'response'")
        meta = {name: completion[name] for name in ("model", "overall_score") if completion.get(name) is not None}
        yield str(number), completion["response"], meta


def parse_conversation(value: Any, key: str) -> list[Message]:
    """Parse a conversation that ends with an answer; `key` names it in errors.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError(f"{key!r} is not a conversation that ends with an answer")
    turns = [Message.model_validate(turn) for turn in value]
    if turns[-1].role != "assistant":
        raise ValueError(f"{key!r} does not end with the assistant")
    return turns


def _example(row: Row, fallback_id: str, prompt: Sequence[Message], reference: str) -> Example:
    id = find_text(row, "prompt_id", "id") or fallback_id
    return Example(id=id, prompt=tuple(prompt), reference=reference)


QUESTIONS = (
    Shape("imported feedback", RECORD_KEYS | {"spans"}, _imported),
    Shape("UltraFeedback binarized", frozenset({"prompt", "chosen", "rejected"}), _binarized, _pair),
    Shape(TURNS, frozenset({"prompt", "response"}), _paper_ultrafeedback, _last_turn),
    Shape("UltraFeedback", frozenset({"instruction", "completions"}), _ultrafeedback, _completions),
    Shape("questions", frozenset({"prompt"}), question_example),
)


# KodCode.


def _kodcode(row: Row, fallback_id: str) -> Example:
    tests = required_text(row, "test", "test_code")
    entry_point, declaration = _entry_point(row)
    question = required_text(row, "question").rstrip()
    # The question often leaves the function's name open; the tests do not.
    if declaration:
        question += f"\n\nStart from this declaration: `{declaration}`"
    meta = {"question": required_text(row, "question"), "tests": tests, "entry_point": entry_point}
    return single_turn_example(
        optional_text(row, "question_id", "conversation_id") or fallback_id,
        question,
        python_lines(optional_text(row, "solution")),
        meta,
    )


def python_lines(program: str) -> str:
    """Replace CRLF line ends, which MBPP has and a policy would learn to write."""
    return program.replace("\r\n", "\n")


def _entry_point(row: Row) -> tuple[str, str]:
    """Return the name and the declaration of the function under test, "" if unknown."""
    functions = row.get("test_info") or []
    first = functions[0] if isinstance(functions, list) and functions else {}
    if not isinstance(first, dict):
        raise ValueError("test_info is not a list of objects")
    return (
        optional_text(first, "function_name") or optional_text(row, "test_entry_point"),
        optional_text(first, "function_declaration"),
    )


def _programs(row: Row) -> Answers:
    """Yield the programs of models (such as `r1_solution`), else the row's own solution."""
    names = [name for name in row if name.endswith("_solution") and optional_text(row, name)]
    for name in names:
        model = name.removesuffix("_solution")
        yield model, row[name], {"model": model}
    if not names:
        yield "", required_text(row, "solution"), {}


KODCODE = (
    Shape("KodCode", frozenset({"question", "solution", "test"}), _kodcode, _programs),
    Shape("KodCode SFT", frozenset({"question", "solution", "test_code"}), _kodcode, _programs),
)


# Responses.


def responses_of(row: Mapping[str, Any]) -> list[Response] | None:
    """Return the responses in a row of SLF5K, UltraFeedback or KodCode; None for any other row.

    Each has the prompt that the task gives to its policy. Without an id, a digest of the row is the
    id.

    Args:
        row: one row of the data set, as parsed JSON.

    Returns:
        The responses with their prompts, or None.

    Raises:
        ValueError: a row of a published shape lacks a text or has something else in its place.
    """
    shape = next(
        (shape for shape in (*SLF5K, *QUESTIONS, *KODCODE) if shape.answers and shape.keys <= row.keys()), None
    )
    if shape is None or shape.answers is None or (shape.name == TURNS and not repeats_prompt(row)):
        return None
    digest = hashlib.sha256(to_json(row, sort_keys=True, default=str).encode()).hexdigest()
    try:
        example = shape.example(dict(row), digest[:16])
        return [_response(example, *answer) for answer in shape.answers(dict(row))]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a row of {shape.name}: {error}") from error


def _response(example: Example, suffix: str, text: str, meta: Mapping[str, Any]) -> Response:
    example_meta = {name: value for name, value in example.meta.items() if name not in (DRAFT, HUMAN_FEEDBACK)}
    return Response(
        id=f"{example.id}-{suffix}" if suffix else example.id,
        prompt=example.prompt,
        response=text,
        reference="" if text == example.reference else example.reference,
        feedback=str(example.meta.get(HUMAN_FEEDBACK, "")),
        meta={**example_meta, **meta},
    )


# Critiques without marks; `text2grad annotate --anchor` finds the words that they are about.

GPT_4 = Source(kind="llm", model="gpt-4")


def _drafts(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield the human feedback of SLF5K on the draft of a row, if there is any."""
    for response in responses_of(row) or ():
        if response.feedback.strip():
            opinion = Opinion(response.id or fallback_id, response.response, response.prompt, meta=response.meta)
            opinion.comments, opinion.corrected = [response.feedback], response.reference
            yield opinion


def _critiques(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield GPT-4's critiques in UltraFeedback, with scores from 1 to 10 as -1 to 1."""
    for response, completion in zip(responses_of(row) or (), row["completions"], strict=True):
        if critique := optional_text(completion, "critique"):
            opinion = Opinion(response.id, response.response, response.prompt, comments=[critique], source=GPT_4)
            opinion.meta, score = response.meta, completion.get("overall_score")
            if isinstance(score, int | float) and 1 <= score <= 10:
                opinion.score = round((float(score) - 5.5) / 4.5, 2)
            yield opinion


IMPORTERS = (
    Importer("slf5k", _drafts, frozenset({"title", "post", "generated_summary_for_feedback", "feedback"})),
    Importer("ultrafeedback", _critiques, frozenset({"instruction", "completions"})),
)
