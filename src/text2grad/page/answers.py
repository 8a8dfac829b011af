"""The answers that a person marks: of feedback records, of any file of answers, or of a run in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from text2grad.errors import UserError
from text2grad.eval.critics.marks import numbered
from text2grad.feedback import OF_A_JUDGEMENT, Example, Failure, Feedback, Source, from_json, read_jsonl, reading
from text2grad.feedback import key_of as response_key
from text2grad.formats.responses import read_items
from text2grad.report.folder import Sample, read_methods

NOT_MARKED = Failure(kind="unsupported", message="nobody has judged this answer yet")
REWARD_MODEL = Source(kind="reward_model")


@dataclass(frozen=True)
class Item:
    """One answer to mark. `suggestions` are what critics have said of it, `people` what each annotator has.

    `name` is how marks name it in its file (`eval.critics.marks.numbered`).
    """

    example: Example
    response: str
    name: str = ""
    suggestions: tuple[Feedback, ...] = ()
    people: Mapping[str, Feedback] = field(default_factory=dict)


Items = Mapping[str, Item]
"""Answers by a key of their content, in the order of the file."""


def read_answers(path: Path) -> Items:
    """The answers of a run folder, of feedback records, or of a file of answers (`formats.responses`).

    Raises:
        UserError: nothing there can be read, or there is no answer in it.
    """
    records, cure = _records(path)
    items = items_of(records)
    if not items:
        raise UserError(f"no answers to mark in {path}", cure)
    return items


def _records(path: Path) -> tuple[list[Feedback], str]:
    """What there is to mark, and the command that makes some."""
    if path.is_dir():
        found = [_of_sample(m.name, sample) for m in read_methods(path, []) for sample in m.samples]
        if not found and (path / "feedback.jsonl").is_file():
            found = list(read_jsonl(path / "feedback.jsonl", Feedback))
        return found, "text2grad train writes samples into its folder as it goes"
    if _holds_records(path):
        found = list(read_jsonl(path, Feedback))
    else:
        found = [
            Feedback.of(item.example, item.response, NOT_MARKED, Source(kind="human")) for item in read_items(path)
        ]
    return found, "text2grad sample --prompts FILE --out answers.jsonl makes some"


def _holds_records(path: Path) -> bool:
    """Whether the first line of a file is a feedback record."""
    with reading(path), path.open(encoding="utf-8-sig", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        row = from_json(first)
    except ValueError:
        return False
    return isinstance(row, dict) and {"source", "response"} <= row.keys()


def _of_sample(method: str, sample: Sample) -> Feedback:
    """A sample of a run as a record of the critic that judged it; spans that do not quote it are left out."""
    spans = tuple(each for each in sample.spans if sample.response[each.start : each.end] == each.text)
    judged = sample.failure or NOT_MARKED if not (sample.critique or sample.spans) else None
    meta = {"policy": method, "step": sample.step}
    return Feedback(
        id=sample.id or f"step-{sample.step}",
        prompt=sample.prompt,
        response=sample.response,
        critique="" if judged else sample.critique,
        spans=() if judged else spans,
        score=None if judged else sample.score,
        error=judged,
        source=REWARD_MODEL,
        meta=meta | ({"lost": list(sample.lost)} if sample.lost else {}),
    )


def key_of(example: Example, response: str) -> str:
    """The key of an answer: of its content, never of its line."""
    words = "\0".join((example.id, *(turn.content for turn in example.prompt), response_key(response)))
    return blake2b(words.encode("utf-8", "replace"), digest_size=12).hexdigest()


def items_of(records: Iterable[Feedback]) -> Items:
    """The answers of records; several records about the same answer are one item with several judgements."""
    groups: dict[str, list[tuple[Feedback, str]]] = {}
    every = list(records)
    for record, named in zip(every, numbered(every), strict=True):
        groups.setdefault(key_of(record.example(), record.response), []).append((record, named.id))
    return {key: item_of(*zip(*group, strict=True)) for key, group in groups.items()}


def item_of(records: Sequence[Feedback], names: Sequence[str]) -> Item:
    """Records about one answer, each with its name in the file."""
    first = records[0]
    meta = {name: value for name, value in first.meta.items() if name not in OF_A_JUDGEMENT}
    judged = [record for record in records if record.error is None]
    critics = [number for number, each in enumerate(records) if not each.error and each.source.kind != "human"]
    return Item(
        first.example().model_copy(update={"meta": meta}),
        first.response,
        names[critics[0] if critics else 0],
        tuple(records[number] for number in critics),
        {str(each.meta.get("annotator", "")): each for each in judged if each.source.kind == "human"},
    )
