"""Published data sets: their shapes as prompts, and the responses and critiques that their rows
come with.

A `Shape` says by which keys a row is recognised and how it becomes an `Example`. SLF5K,
UltraFeedback and KodCode are read in their published forms and in those of the paper's own code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from text2grad.data.conversations import SYSTEMS, add_system_message, read_prompt, repeats_prompt
from text2grad.data.files import (
    Row,
    convert_rows,
    find_reference,
    find_texts,
    load_rows,
    optional_text,
    required_text,
)
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


@dataclass(frozen=True)
class Shape:
    """A published kind of row, known by `keys`. `example(row, id)` raises ValueError on a bad
    row."""

    name: str
    keys: frozenset[str]
    example: Callable[[Row, str], Example]


def read_examples(data: str, shapes: Sequence[Shape], limit: int | None = None, split: str = "") -> list[Example]:
    """The examples of a local file (`read_rows`) or of a split of a hub data set, in order, each id
    once.

    `limit` counts rows. Where several rows ask the same (UltraFeedback has one per response), the
    first that brings a reference answer is kept, in the place of the first; other reference answers
    are counted on stderr.

    Raises:
        UserError: the data cannot be loaded, has no rows or an unknown format, a row is bad (which
            one), or two prompts have one id.
    """
    rows = load_rows(data, limit, split)
    shape = _shape_of(rows[0], shapes, data)
    convert = convert_rows(rows, data, shape.keys, lambda *row: [shape.example(*row)], f"row of {shape.name}")
    found = list(convert)
    refuse_shared_ids(found, data)
    kept: dict[str, Example] = {}
    for example in found:
        if example.id not in kept or (example.reference and not kept[example.id].reference):
            kept[example.id] = example
    other = sum(bool(each.reference) and each.reference != kept[each.id].reference for each in found)
    if other:
        warn_once(f"{data}: {other} rows have another reference answer to a prompt and id seen before: not used")
    return list(kept.values())


def _shape_of(row: Row, shapes: Sequence[Shape], data: str) -> Shape:
    for shape in shapes:
        if shape.keys <= row.keys():
            return shape
    known = "; ".join(f"{shape.name}: {', '.join(sorted(shape.keys))}" for shape in shapes)
    raise UserError(f"{data}: unknown shape with keys {', '.join(sorted(row))}", f"known shapes: {known}")


def refuse_shared_ids(examples: Iterable[Example], source: str) -> None:
    """Refuse two prompts with one id: what is known of the one would be taken for the other. One
    prompt may repeat.

    Raises:
        UserError: names the id and both prompts.
    """
    asked: dict[str, Example] = {}
    for example in examples:
        first = asked.setdefault(example.id, example)
        if first.prompt != example.prompt:
            prompts = " and ".join(repr(conversation_text(each.prompt)[:40]) for each in (first, example))
            raise UserError(
                f"{source}: two prompts have the id {example.id!r}: {prompts}",
                "give each prompt an id of its own, or leave the ids out",
            )


def single_turn_example(id: str, content: str, reference: str, meta: Mapping[str, str]) -> Example:
    """An example that is one user turn; of `meta`, what is empty is left out."""
    kept = {name: text for name, text in meta.items() if text}
    return Example(id=id, prompt=(Message(role="user", content=content),), reference=reference, meta=kept)


# SLF5K.


def _slf5k(row: Row, fallback_id: str) -> Example:
    title, post = optional_text(row, "title"), required_text(row, "post")
    return _post(str(row.get("id") or row.get("idx") or fallback_id), title, post, row)


def _slf5k_of_paper(row: Row, fallback_id: str) -> Example:
    """The input file of the paper's own code: post and generated summary by post id, no
    reference."""
    return _post(str(row.get("id") or fallback_id), "", required_text(row, "Post"), row)


def _post(id: str, title: str, post: str, row: Row) -> Example:
    heading = f"Title: {title}\n\n" if title else ""
    content = f"Write a short summary of this post.\n\n{heading}{post}"
    feedback, draft = optional_text(row, "feedback"), optional_text(row, "generated_summary_for_feedback")
    reference = optional_text(row, "ideal_human_summary", "tldr_human_reference_summary")
    return single_turn_example(id, content, reference, {HUMAN_FEEDBACK: feedback, DRAFT: draft})


SLF5K = (
    Shape("SLF5K", frozenset({"title", "post"}), _slf5k),
    Shape("Text2Grad's SLF5K file", frozenset({"Post"}), _slf5k_of_paper),
)


# UltraFeedback, questions, and feedback of our own.

IMPORTED_KEYS = frozenset({"id", "prompt", "response", "spans", "source"})
REMARKED = ("critique", "good", "poor", "spans", "score")
"""Keys of rows that say something about their response: it is not a reference answer."""
_OF_A_QUESTION = {*REMARKED, *SYSTEMS, "prompt", "id", "prompt_id", "response", "reference", "corrected"}
TURNS = "Text2Grad's UltraFeedback file"


def _imported(row: Row, fallback_id: str) -> Example:
    """The prompt of a record of ours; its reference is the answer as people corrected it, if they
    did."""
    record = Feedback.model_validate(row)
    corrected, gold = optional_text(record.meta, "corrected"), optional_text(record.meta, "gold")
    reference = corrected or gold if "corrected" in record.meta else ""
    return Example(id=record.id, prompt=record.prompt, reference=reference, meta=record.meta)


def _binarized(row: Row, fallback_id: str) -> Example:
    *prompt, answer = parse_conversation(row["chosen"], "chosen")
    return _example(row, fallback_id, prompt, answer.content)


def question_example(row: Row, fallback_id: str) -> Example:
    """A question, as text or chat turns, with its reference answer: `reference`, else `response`
    where nothing is said against it, else as it was corrected.
    """
    prompt, _ = add_system_message(row, *read_prompt(row))
    if not prompt:
        raise ValueError("no text in 'prompt'")
    for name in find_texts(row, _OF_A_QUESTION):
        warn_once(f"{name!r} holds text that is no part of the prompt: what counts of it belongs there")
    turns = isinstance(row.get("response"), list) and any(isinstance(each, dict) for each in row["response"])
    plain = () if turns or any(row.get(name) for name in REMARKED) else ("response",)
    return _example(row, fallback_id, prompt, find_reference(row, "reference", "corrected", *plain))


def _turns_of_paper(row: Row, fallback_id: str) -> Example:
    """One row per response; only a chosen one may stand as reference. One without the prompt is an
    answer."""
    if not repeats_prompt(row):
        return question_example(row, fallback_id)
    *prompt, answer = parse_conversation(row["response"], "response")
    return _example(row, fallback_id, prompt, answer.content if row.get("is_chosen") else "")


def _ultrafeedback(row: Row, fallback_id: str) -> Example:
    """The original, four completions each; the reference is the best one, where scores tell
    which."""
    completions = [completion for completion in row["completions"] if isinstance(completion, dict)]
    scored = [completion for completion in completions if isinstance(completion.get("overall_score"), int | float)]
    best = max(scored, key=lambda completion: float(completion["overall_score"]), default={})
    prompt = [Message(role="user", content=required_text(row, "instruction"))]
    return _example(row, fallback_id, prompt, optional_text(best, "response"))


def parse_conversation(value: Any, key: str) -> list[Message]:
    """The turns of a conversation that ends with an answer; `key` is where it stands.

    Raises:
        ValueError: it is not one.
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
    Shape("imported feedback", IMPORTED_KEYS, _imported),
    Shape("UltraFeedback binarized", frozenset({"prompt", "chosen", "rejected"}), _binarized),
    Shape(TURNS, frozenset({"prompt", "response"}), _turns_of_paper),
    Shape("UltraFeedback", frozenset({"instruction", "completions"}), _ultrafeedback),
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
    """A program with line ends of one character; MBPP's have two, which a policy would learn to
    write."""
    return program.replace("\r\n", "\n")


