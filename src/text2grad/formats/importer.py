"""What one person said of one response in a tool, and how all that a file has becomes records.

A tool's module turns its rows into opinions: marks with the tool's own offsets, comments, and ratings by question.
Only the whole file tells on which scale the ratings are (`scale`), and only the text how offsets count
(`marks.settled`).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from text2grad.errors import UserError
from text2grad.feedback import Critique, Failure, Feedback, Label, Message
from text2grad.formats.marks import POLARITY, Counting, Mark, human_record, placed, settled
from text2grad.formats.remarks.cells import is_turn, turns_of
from text2grad.formats.scale import BY_FILE, Scale, Scales, parse_scale, verdict
from text2grad.tasks.loaders import Row, RowError

RESPONSE_KEYS = ("response", "text", "completion", "answer", "summary", "candidate", "output")
PROMPT_KEYS = ("prompt", "question", "instruction", "source", "post", "input")
COMMENT_KEYS = (
    "critique",
    "comment",
    "comments",
    "feedback",
    "reason",
    "explanation",
    "note",
    "notes",
    "user_input",
)
CORRECTED_KEYS = ("corrected", "correction", "corrected_response", "improved", "improved_response", "rewrite")
MAPPED = ("response", "prompt", "score", "critique", "corrected", "good", "poor")
"""What `--map` may name in the files of tools: fields, questions, and (good, poor) labels."""


@dataclass(frozen=True)
class Names:
    """Where a tool's file has what: `chosen` by `--map` (ours -> theirs), `declared` by the file (a question or a
    tag -> the text that it is about), the `scales` and the `options` of its questions, those that are answered in
    words (`written`), and `source`: the file that declares them.
    """

    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    source: str = ""

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
        if question in self.declared:
            return self.declared[question]
        return response if len(texts) == 1 or "response" in self.chosen else ""

    def labels(self) -> dict[str, Label]:
        """The labels that praise and blame, in lower case."""
        told: dict[str, Label] = {name.casefold(): 1 for name in self.chosen.get("good", ())}
        return {**POLARITY, **told, **{name.casefold(): -1 for name in self.chosen.get("poor", ())}}


@dataclass(frozen=True)
class Opinion:
    """What one person said of one response.

    `ratings` by question, as they were given; `written` are comments by question; `aside` is what is neither a mark
    nor a rating nor words (a ranking, say): it is kept in `meta`. `skipped` says why it is no opinion at all,
    `failure` why it is a record without one. `misplaced` counts marks on another text or on none that is known.
    """

    id: str
    response: str = ""
    prompt: str | tuple[Message, ...] = ""
    marks: tuple[Mark, ...] = ()
    comments: tuple[str, ...] = ()
    ratings: Mapping[str, object] = field(default_factory=dict)
    aside: Mapping[str, object] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    annotator: str = ""
    corrected: str = ""
    failure: str = ""
    skipped: str = ""
    misplaced: Mapping[str, int] = field(default_factory=dict)

    @property
    def says_something(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.marks or self.comments or self.ratings or self.aside or self.corrected or self.failure)

    def without_mark(self, about: str) -> Opinion:
        """This opinion, with one more mark that is on the text `about`, or ("") that may be on any."""
        why = f"on {about!r} and not on the response" if about else "that may be on any of several texts"
        cure = "" if about else " (if they are on the response, name it: --map response=KEY)"
        return replace(self, misplaced={**self.misplaced, why + cure: self.misplaced.get(why + cure, 0) + 1})


def unfolded(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row whose one text is a conversation that ends with the assistant, as its last turn and those before."""
    talks = [value for value in row.values() if isinstance(value, list) and value and all(map(is_turn, value))]
    if len(talks) != 1 or talks[0][-1]["role"] != "assistant" or any(key in row for key in RESPONSE_KEYS[:3]):
        return row
    return {**row, "prompt": talks[0][:-1], "response": turns_of(talks[0], "conversation")[-1].content}


def skipped(id: str, why: str) -> Opinion:
    """Something in a file that nobody meant as an opinion."""
    return Opinion(id, skipped=why)


def answered(question: str, value: object, names: Names, opinion: Opinion) -> Opinion:
    """The opinion with one more answer: words of a comment, a correction, a rating, or something aside."""
    if value is None or value == "" or value == []:
        return opinion
    if isinstance(value, str) and names.is_corrected(question):
        return replace(opinion, corrected=value)
    if isinstance(value, str) and names.is_comment(question):
        return replace(opinion, comments=(*opinion.comments, value))
    if isinstance(value, str) and not _is_label(value):
        written = {**opinion.written, question: value}
        return replace(opinion, comments=(*opinion.comments, value), written=written)
    one = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(one, str | int | float) or (isinstance(one, list) and all(isinstance(each, str) for each in one)):
        return replace(opinion, ratings={**opinion.ratings, question: one})
    return replace(opinion, aside={**opinion.aside, question: value})


LONGEST_LABEL = 30
"""Characters of a choice, in a question that some answered with one word."""
_LABEL = re.compile(r"[\w+-]{1,40}|[\W\d_]*\d[\W\d_]*")


def _is_label(value: str) -> bool:
    """Whether a text is the name of a choice or a rating, rather than something written: a verdict, one word, or
    figures (`4/5`).
    """
    word = value.strip()
    return verdict(word) is not None or bool(_LABEL.fullmatch(word))


