"""Marks of annotators: a journal of acts on disk, and the records written from it.

Every act is appended to `NAME.journal` and flushed to disk before it is acknowledged. The files of
records are then rewritten from the journal, each atomically. `train --offline` and
`feedback-report --marks` can read them at any time: one record for each answer and annotator, the
newest version.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import RLock
from typing import Literal

from pydantic import Field

from text2grad.errors import UserError
from text2grad.eval.critics.marks import Mark
from text2grad.feedback import Critique, Feedback, Label, Record, Source, Span, response_key
from text2grad.json_text import record_json, to_json
from text2grad.jsonl import R, parse_record, read_jsonl, refuse_folder, write_jsonl, writing
from text2grad.page.answers import Item, Items, make_item, unjudged

BEGINS = b'{"act":"'
"""The first bytes of every line of a journal."""
SuggestionTiming = Literal["", "first", "after"]
"""The time a suggestion was shown: never, before the first mark, or after it."""


class MarkedPlace(Record):
    """A marked interval: code points of the response, end exclusive."""

    start: int = Field(ge=0)
    end: int
    label: Label
    reason: str = ""


class Check(Record):
    """The verdict of a person on a span of the suggestion."""

    start: int
    end: int
    correct: bool


class Opinion(Record):
    """The opinion of one person on one answer."""

    spans: tuple[MarkedPlace, ...] = ()
    critique: str = ""
    score: float | None = Field(default=None, ge=-1, le=1)
    omissions: tuple[str, ...] = ()
    corrected: str = ""
    checks: tuple[Check, ...] = ()
    shown: SuggestionTiming = ""

    @property
    def says_something(self) -> bool:
        """True if it makes a record; checks of a suggestion alone do not."""
        words = self.critique.strip() or self.corrected.strip()
        return bool(self.spans or words or self.score is not None or self.omissions)


class Act(Record):
    """One change: the opinion after it, made on top of version `base`.

    `act` is a unique name, so that an act sent twice counts once.
    """

    act: str = Field(min_length=8, max_length=64)
    item: str
    annotator: str = Field(default="", max_length=100)
    base: int = Field(ge=0)
    opinion: Opinion


class Entry(Act):
    """A line of the journal, with the answer itself, in case its file is deleted."""

    answer: Feedback


class Conflict(Exception):
    """An act on top of an old version: the same opinion was changed elsewhere."""


class Notebook:
    """The opinions of all annotators on all items, on disk after every act.

    `out` gets the records. Next to it are the journal and `checks`, the verdicts on spans of
    suggestions.

    Raises:
        UserError: the files cannot be written, hold records of another source, are being marked by
            another process, or a line is damaged.
    """

    def __init__(self, items: Items, out: Path) -> None:
        refuse_folder(out)
        self.lock = RLock()
        self.items, self.out = dict(items), out
        self.checks = out.with_suffix(".checks.jsonl")
        self._versions: dict[tuple[str, str], list[Opinion]] = defaultdict(list)
        self._annotators: dict[str, dict[str, None]] = defaultdict(dict)  # of each item, in order
        self._acts: set[str] = set()
        path = out.with_suffix(".journal")
        with writing(path):
            out.parent.mkdir(parents=True, exist_ok=True)
            self._journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._lock(path)
            try:
                self._restore(path)
                self._refuse_others()
            except UserError:
                self.close()
                raise
        self._write()

    def close(self) -> None:
        """Close the journal, so that another process can mark."""
        os.close(self._journal)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            cure = "continue there, or end it; two people may mark on one page under their own names"
            raise UserError(f"{path} is being marked by another process", cure) from error

    def _restore(self, path: Path) -> None:
        """Read the journal; half a line at its end was never acknowledged and is removed."""
        content = path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if not complete and not content.startswith(BEGINS[: len(content)]):
            raise UserError(f"{path} is not a journal of marks", "set --out to another file")
        for number, line in enumerate(complete.split(b"\n")[:-1], start=1):
            self._keep(parse_record(line, Entry, path, number))
        os.truncate(self._journal, len(complete))

    def _refuse_others(self) -> None:
        """Refuse files with records that were not made here, in any version.

        Raises:
            UserError: such records would be lost.
        """
        versions = [(key, opinion) for key, opinions in self._versions.items() for opinion in opinions]
        records = {_identity(_record(self.items[key], who, opinion)) for (key, who), opinion in versions}
        checks = {(who, *check.model_dump().values()) for (_, who), opinion in versions for check in opinion.checks}
        ours = [_identity(record) in records for record in _read_if_there(self.out, Feedback)]
        marks = _read_if_there(self.checks, Mark)
        ours += [(mark.annotator, mark.start, mark.end, mark.correct) in checks for mark in marks]
        if not all(ours):
            others = f"{ours.count(False)} of {len(ours)} records in {self.out} or {self.checks.name}"
            raise UserError(f"{others} were not made by this page", "set --out to another file")

    def _keep(self, act: Entry) -> None:
        self._acts.add(act.act)
        self.items.setdefault(act.item, make_item([act.answer], [act.answer.id]))
        self._versions[act.item, act.annotator].append(act.opinion)
        self._annotators[act.item][act.annotator] = None

    def version(self, item: str, annotator: str) -> int:
        """Return the number of changes of an opinion."""
        return len(self._versions.get((item, annotator), ()))

    def history(self, item: str, annotator: str) -> list[Opinion]:
        """Return all versions of an opinion; the first one is from the file, or empty."""
        record = self.items[item].people.get(annotator)
        return [_read_opinion(record) if record else Opinion(), *self._versions.get((item, annotator), ())]

    def record(self, act: Act) -> int:
        """Record an act and return the new version. A repeated act changes nothing.

        Raises:
            KeyError: there is no such item.
            Conflict: the opinion has a newer version than `act.base`.
            ValueError: a place lies outside the response.
            UserError: the journal cannot be written; the act is not recorded.
        """
        item = self.items[act.item]
        if act.act in self._acts:
            return self.version(act.item, act.annotator)
        if act.base != self.version(act.item, act.annotator):
            raise Conflict
        _critique_of(item, act.opinion)
        entry = Entry(**dict(act), answer=unjudged(item.example, item.response))
        self._append((record_json(entry, exclude_none=True) + "\n").encode("utf-8"))
        self._keep(entry)
        self._write()
        return self.version(act.item, act.annotator)

    def _append(self, line: bytes) -> None:
        """Append a line and flush it to disk; a failed write is undone."""
        before = os.fstat(self._journal).st_size
        with writing(self.out.with_suffix(".journal")):
            try:
                while line:
                    line = line[os.write(self._journal, line) :]
                os.fsync(self._journal)
            except OSError:
                os.truncate(self._journal, before)
                raise

    def opinions_on(self, key: str) -> dict[str, Opinion]:
        """Return the opinions on an item that are not empty, by annotator."""
        names = dict.fromkeys([*self.items[key].people, *self._annotators.get(key, ())])
        newest = {name: self.history(key, name)[-1] for name in names}
        return {name: opinion for name, opinion in newest.items() if opinion.says_something}

    def records(self) -> Iterator[Feedback]:
        """Yield one record for each item and annotator who marked it."""
        for (key, annotator), versions in self._versions.items():
            if versions[-1].says_something:
                yield _record(self.items[key], annotator, versions[-1])

    def _marks(self) -> Iterator[Mark]:
        for (key, annotator), versions in self._versions.items():
            for check in versions[-1].checks:
                places = {"start": check.start, "end": check.end, "correct": check.correct}
                yield Mark(id=self.items[key].name, annotator=annotator, **places)

    def _write(self) -> None:
        write_jsonl(self.out, self.records())
        if marks := list(self._marks()):
            write_jsonl(self.checks, marks)
        else:
            with writing(self.checks):
                self.checks.unlink(missing_ok=True)


def _critique_of(item: Item, opinion: Opinion) -> Critique:
    """Convert an opinion to a critique; the default text is the reasons.

    Raises:
        ValueError: a place lies outside the response.
    """
    spans = [
        Span(**place.model_dump(), text=item.response[place.start : place.end])
        for place in sorted(opinion.spans, key=lambda place: (place.start, place.end))
    ]
    if any(span.end > len(item.response) for span in spans):
        raise ValueError("a marked place lies outside the answer")
    reasons = "; ".join(span.reason for span in spans if span.reason)
    return Critique(
        text=opinion.critique.strip() or reasons,
        spans=tuple(spans),
        score=opinion.score,
        omissions=tuple(filter(None, map(str.strip, opinion.omissions))),
    )


def _read_if_there(path: Path, kind: type[R]) -> list[R]:
    return list(read_jsonl(path, kind)) if path.is_file() else []


def _identity(record: Feedback) -> str:
    """Return the fields of a record that a person wrote."""
    meta = [record.meta.get(name) for name in ("annotator", "omissions", "corrected")]
    spans = [span.model_dump() for span in record.spans]
    return to_json([record.source.kind, response_key(record.response), *meta, record.critique, record.score, spans])


def _record(item: Item, annotator: str, opinion: Opinion) -> Feedback:
    meta = {"annotator": annotator, "shown": opinion.shown, "corrected": opinion.corrected.strip()}
    critique = _critique_of(item, opinion)
    with_meta = critique.model_copy(update={"meta": {name: value for name, value in meta.items() if value}})
    return Feedback.of(item.example, item.response, with_meta, Source(kind="human"))


def _read_opinion(record: Feedback) -> Opinion:
    """Return the opinion in a record of the file."""
    spans = tuple(MarkedPlace(start=s.start, end=s.end, label=s.label, reason=s.reason) for s in record.spans)
    omissions, corrected = record.meta.get("omissions", ()), str(record.meta.get("corrected") or "")
    words = {"critique": record.critique, "omissions": omissions, "corrected": corrected}
    return Opinion(spans=spans, score=record.score, **words)
