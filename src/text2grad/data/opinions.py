"""Opinions, the second pass: rows -> opinions -> records.

An `Importer` turns each row of one kind of file into opinions: what one person said about one
response, with the offsets, ratings and words of the file. The third pass (`data.records`) settles
what only the whole file tells: the scale of its ratings, the counting of its offsets, and what is
not used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from text2grad.data.conversations import (
    PROMPTS,
    Exchange,
    TurnWriter,
    add_system_message,
    default_turn_text,
    is_turn,
    parse_turns,
    read_prompt,
)
from text2grad.data.files import LocatedRow, Row, RowError, convert_located_rows, name_text
from text2grad.data.scale import Scale, score_word
from text2grad.data.spans.marks import HUMAN, POLARITY, Counting, Mark
from text2grad.feedback import Label, Message, QuoteCounts, Source, Span

RESPONSE_KEYS = ("response", "text", "completion", "answer", "summary", "candidate", "output")
PROMPT_KEYS = (*PROMPTS, "source", "post", "input")
COMMENT_KEYS = tuple(
    ["critique", "comment", "comments", "feedback", "reason", "explanation", "note", "notes", "user_input"]
)
CORRECTED_KEYS = ("corrected", "correction", "corrected_response", "improved", "improved_response", "rewrite")
NO_COUNTS = QuoteCounts()
NO_ERROR = "No error was found."
"""The critique of a data set whose annotators looked for errors and marked none."""
_LABEL = re.compile(r"[\w+-]{1,40}|[\W\d_]*\d[\W\d_]*")


@dataclass(frozen=True)
class Names:
    """The places of texts and answers in a file.

    `chosen` is by `--map` (our name -> theirs). By the file's own declarations: `texts` (a question
    or a tag -> the text that it is about), `scales` and `options` of questions, `written`
    (questions answered in words), and `source`, the file that declares them. `beside` is what
    another file beside it says (texts of questions, by key), `context_characters` the length of a
    prompt that the policy's task shows, `write` the policy's way to write a turn with calls of
    tools, and `no_prompt` says that records may say nothing of what was asked.
    """

    mapped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    free_text: frozenset[str] = frozenset()
    source: str = ""
    companion: Mapping[Any, Any] = field(default_factory=dict)
    context_characters: int | None = None
    write: TurnWriter = default_turn_text
    no_prompt: bool = False

    def key(self, row: Mapping[str, Any], ours: str, keys: Sequence[str]) -> str:
        """The key of `row` that has this text; "" if there is none."""
        names = self.mapped.get(ours, keys)
        return next((name for name in names if isinstance(row.get(name), str) and row[name]), "")

    def response(self, row: Mapping[str, Any], keys: Sequence[str] = RESPONSE_KEYS) -> str:
        """The key of the response.

        Raises:
            ValueError: there is none.
        """
        if key := self.key(row, "response", keys):
            return key
        names = ", ".join(map(repr, self.mapped.get("response", keys)))
        texts = ", ".join(str(name) for name, text in row.items() if isinstance(text, str))[:200] or "none"
        raise RowError(f"no text in {names}", f"say which it is: --map response=KEY; texts there: {texts}")

    def exchange(self, row: Row, response: str) -> Exchange:
        """The response under a key of a row, and the row's prompt, of all keys of `--map`."""
        names = [name for name in self.mapped.get("prompt", PROMPT_KEYS) if name != response]
        prompt, used = add_system_message(row, *read_prompt(row, self.write, names, every="prompt" in self.mapped))
        others = {name: value for name, value in row.items() if name not in (response, *used)}
        return Exchange(prompt, row[response], False, others, next(iter(used), ""))

    def is_comment(self, question: str) -> bool:
        """True if the answer to a question is a critique in words."""
        return question in self.mapped.get("critique", COMMENT_KEYS) or question in self.free_text

    def is_corrected(self, question: str) -> bool:
        """True if the answer to a question is the response as it should be."""
        return question in self.mapped.get("corrected", CORRECTED_KEYS)

    def target_text(self, question: str, texts: Mapping[str, str], response: str) -> str:
        """The text that the marks of a question (or tag) are on: as the file or `--map` says, else
        the only text; "" if nothing tells.
        """
        if question in self.texts:
            return self.texts[question]
        return response if len(texts) == 1 or "response" in self.mapped else ""

    def labels(self) -> dict[str, Label]:
        """The labels that praise and blame, in lower case."""
        good: dict[str, Label] = {name.casefold(): 1 for name in self.mapped.get("good", ())}
        return {**POLARITY, **good, **{name.casefold(): -1 for name in self.mapped.get("poor", ())}}