def settled_labels(opinions: Sequence[Opinion]) -> list[Opinion]:
    """The opinions with short texts as ratings, where others answered the same question by a label: of correct,
    partly correct and wrong, all are choices.
    """
    rated = {question for each in opinions for question in each.ratings}
    long = {question for each in opinions for question, text in each.written.items() if len(text) > LONGEST_LABEL}
    return [_with_labels(each, rated - long) for each in opinions]


def _with_labels(opinion: Opinion, questions: Container[str]) -> Opinion:
    labels = {question: text for question, text in opinion.written.items() if question in questions}
    comments = tuple(text for text in opinion.comments if text not in labels.values())
    return replace(opinion, ratings={**opinion.ratings, **labels}, comments=comments) if labels else opinion


@dataclass(frozen=True)
class Tool:
    """A tool whose exports are read. `known` tells a row of it from any other; `opinions` reads one row and raises
    ValueError on one that is none; `declared` reads what the file, or one beside it, says of its questions.
    `counting` is how its offsets count, as far as that is known.
    """

    name: str
    known: Callable[[Row], bool]
    opinions: Callable[[Row, str, Names], Iterable[Opinion]]
    declared: Callable[[Path, Sequence[Row]], Names] = lambda path, rows: Names()
    counting: Counting | None = None


@dataclass(frozen=True)
class Told:
    """The records of a tool's file, what of its ratings was read and how, and what was not used."""

    records: list[Feedback]
    lines: tuple[str, ...]
    losses: tuple[str, ...]


def records_of(tool: Tool, opinions: Sequence[Opinion], names: Names, given: Mapping[str, Scale]) -> Told:
    """All opinions of a file as records.

    Raises:
        UserError: `given` (by `--scale`) or `--map score` does not fit the ratings of the file.
    """
    meant = settled_labels([each for each in opinions if not each.skipped])
    values: dict[str, list[object]] = {}
    for question, value in ((q, v) for each in meant for q, v in each.ratings.items()):
        values.setdefault(question, []).append(value)
    scales = Scales.of(values, given, names.scales, next(iter(names.chosen.get("score", ())), ""), names.options)
    labels = names.labels()
    records = [_record(tool, each, scales, labels) for each in meant]
    return Told(records, scales.lines, (*_left(opinions), *_unlabelled(meant, labels), *scales.problems))


def _record(tool: Tool, opinion: Opinion, scales: Scales, labels: Mapping[str, Label]) -> Feedback:
    meta: dict[str, Any] = {"dataset": tool.name, "annotator": opinion.annotator, "corrected": opinion.corrected}
    meta |= {"ratings": dict(opinion.ratings), "aside": dict(opinion.aside)}
    if opinion.failure:
        failure = Failure(kind="unsupported", message=opinion.failure)
        return human_record(opinion.id, opinion.prompt, opinion.response, failure, meta)
    marks = settled(opinion.marks, opinion.response, tool.counting)
    spans, counts = placed(marks, opinion.response, labels)
    lost = sum(opinion.misplaced.values())
    critique = Critique(
        text="\n".join(opinion.comments),
        spans=spans,
        score=scales.score(opinion.ratings),
        quotes=counts.model_copy(update={"unmatched": counts.unmatched + lost}),
    )
    return human_record(opinion.id, opinion.prompt, opinion.response, critique, meta)


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
    if empty := sum(not (o.skipped or o.says_something) for o in opinions):
        yield f"records in which nothing was marked, rated or written: {empty}"


def _unlabelled(opinions: Iterable[Opinion], labels: Mapping[str, Label]) -> Iterator[str]:
    """The labels of marks that neither praise nor blame, and what would tell."""
    names = (mark.label for each in opinions for mark in each.marks if mark.label.strip().casefold() not in labels)
    if found := Counter(names):
        shown = ", ".join(f"{name!r} ({count})" for name, count in found.most_common(6))
        example = next(iter(found)) or "LABEL"
        cure = f"say which do: --map {shlex.quote(f'poor={example}')}"
        yield f"labels that neither praise nor blame give no span: {shown} ({cure})"


def mapped(words: Sequence[str], kind: str) -> dict[str, tuple[str, ...]]:
    """`--map response=answer,poor=Typo,poor=Wrong` for the file of a tool: ours -> theirs.

    Raises:
        UserError: it is written otherwise, or names what a tool's file does not have.
    """
    found: dict[str, tuple[str, ...]] = {}
    for ours, equals, theirs in (pair.partition("=") for word in words for pair in word.split(",")):
        if not (equals and theirs.strip()) or ours.strip() not in MAPPED:
            cure = f"write --map response=FIELD; for {kind}: {', '.join(MAPPED)}"
            raise UserError(f"--map {ours.strip()!r} cannot be read", cure, 2)
        found[ours.strip()] = (*found.get(ours.strip(), ()), theirs.strip())
    return found


SCORE_SCALE = {"score_scale": "-1..1"}
"""What files of our own say in a row's `meta`, so that they can be read again: their scores are scores."""


def own_scales(rows: Sequence[Row]) -> dict[str, Scale]:
    """The scale of `score`, where the first row's `meta` (or `metadata`) has a `score_scale`."""
    found = [row[key] for row in rows[:1] for key in ("meta", "metadata") if isinstance(row.get(key), dict)]
    said = next((meta["score_scale"] for meta in found if "score_scale" in meta), None)
    return {"score": parse_scale(said, BY_FILE)} if isinstance(said, str) else {}


def text_in(row: Mapping[str, Any], *keys: str) -> str:
    """The first of `keys` that holds text, or a number as text; else ""."""
    found = (row.get(key) for key in keys)
    return next((str(each) for each in found if each != "" and type(each) in (str, int)), "")
