"""What people mark on the page, kept so that nothing is lost: a journal of acts, and the records made of it.

Every act is appended to `NAME.journal` and flushed to disk before it is acknowledged. The files of records are then
written anew from the journal, each at once, so that at any time they are what `train --offline` and
`feedback-report --marks` read: one record for each answer and annotator, in its newest version.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from threading import RLock
from typing import Any, Literal

from pydantic import Field, ValidationError

from text2grad.errors import UserError
from text2grad.eval.critics.marks import Mark
from text2grad.feedback import (
    Critique,
    Feedback,
    Label,
    R,
    Record,
    Source,
    Span,
    first_error,
    from_json,
    key_of,
    read_jsonl,
    record_json,
    refuse_folder,
    to_json,
    write_jsonl,
    writing,
)
from text2grad.page.answers import NOT_MARKED, Item, Items, item_of
from text2grad.report.quality import span_labels, token_alpha, tokenize_by

BEGINS = b'{"act":"'
"""Of every line of a journal."""
Shown = Literal["", "first", "after"]
"""When a suggestion was shown: never, before the person had marked anything, or after."""


class MarkedPlace(Record):
    """A marked place: code points of the response, end exclusive."""

    start: int = Field(ge=0)
    end: int
    label: Label
    reason: str = ""


class Check(Record):
    """Whether a person finds this span of the suggestion right."""

    start: int
    end: int
    correct: bool


class Opinion(Record):
    """All that one person says of one answer, as the page shows it."""

    spans: tuple[MarkedPlace, ...] = ()
    critique: str = ""
    score: float | None = Field(default=None, ge=-1, le=1)
    omissions: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    shown: Shown = ""

    @property
    def says_something(self) -> bool:
        """Whether it makes a record; checks of a suggestion alone do not."""
        return bool(self.spans or self.critique.strip() or self.score is not None or self.omissions)


class Act(Record):
    """One change: the whole opinion after it, made on top of version `base`. `act` names it once and for all, so
    that one sent twice counts once."""

    act: str = Field(min_length=8, max_length=64)
    item: str
    annotator: str = Field(default="", max_length=100)
    base: int = Field(ge=0)
    opinion: Opinion


class Entry(Act):
    """A line of the journal. The first about an answer has it as an unjudged record, so that what was marked
    stays when the file that it was read from is gone."""

    answer: Feedback | None = None


class Conflict(Exception):
    """An act on top of a version that is not the newest: the same opinion was changed elsewhere."""


class Notebook:
    """The opinions of all annotators on all items, on disk after every act.

    `out` gets the records; beside it stand the journal, and `checks`: verdicts on spans of the suggestions.

    Raises:
        UserError: the files cannot be written, hold records that were not made here, are being marked by another
            process, or a line is damaged.
    """

    def __init__(self, items: Items, out: Path) -> None:
        refuse_folder(out)
        self.lock = RLock()
        self.items, self.out = dict(items), out
        self.checks = out.with_suffix(".checks.jsonl")
        self._versions: dict[tuple[str, str], list[Opinion]] = defaultdict(list)
        self._acts: set[str] = set()
        self._marked: set[str] = set()
        self._alphas: dict[str, tuple[tuple[Opinion, ...], float | None]] = {}
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
        """Let another process mark."""
        os.close(self._journal)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            cure = "go on there, or end it; two people may mark on one page under their own names"
            raise UserError(f"{path} is being marked by another process", cure) from error

    def _restore(self, path: Path) -> None:
        """Read the journal; half a line at its end was never acknowledged and is cut off."""
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and not content.startswith(BEGINS[: len(content)]):
            raise UserError(f"{path} is not a journal of marks", "--out names another file")
        for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
            try:
                self._keep(Entry.model_validate(from_json(line.decode("utf-8"))))
            except (ValidationError, json.JSONDecodeError, UnicodeDecodeError) as error:
                what = first_error(error) if isinstance(error, ValidationError) else "not JSON"
                raise UserError(f"{path}:{number}: {what}", f"remove line {number}") from error
        os.truncate(self._journal, len(whole))

    def _refuse_others(self) -> None:
        """What stands in the files must be what was marked here, in the newest version or an earlier one.

        Raises:
            UserError: something else does, and would be lost.
        """
        versions = [(key, each) for key, every in self._versions.items() for each in every]
        made = {_said(_record(self.items[key], who, each)) for (key, who), each in versions}
        checked = {(who, *check.model_dump().values()) for (_, who), each in versions for check in each.checks}
        here = [_said(each) in made for each in _records_in(self.out, Feedback)]
        marks = _records_in(self.checks, Mark)
        here += [(each.annotator, each.start, each.end, each.correct) in checked for each in marks]
        if not all(here):
            others = f"{here.count(False)} of {len(here)} records in {self.out} or {self.checks.name}"
            raise UserError(
                f"{others} were not made by this page", "they stay as they are: --out names another file"
            )

    def update(self, items: Items) -> None:
        """Take answers that were written since."""
        self.items = {**self.items, **items}

    def _keep(self, act: Entry) -> None:
        self._acts.add(act.act)
        if act.answer is not None:
            self._marked.add(act.item)
            self.items.setdefault(act.item, item_of([act.answer], [act.answer.id]))
        self._versions[act.item, act.annotator].append(act.opinion)

    def version(self, item: str, annotator: str) -> int:
        """How often an opinion was changed."""
        return len(self._versions.get((item, annotator), ()))

    def history(self, item: str, annotator: str) -> list[Opinion]:
        """All versions of an opinion, the first being what the file held or an empty one."""
        earlier = self.items[item].people.get(annotator)
        return [_opinion_in(earlier) if earlier else Opinion(), *self._versions.get((item, annotator), ())]

    def record(self, act: Act) -> int:
        """Keep an act; returns the new version. One that is kept already changes nothing.

        Raises:
            KeyError: there is no such item.
            Conflict: the opinion has a newer version than `act.base`.
            ValueError: a place lies outside the response.
            UserError: it cannot be written; then it is not kept.
        """
        item = self.items[act.item]
        if act.act in self._acts:
            return self.version(act.item, act.annotator)
        if act.base != self.version(act.item, act.annotator):
            raise Conflict
        _critique_of(item, act.opinion)
        answer = None if act.item in self._marked else _unjudged(item)
        entry = Entry(**dict(act), answer=answer)
        self._append((record_json(entry, exclude_none=True) + "\n").encode("utf-8"))
        self._keep(entry)
        self._write()
        return self.version(act.item, act.annotator)

    def _append(self, line: bytes) -> None:
        """Append and flush to disk, wholly or not at all."""
        before = os.fstat(self._journal).st_size
        with writing(self.out.with_suffix(".journal")):
            try:
                while line:
                    line = line[os.write(self._journal, line) :]
                os.fsync(self._journal)
            except OSError:
                os.truncate(self._journal, before)
                raise

    def annotators(self) -> list[str]:
        """Who has said something, in order of their first act."""
        return list(dict.fromkeys(annotator for _, annotator in self._versions))

    def marked(self, key: str) -> dict[str, Opinion]:
        """The opinions on an item that say something, by annotator."""
        names = dict.fromkeys([*self.items[key].people, *self.annotators()])
        newest = {name: self.history(key, name)[-1] for name in names}
        return {name: opinion for name, opinion in newest.items() if opinion.says_something}

    def records(self) -> Iterator[Feedback]:
        """One record for each item and annotator who marked it, as it is trained on."""
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

    def agreement(self) -> dict[str, Any]:
        """Krippendorff's alpha over the words of answers that several people marked: mean, and how many answers."""
        shared = [(key, tuple(opinions.values())) for key in self.items if len(opinions := self.marked(key)) > 1]
        alphas = [self._alpha(key, opinions) for key, opinions in shared]
        known = [alpha for alpha in alphas if alpha is not None]
        alpha = round(fmean(known), 3) if known else None
        return {"shared": len(shared), "measured": len(known), "alpha": alpha}

    def _alpha(self, key: str, opinions: tuple[Opinion, ...]) -> float | None:
        """Of one answer; computed again only where an opinion has changed."""
        known = self._alphas.get(key)
        if known is None or known[0] != opinions:
            item, words = self.items[key], tokenize_by(None)(self.items[key].response)
            labels = [span_labels(_spans(item, each), words) for each in opinions]
            known = self._alphas[key] = (opinions, token_alpha(labels))
        return known[1]


