"""An importer: how the rows of one kind of file become records of what people said.

It turns each row into opinions: what one person said of one response, with the file's own offsets,
ratings and words. What only the whole file tells comes after, alike for every importer: on which
scale its ratings are (`scale`), how its offsets count (`marks.in_code_points`), what is not used.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from text2grad.feedback import Critique, Failure, Feedback, Label, Message, QuoteCounts, Source, Span
from text2grad.formats.conversations import Write, by_default
from text2grad.formats.marks import (
    HUMAN,
    POLARITY,
    Counting,
    Mark,
    human_record,
    in_code_points,
    spans_of,
    without_empty,
)
from text2grad.formats.remarks.cells import is_turn, turns_of
from text2grad.formats.scale import BY_FILE, Scale, Scales, parse_scale, verdict
from text2grad.tasks.loaders import Row, RowError

RESPONSE_KEYS = ("response", "text", "completion", "answer", "summary", "candidate", "output")
PROMPT_KEYS = ("prompt", "question", "instruction", "source", "post", "input")
COMMENT_KEYS = tuple(
    ["critique", "comment", "comments", "feedback", "reason", "explanation", "note", "notes", "user_input"]
)
CORRECTED_KEYS = ("corrected", "correction", "corrected_response", "improved", "improved_response", "rewrite")
MAPPED = ("response", "prompt", "score", "critique", "corrected", "good", "poor")
"""What `--map` may name in the files of tools: fields, questions, and (good, poor) labels."""
NO_COUNTS = QuoteCounts()
NO_ERROR = "No error was found."
"""The critique of a data set whose annotators looked for errors and marked none."""


@dataclass(frozen=True)
class Names:
    """Where a file has what: `chosen` by `--map` (ours -> theirs); by the file's own declarations the
    `texts` (a question or a tag -> the text that it is about), the `scales` and the `options` of its
    questions, those that are answered in words (`written`), and `source`: the file that declares them.
    `beside` is what another file beside it says (texts of questions, by key), `context_characters`
    what the policy's task shows of a long prompt, `write` how the policy writes a turn with calls of tools.
    """

    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    source: str = ""
    beside: Mapping[Any, Any] = field(default_factory=dict)
    context_characters: int | None = None
    write: Write = by_default

    def key(self, row: Mapping[str, Any], ours: str, keys: Sequence[str]) -> str:
        """The key of `row` that has this text; "" if there is none."""
        names = self.chosen.get(ours, keys)
        return next((name for name in names if isinstance(row.get(name), str) and row[name]), "")

    def response(self, row: Mapping[str, Any]) -> str:
        """The key of the response.

        Raises:
            ValueError: there is none.
        """
        if key := self.key(row, "response", RESPONSE_KEYS):
            return key
        names = self.chosen.get("response", RESPONSE_KEYS)
        texts = ", ".join(str(name) for name, text in row.items() if isinstance(text, str))[:200] or "none"
        raise RowError(
            f"no text in {', '.join(map(repr, names))}",
            f"say which it is: --map response=KEY; texts there: {texts}",
        )

    def prompt(self, row: Mapping[str, Any]) -> str | tuple[Message, ...]:
        """The prompt, as text or as turns; "" if there is none."""
        for name in self.chosen.get("prompt", PROMPT_KEYS):
            value = row.get(name)
            if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
                return turns_of(value, "prompt")
            if isinstance(value, str) and value:
                return value
        return ""

    def is_comment(self, question: str) -> bool:
        """Whether what is answered is a critique in words."""
        return question in self.chosen.get("critique", COMMENT_KEYS) or question in self.written

    def is_corrected(self, question: str) -> bool:
        """Whether what is answered is the response as it should be."""
        return question in self.chosen.get("corrected", CORRECTED_KEYS)

    def about(self, question: str, texts: Mapping[str, str], response: str) -> str:
        """The text that the marks of a question (or tag) are on: as the file or `--map` says, else the only one;
        "" if nothing tells.
        """
        if question in self.texts:
            return self.texts[question]
        return response if len(texts) == 1 or "response" in self.chosen else ""

    def labels(self) -> dict[str, Label]:
        """The labels that praise and blame, in lower case."""
        good: dict[str, Label] = {name.casefold(): 1 for name in self.chosen.get("good", ())}
        return {**POLARITY, **good, **{name.casefold(): -1 for name in self.chosen.get("poor", ())}}


@dataclass
class Opinion:
    """What one person said of one response; an importer fills it in.

    `marks` have the file's own offsets, `comments` are what was written of the whole response,
    `ratings` are values by question, as they were given. Where the verdict or the spans are known
    already they are `score` and `spans` (with `counts` of the marks that gave none). `omissions` is
    what the response leaves out, `meta` what else is to be kept of the row. `part` is added to the
    id where a row has several opinions.

    `answer` fills in the rest: `written` are comments by question; `aside` is what is neither a mark
    nor a rating nor words (a ranking, say), kept in `meta`. `skipped` says why it is no opinion at
    all, `failure` why it is a record without one. `misplaced` counts marks on another text or on
    none that is known.
    """

    id: str
    response: str = ""
    prompt: str | tuple[Message, ...] = ""
    annotator: str = ""
    marks: list[Mark] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    ratings: dict[str, object] = field(default_factory=dict)
    score: float | None = None
    spans: tuple[Span, ...] = ()
    counts: QuoteCounts = NO_COUNTS
    omissions: Sequence[str] = ()
    corrected: str = ""
    meta: Mapping[str, object] = field(default_factory=dict)
    source: Source = HUMAN
    part: str | None = None
    aside: dict[str, object] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    skipped: str = ""
    misplaced: Counter[str] = field(default_factory=Counter)

    @property
    def says_something(self) -> bool:
        """Whether there is anything in it."""
        said = (self.marks, self.spans, self.comments, self.ratings, self.aside, self.corrected, self.failure)
        return any(said) or self.score is not None

    def misplace(self, about: str) -> None:
        """Count a mark that is on the text `about`, or ("") that may be on any."""
        why = f"on {about!r} and not on the response" if about else "that may be on any of several texts"
        cure = "" if about else " (if they are on the response, name it: --map response=KEY)"
        self.misplaced[why + cure] += 1

    def answer(self, question: str, value: object, names: Names) -> None:
        """Add what was answered to a question: words of a comment, a correction, a rating, or something aside."""
        one = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is None or value == "" or value == []:
            return
        if isinstance(value, str) and names.is_corrected(question):
            self.corrected = value
        elif isinstance(value, str) and names.is_comment(question):
            self.comments.append(value)
        elif isinstance(value, str) and not _is_label(value):
            self.comments.append(value)
            self.written[question] = value
        elif isinstance(one, str | int | float) or (isinstance(one, list) and all(isinstance(e, str) for e in one)):
            self.ratings[question] = one
        else:
            self.aside[question] = value


def skip(id: str, why: str) -> Opinion:
    """Something in a file that nobody meant as an opinion."""
    return Opinion(id, skipped=why)


LONGEST_LABEL = 30
"""Characters of a choice, in a question that some answered with one word."""
_LABEL = re.compile(r"[\w+-]{1,40}|[\W\d_]*\d[\W\d_]*")


def _is_label(value: str) -> bool:
    """Whether a text is the name of a choice or a rating, rather than something written: a verdict, one word, or
    figures (`4/5`).
    """
    word = value.strip()
    return verdict(word) is not None or bool(_LABEL.fullmatch(word))


def _read_choices(opinions: Sequence[Opinion]) -> None:
    """Take short texts as ratings where others answered the same question by a label: of correct,
    partly correct and wrong, all are choices.
    """
    rated = {question for each in opinions for question in each.ratings}
    long = {question for each in opinions for question, text in each.written.items() if len(text) > LONGEST_LABEL}
    for each in opinions:
        labels = {question: text for question, text in each.written.items() if question in rated - long}
        each.ratings |= labels
        each.comments = [text for text in each.comments if text not in labels.values()]


@dataclass(frozen=True)
class Importer:
    """How the rows of one kind of file are recognised and read.

    `opinions(row, id, names)` reads one row; `id` is for one that brings none. It raises ValueError on
    a row that cannot be read. A row is of this kind if it has `keys` and is `known`. `names` reads what
    the file, or one beside it, says of its questions; `counting` is how its offsets count, as far as
    that is known. `join` makes one opinion of several rows. `noun` names a row in errors.
    """

    name: str
    opinions: Callable[[Row, str, Names], Iterable[Opinion]]
    keys: frozenset[str] = frozenset()
    known: Callable[[Row], bool] = lambda row: True
    names: Callable[[Path, Sequence[Row]], Names] = lambda path, rows: Names()
    counting: Counting | None = None
    join: Callable[[Sequence[Opinion], Path], Sequence[Opinion]] = lambda opinions, path: opinions
    noun: str = ""

    def knows(self, row: Row) -> bool:
        """Whether a row is of this kind."""
        return self.keys <= row.keys() and self.known(row)

    def read(self, row: Row, fallback_id: str, names: Names) -> list[Opinion]:
        """The opinions of a row; several that judge one response have ids of their own.

        Raises:
            ValueError: the row is of another kind, or cannot be read.
        """
        if not self.knows(row):
            raise RowError(f"not a record of {self.name}", "leave --kind out, or mend the file")
        found = list(self.opinions(row, fallback_id, names))
        if odd := [each for each in found if not isinstance(each, Opinion)]:
            raise ValueError(f"the importer {self.name} yields {type(odd[0]).__name__}, and no Opinion")
        meant = [each for each in found if not each.skipped]
        if not all(isinstance(each.response, str) for each in meant):
            raise ValueError("the response is not text")
        for each in meant if len(meant) > 1 else ():
            each.id += "" if each.part is None else f"-{each.part}"
        return found


@dataclass(frozen=True)
class Records:
    """The records of a file, how its ratings were read, what of it was not used, and columns that were not read."""

    records: list[Feedback]
    scales: tuple[str, ...]
    losses: tuple[str, ...]
    ignored: tuple[str, ...] = ()


def records_of(
    importer: Importer, opinions: Sequence[Opinion], names: Names, given: Mapping[str, Scale]
) -> Records:
    """All opinions of a file as records.

    Raises:
        UserError: `given` (by `--scale`) or `--map score` does not fit the ratings of the file.
    """
    meant = [each for each in opinions if not each.skipped]
    _read_choices(meant)
    values: dict[str, list[object]] = {}
    for question, value in ((q, v) for each in meant for q, v in each.ratings.items()):
        values.setdefault(question, []).append(value)
    scales = Scales.of(values, given, names.scales, next(iter(names.chosen.get("score", ())), ""), names.options)
    labels = names.labels()
    records = [_record(importer, each, scales, labels) for each in meant]
    return Records(records, scales.lines, (*_left(opinions), *_unlabelled(meant, labels), *scales.problems))


def _record(importer: Importer, opinion: Opinion, scales: Scales, labels: Mapping[str, Label]) -> Feedback:
    """The record of an opinion."""
    answers = without_empty(corrected=opinion.corrected, ratings=opinion.ratings, aside=opinion.aside)
    meta = {**without_empty(dataset=importer.name, annotator=opinion.annotator), **answers, **opinion.meta}
    judgement: Critique | Failure = Failure(kind="unsupported", message=opinion.failure)
    if not opinion.failure:
        marks = in_code_points(opinion.marks, opinion.response, importer.counting)
        spans, lost = spans_of(marks, opinion.response, labels)
        counts = Counter(why for why, _ in lost) + Counter(unmatched=opinion.misplaced.total())
        judgement = Critique(
            text="\n".join(opinion.comments),
            spans=opinion.spans or spans,
            score=scales.score(opinion.ratings) if opinion.score is None else opinion.score,
            quotes=opinion.counts + QuoteCounts(**counts),
            omissions=tuple(opinion.omissions),
        )
    return human_record(opinion.id, opinion.prompt, opinion.response, judgement, meta, opinion.source)


def _left(opinions: Sequence[Opinion]) -> Iterator[str]:
    """What of a file is no opinion, or is kept aside, a line for each kind with its count."""
    why, aside, misplaced = Counter[str](), Counter[str](), Counter[str]()
    for each in opinions:
        why.update([each.skipped] if each.skipped else [])
        aside.update(each.aside.keys())
        misplaced.update(each.misplaced)
    yield from (f"{reason}: {count} not read" for reason, count in why.items())
    texts = {name for each in opinions for name, value in each.aside.items() if isinstance(value, str)}
    for name, count in aside.items():
        cure = f" (if it is a critique: --map critique={name})" if name in texts else ""
        yield f"{name}: kept in meta.aside, as no verdict on the response: {count}{cure}"
    yield from (f"marks {reason}: {count}" for reason, count in misplaced.items())
    if empty := sum(not (each.skipped or each.says_something) for each in opinions):
        yield f"records in which nothing was marked, rated or written: {empty}"


def _unlabelled(opinions: Iterable[Opinion], labels: Mapping[str, Label]) -> Iterator[str]:
    """The labels of marks that neither praise nor blame, and what would tell."""
    names = (mark.label for each in opinions for mark in each.marks if mark.label.strip().casefold() not in labels)
    if found := Counter(names):
        shown = ", ".join(f"{name!r} ({count})" for name, count in found.most_common(6))
        example = next(iter(found)) or "LABEL"
        cure = f"say which do: --map {shlex.quote(f'poor={example}')}"
        yield f"labels that neither praise nor blame give no span: {shown} ({cure})"


def last_turn(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row whose one text is a conversation that ends with the assistant, as its last turn and those before."""
    talks = [value for value in row.values() if isinstance(value, list) and value and all(map(is_turn, value))]
    if len(talks) != 1 or talks[0][-1]["role"] != "assistant" or any(key in row for key in RESPONSE_KEYS[:3]):
        return row
    return {**row, "prompt": talks[0][:-1], "response": turns_of(talks[0], "conversation")[-1].content}


SCORE_SCALE = {"score_scale": "-1..1"}
"""What files of our own say in a row's `meta`, so that they can be read again: their scores are scores."""


def own_scales(rows: Sequence[Row]) -> dict[str, Scale]:
    """The scale of `score`, where the first row's `meta` (or `metadata`) has a `score_scale`."""
    found = [row[key] for row in rows[:1] for key in ("meta", "metadata") if isinstance(row.get(key), dict)]
    scale = next((meta["score_scale"] for meta in found if "score_scale" in meta), None)
    return {"score": parse_scale(scale, BY_FILE)} if isinstance(scale, str) else {}


def text_in(row: Mapping[str, Any], *keys: str) -> str:
    """The first of `keys` that holds text, or a number as text; else ""."""
    found = (row.get(key) for key in keys)
    return next((str(each) for each in found if each != "" and type(each) in (str, int)), "")
