"""Files of answers by any system: who answered what, and what it is compared with.

A file is JSON Lines, JSON or CSV. A row has `response` (or `output`), and either `reference` (and
`prompt`), or the `id` of a held-out prompt of the task. `evaluate` itself writes such files
(`<name>.answers.json`).
"""

from __future__ import annotations

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
"""In the place of a file to compare with: the reference answers."""
Known = Callable[[], Mapping[str, Example]]
"""The held-out prompts of the task by id; read only where a file needs them."""


class SystemAnswers(NamedTuple):
    """The answers of one system: a text to each example, and how many prompts of the task it did
    not answer."""

    name: str
    examples: list[Example]
    texts: list[str]
    missing: int | None


def name_of(file: Path) -> str:
    """What the answers of a file are called."""
    return file.name.partition(".")[0]


def read_answers(file: Path, known: Known) -> SystemAnswers:
    """The answers in a file, each with the example that it answers.

    Where rows bring no `reference`, the examples are those of the task with their ids.

    Raises:
        UserError: the file cannot be read, or a row has no response, an empty reference or an
            unknown id (which).
    """
    rows = load_rows(str(file))
    if "tests" in rows[0] or "solution" in rows[0] or "completion" in rows[0]:
        raise UserError(f"{file} holds programs", "--answers is for texts with a 'response'")
    own = "reference" in rows[0]
    examples, texts = [], []
    for number, row in enumerate(rows, start=1):
        try:
            asked = _read(row)
            texts.append(asked.response or "")
            examples.append(
                _own_example(asked, f"{file.stem}-{number}") if own else _known_example(asked.extra, known())
            )
        except ValueError as error:
            raise bad_record(file, number, error) from error
    answered = {example.id for example in examples}
    return SystemAnswers(name_of(file), examples, texts, None if own else len(known().keys() - answered))


def theirs_of(against: str, examples: Sequence[Example], known: Known) -> dict[str, str]:
    """What answers are compared with, by id: the references, or the answers in a file.

    Raises:
        UserError: see `read_answers`; or an id occurs twice.
    """
    if against == REFERENCES:
        refuse_shared_ids(examples, "answers")
        return {example.id: example.reference for example in examples if example.reference.strip()}
    other = read_answers(Path(against), known)
    found = dict(zip([example.id for example in other.examples], other.texts, strict=True))
    if len(found) < len(other.texts):
        raise UserError(f"{against} answers a prompt twice", "one answer to a prompt, to compare")
    return found


def _read(row: Row) -> Exchange:
    """Prompt and response of a row, which may call its response `output`; other texts are named on
    stderr, once."""
    others = {name: value for name, value in row.items() if name != "output"}
    asked = read_exchange({"response": row["output"], **others} if "output" in row else row)
    if asked.response is None:
        raise ValueError("no column 'response'")
    for name in find_texts(asked.extra, ("id", "reference")):
        warn_once(f"{name!r} holds text that is not read: what was asked belongs into the prompt")
    return asked


def _own_example(asked: Exchange, fallback: str) -> Example:
    reference = find_reference(asked.extra, "reference")
    if not reference:
        raise ValueError("the reference is empty")
    id = name_text(asked.extra.get("id")) or fallback
    return Example(id=id, prompt=as_turns(asked.prompt), reference=reference)


def _known_example(row: Row, known: Mapping[str, Example]) -> Example:
    if row.get("id") in (None, ""):
        raise ValueError("neither a 'reference' nor the 'id' of a prompt")
    example = known.get(str(row["id"]))
    if example is None:
        first = next(iter(known), "none")
        raise ValueError(f"no held-out prompt {str(row['id'])[:60]!r}, such as {first!r}: answers of another task?")
    if "tests" in example.meta:
        raise ValueError("its prompt has tests, and --answers is for texts")
    if not example.reference.strip():
        raise ValueError(f"the reference of prompt {example.id!r} is empty")
    return example


def pair_with(
    name: str, against: str, examples: Sequence[Example], texts: Sequence[str], theirs: Mapping[str, str]
) -> list[AnswerPair]:
    """Two answers to each prompt; `theirs` by id.

    Raises:
        UserError: a prompt has no answer by the other, or a system answers it twice.
    """
    lacking = [example.id for example in examples if example.id not in theirs]
    if lacking:
        cure = "compare answers to the same prompts: the ids must agree"
        raise UserError(f"{against} has no answer to {lacking[0]!r} ({len(lacking)} of {len(examples)} lack)", cure)
    ids = [example.id for example in examples]
    if repeated := next((id for id in ids if ids.count(id) > 1), None):
        raise UserError(f"{name} answers {repeated!r} twice", "one answer to a prompt, to compare")
    return [AnswerPair(each, text, theirs[each.id]) for each, text in zip(examples, texts, strict=True)]
