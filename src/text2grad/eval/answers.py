"""Read files of answers by any system, and pair them with references or other answers.

A file is JSON Lines, JSON or CSV. A row has a `response` (or `output`), and either a `reference`
(and `prompt`) or the `id` of a held-out prompt of the task. `evaluate` writes such files too
(`<name>.answers.json`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from text2grad.data.conversations import Exchange, read_exchange
from text2grad.data.files import Row, bad_record, find_reference, find_texts, load_rows, name_text
from text2grad.data.published import refuse_shared_ids
from text2grad.data.spans.marks import as_turns
from text2grad.errors import UserError, warn_once
from text2grad.eval.judge import AnswerPair
from text2grad.feedback import Example

REFERENCES = "references"
"""Compare with the reference answers instead of a file."""
HeldoutExamples = Callable[[], Mapping[str, Example]]
"""Returns the held-out examples of the task by id; called only if a file needs them."""


class SystemAnswers(NamedTuple):
    """The answers of one system, one text per example.

    `missing` is the number of held-out prompts without an answer; None if the file has its own
    references.
    """

    name: str
    examples: list[Example]
    texts: list[str]
    missing: int | None


def system_name(file: Path) -> str:
    """Return the name of the system whose answers a file holds."""
    return re.sub(r"(\.answers)?\.[a-z]+(\.gz)?$", "", file.name)


def read_answers(file: Path, heldout: HeldoutExamples) -> SystemAnswers:
    """Read the answers in a file and their examples.

    Rows without a `reference` refer to the held-out examples of the task by `id`.

    Raises:
        UserError: the file cannot be read, or a row has no response, an empty reference or an
            unknown id.
    """
    rows = load_rows(str(file))
    if "tests" in rows[0] or "solution" in rows[0] or "completion" in rows[0]:
        raise UserError(f"{file} contains programs", "--answers is for texts with a 'response'")
    has_references = "reference" in rows[0]
    examples, texts = [], []
    for number, row in enumerate(rows, start=1):
        try:
            exchange = _parse_row(row)
            texts.append(exchange.response or "")
            if has_references:
                examples.append(_make_example(exchange, f"{file.stem}-{number}"))
            else:
                examples.append(_find_example(exchange.extra, heldout()))
        except ValueError as error:
            raise bad_record(file, number, error) from error
    answered_ids = {example.id for example in examples}
    missing = None if has_references else len(heldout().keys() - answered_ids)
    return SystemAnswers(system_name(file), examples, texts, missing)


def read_opponent(against: str, examples: Sequence[Example], heldout: HeldoutExamples) -> dict[str, str]:
    """Return the texts to compare with, by id: the references, or the answers in a file.

    Raises:
        UserError: see `read_answers`; or an id occurs twice.
    """
    if against == REFERENCES:
        refuse_shared_ids(examples, "answers")
        return {example.id: example.reference for example in examples if example.reference.strip()}
    other = read_answers(Path(against), heldout)
    texts = dict(zip([example.id for example in other.examples], other.texts, strict=True))
    if len(texts) < len(other.texts):
        raise UserError(f"{against} answers a prompt twice", "keep one answer per prompt")
    return texts


def _parse_row(row: Row) -> Exchange:
    """Return prompt and response of a row; warn once about text in other columns."""
    others = {name: value for name, value in row.items() if name != "output"}
    exchange = read_exchange({"response": row["output"], **others} if "output" in row else row)
    if exchange.response is None:
        raise ValueError("no column 'response'")
    for name in find_texts(exchange.extra, ("id", "reference")):
        warn_once(f"the text in column {name!r} is ignored: put the question in the prompt")
    return exchange


def _make_example(exchange: Exchange, fallback_id: str) -> Example:
    reference = find_reference(exchange.extra, "reference")
    if not reference:
        raise ValueError("the reference is empty")
    id = name_text(exchange.extra.get("id")) or fallback_id
    return Example(id=id, prompt=as_turns(exchange.prompt), reference=reference)


def _find_example(row: Row, heldout: Mapping[str, Example]) -> Example:
    if row.get("id") in (None, ""):
        raise ValueError("neither a 'reference' nor the 'id' of a prompt")
    example = heldout.get(str(row["id"]))
    if example is None:
        first = next(iter(heldout), "none")
        raise ValueError(f"no held-out prompt {str(row['id'])[:60]!r}, such as {first!r}: answers of another task?")
    if "tests" in example.meta:
        raise ValueError("its prompt has tests, but --answers is for texts")
    if not example.reference.strip():
        raise ValueError(f"the reference of prompt {example.id!r} is empty")
    return example


def pair_answers(
    name: str, against: str, examples: Sequence[Example], texts: Sequence[str], theirs: Mapping[str, str]
) -> list[AnswerPair]:
    """Pair the answers of two systems to the same prompts; `theirs` is by id.

    Raises:
        UserError: the other system did not answer a prompt, or a system answered it twice.
    """
    missing = [example.id for example in examples if example.id not in theirs]
    if missing:
        cure = "compare answers to the same prompts: the ids must agree"
        problem = f"{against} has no answer to {missing[0]!r} ({len(missing)} of {len(examples)} are missing)"
        raise UserError(problem, cure)
    ids = [example.id for example in examples]
    if repeated := next((id for id, count in Counter(ids).items() if count > 1), None):
        raise UserError(f"{name} answers {repeated!r} twice", "keep one answer per prompt")
    return [AnswerPair(example, text, theirs[example.id]) for example, text in zip(examples, texts, strict=True)]