def _unjudged(item: Item) -> Feedback:
    return Feedback.of(item.example, item.response, NOT_MARKED, Source(kind="human"))


def _spans(item: Item, opinion: Opinion) -> Sequence[Span]:
    return [
        Span(**place.model_dump(), text=item.response[place.start : place.end])
        for place in sorted(opinion.spans, key=lambda place: (place.start, place.end))
    ]


def _critique_of(item: Item, opinion: Opinion) -> Critique:
    """The opinion as a critique; without words of its own it is made of the reasons.

    Raises:
        ValueError: a place lies outside the response.
    """
    spans = _spans(item, opinion)
    if any(span.end > len(item.response) for span in spans):
        raise ValueError("a marked place lies outside the answer")
    reasons = "; ".join(span.reason for span in spans if span.reason)
    return Critique(
        text=opinion.critique.strip() or reasons,
        spans=tuple(spans),
        score=opinion.score,
        omissions=tuple(filter(None, map(str.strip, opinion.omissions))),
    )


def _records_in(path: Path, kind: type[R]) -> list[R]:
    return list(read_jsonl(path, kind)) if path.is_file() else []


def _said(record: Feedback) -> str:
    """Who says what of which answer; the rest of a record may be read otherwise from time to time."""
    meta = [record.meta.get(name) for name in ("annotator", "omissions")]
    spans = [span.model_dump() for span in record.spans]
    return to_json([record.source.kind, key_of(record.response), *meta, record.critique, record.score, spans])


def _record(item: Item, annotator: str, opinion: Opinion) -> Feedback:
    meta = {"annotator": annotator, "shown": opinion.shown}
    critique = _critique_of(item, opinion)
    with_meta = critique.model_copy(update={"meta": {name: value for name, value in meta.items() if value}})
    return Feedback.of(item.example, item.response, with_meta, Source(kind="human"))


def _opinion_in(record: Feedback) -> Opinion:
    """What a record of the file says, as the page shows it."""
    spans = [MarkedPlace(start=s.start, end=s.end, label=s.label, reason=s.reason) for s in record.spans]
    said = {"critique": record.critique, "score": record.score, "omissions": record.meta.get("omissions", ())}
    return Opinion(spans=tuple(spans), **said)