@dataclass
class Opinion:
    """The words, marks and ratings of one person about one response; an importer fills it in.

    `marks` have the file's own offsets, `comments` are on the whole response, `ratings` are values
    by question as they were given. An importer that knows the verdict or the spans sets `score` and
    `spans`, with `counts` of the marks that gave none. `omissions` is what the response leaves out,
    `lost` are quotes that are not in it, `meta` is kept of the row. `part` is added to the id where
    a row has several opinions.

    `answer` fills in the rest; `aside` is what is neither a mark nor a rating nor words (a ranking,
    say), kept in `meta`. `skipped` says why it is no opinion at all, `failure` why it is a record
    without a judgement. `unread` is the rest of the row, and `asks` the key of its prompt.
    `misplaced` counts marks on another text or on an unknown one, `losses` are lines on what gave
    no span, `anchored` words that were marked because the comment quotes them; `place` is that of
    the row.
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
    missing_quotes: Sequence[str] = ()
    corrected: str = ""
    meta: Mapping[str, object] = field(default_factory=dict)
    source: Source = HUMAN
    part: str | None = None
    aside: dict[str, object] = field(default_factory=dict)
    unread: Mapping[str, object] = field(default_factory=dict)
    prompt_key: str = ""
    failure: str = ""
    skipped: str = ""
    misplaced: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    anchored: list[str] = field(default_factory=list)
    place: str = ""

    @property
    def has_content(self) -> bool:
        """True if there is anything in it."""
        content = (self.marks, self.spans, self.comments, self.ratings, self.aside, self.corrected, self.failure)
        return any(content) or self.score is not None

    def count_misplaced(self, about: str) -> None:
        """Count a mark that is on the text `about`, or ("") that may be on any."""
        why = f"on {about!r} and not on the response" if about else "that may be on any of several texts"
        cure = "" if about else " (if they are on the response, name it: --map response=KEY)"
        self.misplaced[why + cure] += 1

    def add_answer(self, question: str, value: object, names: Names) -> None:
        """Add the answer to a question: words of a comment, a correction, a rating, or something
        aside."""
        single = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is None or value == "" or value == []:
            return
        if isinstance(value, str) and names.is_corrected(question):
            self.corrected = value
        elif isinstance(value, str) and (names.is_comment(question) or not _is_label(value)):
            self.comments.append(value)
        elif isinstance(single, str | int | float) or (
            isinstance(single, list) and all(isinstance(word, str) for word in single)
        ):
            self.ratings[question] = single
        else:
            self.aside[question] = value


def skipped_opinion(id: str, why: str) -> Opinion:
    """An entry of a file that is not an opinion."""
    return Opinion(id, skipped=why)


def _is_label(value: str) -> bool:
    """True if a text names a choice or a rating: a verdict, one word, or figures (`4/5`)."""
    word = value.strip()
    return score_word(word) is not None or bool(_LABEL.fullmatch(word))


@dataclass(frozen=True)
class Importer:
    """The way to recognise and read the rows of one kind of file.

    `opinions(row, id, names)` reads one row; `id` is for a row that brings none. It raises
    ValueError on a row that cannot be read. A row is of this kind if it has `keys` and is `known`.
    `names` reads what the file, or another file beside it, says of its questions; `counting` is the
    counting of its offsets, where the tool fixes one.
    """

    name: str
    opinions: Callable[[Row, str, Names], Iterable[Opinion]]
    keys: frozenset[str] = frozenset()
    accepts: Callable[[Row], bool] = lambda row: True
    names: Callable[[Path, Sequence[Row]], Names] = lambda path, rows: Names()
    counting: Counting | None = None

    def recognises(self, row: Row) -> bool:
        """True if a row is of this kind."""
        return self.keys <= row.keys() and self.accepts(row)

    def read(self, row: Row, fallback_id: str, names: Names) -> list[Opinion]:
        """Read the opinions of a row; several that judge one response get ids of their own.

        Raises:
            ValueError: the row is of another kind, or cannot be read.
        """
        if not self.recognises(row):
            raise RowError(f"not a record of {self.name}", "leave --kind out, or fix the file")
        opinions = list(self.opinions(row, fallback_id, names))
        if odd := [opinion for opinion in opinions if not isinstance(opinion, Opinion)]:
            raise ValueError(f"the importer {self.name} yields {type(odd[0]).__name__}, and no Opinion")
        meant = [opinion for opinion in opinions if not opinion.skipped]
        if not all(isinstance(opinion.response, str) for opinion in meant):
            raise ValueError("the response is not text")
        for opinion in meant if len(meant) > 1 else ():
            opinion.id += "" if opinion.part is None else f"-{opinion.part}"
        return opinions


def read_opinions(importer: Importer, path: Path, rows: Sequence[LocatedRow], names: Names) -> list[Opinion]:
    """All opinions of a file, each with the place of its row.

    Raises:
        UserError: rows cannot be read (which, and why).
    """
    noun = f"record of {importer.name}"
    placed = list(
        convert_located_rows(rows, path, importer.keys, lambda row, id: importer.read(row, id, names), noun)
    )
    for place, opinion in placed:
        opinion.place = place
    return [opinion for _, opinion in placed]


def last_turn(row: Row) -> Row:
    """A row whose one text is a conversation that ends with the assistant, as its last turn and
    those before."""
    talks = [value for value in row.values() if isinstance(value, list) and value and all(map(is_turn, value))]
    if len(talks) != 1 or talks[0][-1]["role"] != "assistant" or any(key in row for key in RESPONSE_KEYS[:3]):
        return row
    return {**row, "prompt": talks[0][:-1], "response": parse_turns(talks[0], "conversation")[-1].content}


def find_text(row: Mapping[str, Any], *keys: str) -> str:
    """The first of `keys` that holds text, or a whole number as text; else ""."""
    return next(filter(None, (name_text(row.get(key)) for key in keys)), "")