def _entry_point(row: Row) -> tuple[str, str]:
    """Name and declaration of the function the tests call, "" where the row does not say."""
    functions = row.get("test_info") or []
    first = functions[0] if isinstance(functions, list) and functions else {}
    if not isinstance(first, dict):
        raise ValueError("test_info is not a list of objects")
    return (
        optional_text(first, "function_name") or optional_text(row, "test_entry_point"),
        optional_text(first, "function_declaration"),
    )


KODCODE = (
    Shape("KodCode", frozenset({"question", "solution", "test"}), _kodcode),
    Shape("KodCode SFT", frozenset({"question", "solution", "test_code"}), _kodcode),
)


# Responses.


class Response(Record):
    """A response to judge. `feedback` is what a person wrote about exactly this text."""

    id: str = ""
    prompt: tuple[Message, ...] = Field(min_length=1)
    response: ResponseText
    reference: str = ""
    feedback: str = ""
    meta: dict[str, Any] = Field(default_factory=dict)


Answers = Iterator[tuple[str, str, dict[str, Any]]]
"""(suffix of the id, text, what else is known of it)"""


def responses_of(row: Mapping[str, Any]) -> list[Response] | None:
    """The responses that a published row comes with.

    Args:
        row: of SLF5K, UltraFeedback or KodCode. One without an id is known by a digest of what it
            says.

    Returns:
        A record for each response, its prompt what the task asks its policy; None: it is of no
        published shape.

    Raises:
        ValueError: a row of a published shape lacks a text (its response, say), or has something
            else in its place.
    """
    shape = next(
        (shape for shape in (*SLF5K, *QUESTIONS, *KODCODE) if shape.name in ANSWERS and shape.keys <= row.keys()),
        None,
    )
    if shape is None or (shape.name == TURNS and not repeats_prompt(row)):
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
    return lambda row: iter([("", required_text(row, *keys), {})])


