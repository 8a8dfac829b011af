"""Answers to mark: from feedback records, a spreadsheet, a file of answers, or a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from text2grad.data.files import LocatedRow, read_located_rows
from text2grad.data.opinions import Names
from text2grad.data.published import Response as ResponseRow
from text2grad.data.records import import_rows
from text2grad.data.responses import read_items
from text2grad.data.spreadsheets.columns import Proposal, propose
from text2grad.data.spreadsheets.tables import is_table
from text2grad.errors import UserError
from text2grad.eval.critics.marks import number_repeated_ids
from text2grad.feedback import JUDGEMENT_KEYS, Example, Failure, Feedback, Message, Source, response_key
from text2grad.json_text import from_json
from text2grad.jsonl import read_jsonl, reading
from text2grad.page.runs import Sample, read_samples

NOT_MARKED = Failure(kind="unsupported", message="this answer has no judgement yet")
REWARD_MODEL = Source(kind="reward_model")


@dataclass(frozen=True)
class Item:
    """An answer to mark, with judgements of a critic (`suggestion`) and of annotators (`people`).

    `name` is its id in a file of marks (`eval.critics.marks.number_repeated_ids`).
    """

    example: Example
    response: str
    name: str = ""
    suggestion: Feedback | None = None
    people: Mapping[str, Feedback] = field(default_factory=dict)


Items = Mapping[str, Item]
"""Answers by a key of their content, in the order of the file."""


def read_answers(path: Path) -> Items:
    """Read answers from a run folder, feedback records, a spreadsheet or a file of answers.

    Raises:
        UserError: the path cannot be read, or has no answers.
    """
    records, cure = _read_records(path)
    items = group_records(records)
    if not items:
        raise UserError(f"no answers to mark in {path}", cure)
    return items


def _read_records(path: Path) -> tuple[list[Feedback], str]:
    """Return the records to mark, and the command that makes some."""
    if path.is_dir():
        samples = read_samples([path], [])
        records = [
            sample_record(name, sample) for name, policy_samples in samples.items() for sample in policy_samples
        ]
        if not records and (path / "feedback.jsonl").is_file():
            records = list(read_jsonl(path / "feedback.jsonl", Feedback))
        return records, "text2grad train writes samples into its folder while it runs"
    rows = list(read_located_rows(path)) if is_table(path) else []
    if is_table(path) and (proposal := propose_columns(path, rows)):
        records = _read_table(path, rows, proposal)
    elif _holds_feedback(path):
        records = list(read_jsonl(path, Feedback))
    else:
        records = [unjudged(item.example, item.response) for item in read_items(path)]
    return records, "text2grad sample --prompts FILE --out answers.jsonl makes some"


def propose_columns(path: Path, located: Sequence[LocatedRow]) -> Proposal | None:
    """Propose the columns of a table as `improve` does; None if they have our names already.

    Raises:
        UserError: the table has no rows, or a column is missing or ambiguous.
    """
    rows = [row for _, row in located]
    if not rows:
        raise UserError(f"{path} has no rows", "check that it is the right file")
    if {"prompt", "response"} <= rows[0].keys() <= ResponseRow.model_fields.keys():
        return None
    proposal = propose(rows)
    if proposal.doubts:
        doubt = proposal.doubts[0]
        cure = f"text2grad import {path} {doubt.options[0]} --out FILE, then mark FILE"
        raise UserError(f"{path}: {doubt.problem}", cure)
    for name, content in (("response", "answers"), ("prompt", "questions")):
        if name not in proposal.columns:
            raise UserError(f"{path}: no column of {content}", f"name the column {name}")
    return proposal


def _read_table(path: Path, rows: Sequence[LocatedRow], proposal: Proposal) -> list[Feedback]:
    """Return the records of a table in its order, with or without a judgement."""
    records_by_text: dict[tuple[str, str], list[Feedback]] = {}
    if proposal.columns.keys() - {"prompt", "response", "annotator"}:
        scales = [proposal.scale] if proposal.scale else []
        imported = import_rows(path, rows, proposal.mapping, scales, Names(), skip=True)
        for record in imported.records:
            records_by_text.setdefault((record.prompt[-1].content.strip(), record.response.strip()), []).append(
                record
            )
    records = []
    for number, (_, row) in enumerate(rows, start=1):
        prompt, response = (str(row.get(proposal.columns[name]) or "") for name in ("prompt", "response"))
        if prompt.strip() and response.strip():
            example = Example(id=f"{path.stem}-{number}", prompt=(Message(role="user", content=prompt),))
            same_answer = records_by_text.get((prompt.strip(), response.strip()), [unjudged(example, response)])
            records += [same_answer.pop(0)] if same_answer else []
    return records


def _holds_feedback(path: Path) -> bool:
    """True if the first line of a file is a feedback record."""
    with reading(path), path.open(encoding="utf-8-sig", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        row = from_json(first)
    except ValueError:
        return False
    return isinstance(row, dict) and {"source", "response"} <= row.keys()


def unjudged(example: Example, response: str) -> Feedback:
    """Return the record of an answer without a judgement."""
    return Feedback.of(example, response, NOT_MARKED, Source(kind="human"))


def sample_record(method: str, sample: Sample) -> Feedback:
    """Return a sample of a run as a record of its critic, without spans that do not quote it."""
    spans = tuple(span for span in sample.spans if sample.response[span.start : span.end] == span.text)
    failure = sample.failure or NOT_MARKED if not (sample.critique or sample.spans) else None
    meta = {"policy": method, "step": sample.step}
    return Feedback(
        id=sample.id or f"step-{sample.step}",
        prompt=sample.prompt,
        response=sample.response,
        critique="" if failure else sample.critique,
        spans=() if failure else spans,
        score=None if failure else sample.score,
        error=failure,
        source=REWARD_MODEL,
        meta=meta | ({"lost": list(sample.lost)} if sample.lost else {}),
    )


def group_records(records: Iterable[Feedback]) -> Items:
    """Group records into answers; several records about the same answer are one item."""
    groups: dict[str, list[tuple[Feedback, str]]] = {}
    every = list(records)
    for record, named in zip(every, number_repeated_ids(every), strict=True):
        texts = (record.id, *(turn.content for turn in record.prompt), response_key(record.response))
        key = blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=12).hexdigest()
        groups.setdefault(key, []).append((record, named.id))
    return {key: make_item(*zip(*group, strict=True)) for key, group in groups.items()}


def make_item(records: Sequence[Feedback], names: Sequence[str]) -> Item:
    """Combine records about one answer; `names` are their ids in the file."""
    first = records[0]
    meta = {name: value for name, value in first.meta.items() if name not in JUDGEMENT_KEYS}
    judgements = [(record, name) for record, name in zip(records, names, strict=True) if record.error is None]
    critics = [(record, name) for record, name in judgements if record.source.kind != "human"]
    suggestion, name = critics[0] if critics else (None, names[0])
    people = {
        str(record.meta.get("annotator", "")): record for record, _ in judgements if record.source.kind == "human"
    }
    return Item(first.example().model_copy(update={"meta": meta}), first.response, name, suggestion, people)