def _completions(row: Mapping[str, Any]) -> Answers:
    for number, completion in enumerate(row["completions"], start=1):
        if not isinstance(completion, dict) or not isinstance(completion.get("response"), str):
            raise ValueError(f"completion {number} has no 'response'")
        known = {name: completion[name] for name in ("model", "overall_score") if completion.get(name) is not None}
        yield str(number), completion["response"], known


def _pair(row: Mapping[str, Any]) -> Answers:
    for name in ("chosen", "rejected"):
        yield name, parse_conversation(row[name], name)[-1].content, {}


def _turns(row: Mapping[str, Any]) -> Answers:
    """The last turn; its prompt has two rows, a chosen and a rejected answer."""
    chosen = row.get("is_chosen")
    suffix = {True: "chosen", False: "rejected"}.get(chosen, "") if isinstance(chosen, bool) else ""
    known = {"overall_score": row["score"]} if row.get("score") is not None else {}
    yield suffix, parse_conversation(row["response"], "response")[-1].content, known


def _programs(row: Mapping[str, Any]) -> Answers:
    """What models wrote (`r1_solution`, say); where a row has none of that, its own solution."""
    found = [
        name for name in row if name.endswith("_solution") and isinstance(row[name], str) and row[name].strip()
    ]
    for name in found:
        model = name.removesuffix("_solution")
        yield model, row[name], {"model": model}
    if not found:
        yield "", required_text(row, "solution"), {}


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], Answers]] = {
    "SLF5K": _draft("generated_summary_for_feedback"),
    "Text2Grad's SLF5K file": _draft("generated_summary"),
    "UltraFeedback": _completions,
    TURNS: _turns,
    "UltraFeedback binarized": _pair,
    "KodCode": _programs,
    "KodCode SFT": _programs,
}
"""By the names of the shapes, which make the prompt and the reference of a row."""


# Critiques without marks; `text2grad annotate --anchor` finds the words they are about.

GPT_4 = Source(kind="llm", model="gpt-4")


def _drafts(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """SLF5K: what a person wrote about the draft of a row; nothing where nobody did."""
    for response in responses_of(row) or ():
        if response.feedback.strip():
            opinion = Opinion(response.id or fallback_id, response.response, response.prompt, meta=response.meta)
            opinion.comments, opinion.corrected = [response.feedback], response.reference
            yield opinion


def _critiques(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """UltraFeedback: GPT-4's critique of every completion that has one, and its score of 1 to 10 as
    -1 to 1."""
    for response, completion in zip(responses_of(row) or (), row["completions"], strict=True):
        if words := optional_text(completion, "critique"):
            opinion = Opinion(response.id, response.response, response.prompt, comments=[words], source=GPT_4)
            opinion.meta, score = response.meta, completion.get("overall_score")
            if isinstance(score, int | float) and 1 <= score <= 10:
                opinion.score = round((float(score) - 5.5) / 4.5, 2)
            yield opinion


IMPORTERS = (
    Importer("slf5k", _drafts, frozenset({"title", "post", "generated_summary_for_feedback", "feedback"})),
    Importer("ultrafeedback", _critiques, frozenset({"instruction", "completions"})),
)
