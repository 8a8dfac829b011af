"""Opinions, the second pass: rows -> opinions -> records.

An `Importer` turns each row of one kind of file into opinions: what one person said about one
response, with the offsets, ratings and words of the file. The third pass (`data.records`) needs the
whole file: it decides on the scale of ratings and the unit of offsets, and lists what is unused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from text2grad.data.conversations import (
    Exchange,
    TurnWriter,
    add_system_message,
    default_turn_text,
    is_turn,
    parse_turns,
    read_prompt,
)
from text2grad.data.files import LocatedRow, Row, RowError, convert_located_rows, name_text
from text2grad.data.keys import COMMENT_KEYS, CORRECTED_KEYS, TOOL_PROMPT_KEYS, TOOL_RESPONSE_KEYS
from text2grad.data.scale import Scale, score_word
from text2grad.data.spans.marks import HUMAN, POLARITY, Counting, Mark
from text2grad.feedback import Label, Message, QuoteCounts, Source, Span

NO_COUNTS = QuoteCounts()
NO_ERROR = "No error was found."
"""The critique where annotators of a data set looked for errors and marked none."""
_LABEL = re.compile(r"[\w+-]{1,40}|[\W\d_]*\d[\W\d_]*")


@dataclass(frozen=True)
class Names:
    """Names of texts and questions in a file, as `--map` and the file declare them.

    Attributes:
        mapped: by `--map`, our field -> the keys of the file.
        texts: a question, or a tag of Label Studio -> the key of the text that it marks.
        scales: the scales of questions.
        options: the possible answers of questions.
        free_text: questions that are answered in words.
        companion: the content of a second file, such as the texts of questions by key.
        context_characters: the length to which the policy's task cuts a prompt.
        write: writes a turn with tool calls as the policy would.
        no_prompt: allow records without a prompt.
    """

    mapped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    free_text: frozenset[str] = frozenset()
    companion: Mapping[Any, Any] = field(default_factory=dict)
    context_characters: int | None = None
    write: TurnWriter = default_turn_text
    no_prompt: bool = False

    def key(self, row: Mapping[str, Any], ours: str, keys: Sequence[str]) -> str:
        """Return the key of `row` that holds the text of our field, or ""."""
        keys = self.mapped.get(ours, keys)
        return next((key for key in keys if isinstance(row.get(key), str) and row[key]), "")

    def response(self, row: Mapping[str, Any], keys: Sequence[str] = TOOL_RESPONSE_KEYS) -> str:
        """Return the key of the response.

        Raises:
            ValueError: no key holds text.
        """
        if key := self.key(row, "response", keys):
            return key
        keys = self.mapped.get("response", keys)
        texts = ", ".join(str(key) for key, text in row.items() if isinstance(text, str))[:200] or "none"
        cure = f"name its key: --map response=KEY; keys with text: {texts}"
        raise RowError(f"no text in {', '.join(map(repr, keys))}", cure)

    def exchange(self, row: Row, response: str) -> Exchange:
        """Return the response at a key of a row, with the prompt of all keys that `--map` names."""
        keys = [key for key in self.mapped.get("prompt", TOOL_PROMPT_KEYS) if key != response]
        prompt, used = read_prompt(row, self.write, keys, join="prompt" in self.mapped)
        prompt, used = add_system_message(row, prompt, used)
        extra = {key: value for key, value in row.items() if key not in (response, *used)}
        return Exchange(prompt, row[response], False, extra, next(iter(used), ""))

    def is_comment(self, question: str) -> bool:
        """True if the answer to a question is a critique in words."""
        return question in self.mapped.get("critique", COMMENT_KEYS) or question in self.free_text

    def is_corrected(self, question: str) -> bool:
        """True if the answer to a question is the corrected response."""
        return question in self.mapped.get("corrected", CORRECTED_KEYS)

    def target_text(self, question: str, texts: Mapping[str, str], response: str) -> str:
        """Return the key of the text that the marks of a question (or tag) are on.

        That is the text that the file or `--map` declares, else the only one, else "".
        """
        if question in self.texts:
            return self.texts[question]
        return response if len(texts) == 1 or "response" in self.mapped else ""

    def labels(self) -> dict[str, Label]:
        """Return the labels of praise and criticism, in lower case."""
        good: dict[str, Label] = {label.casefold(): 1 for label in self.mapped.get("good", ())}
        return {**POLARITY, **good, **{label.casefold(): -1 for label in self.mapped.get("poor", ())}}


@dataclass
class Opinion:
    """The words, marks and ratings of one person about one response, filled in by an importer.

    Attributes:
        id: the id of the record, before `part` is added.
        response: the text that is judged.
        prompt: text or turns.
        annotator: the person, "" if unknown.
        marks: marks with the offsets of the file.
        comments: comments on the whole response.
        ratings: answers by question, as given.
        score: the verdict from -1 to 1, where the importer knows it.
        spans: the spans, where the importer knows them.
        counts: counts of the quotes and marks that gave no span.
        omissions: what the response leaves out.
        missing_quotes: quotes that are not in the response.
        corrected: the corrected response.
        meta: kept in the record.
        source: who judged.
        part: distinguishes several opinions of one row in their ids.
        aside: answers that are neither marks, ratings nor words, such as a ranking; kept in `meta`.
        unread: the rest of the row.
        prompt_key: the key of a prompt that is text.
        failure: why the record has no judgement.
        skipped: why the entry is not an opinion.
        misplaced: counts of marks on another or an unknown text, by reason.
        losses: lines on what gave no span.
        anchored: words that were marked because the comment quotes them.
        location: the row in the file.
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
    location: str = ""

    @property
    def has_content(self) -> bool:
        """True if anything was marked, rated or written."""
        content = (self.marks, self.spans, self.comments, self.ratings, self.aside, self.corrected, self.failure)
        return any(content) or self.score is not None

    def count_misplaced(self, target: str) -> None:
        """Count a mark on the text `target`, "" for a mark that may be on any of several."""
        reason = "that may be on any of several texts (if they are on the response, name it: --map response=KEY)"
        self.misplaced[f"on {target!r} and not on the response" if target else reason] += 1

    def add_answer(self, question: str, value: object, names: Names) -> None:
        """Add the answer to a question as a correction, a comment, a rating, or aside."""
        single = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is None or value == "" or value == []:
            return
        # A choice or a rating: a verdict, one word, or figures (`4/5`).
        word = str(value).strip()
        is_label = score_word(word) is not None or _LABEL.fullmatch(word)
        if isinstance(value, str) and names.is_corrected(question):
            self.corrected = value
        elif isinstance(value, str) and (names.is_comment(question) or not is_label):
            self.comments.append(value)
        elif isinstance(single, str | int | float) or (
            isinstance(single, list) and all(isinstance(word, str) for word in single)
        ):
            self.ratings[question] = single
        else:
            self.aside[question] = value


def skipped_opinion(reason: str) -> Opinion:
    """Return an entry of a file that is not an opinion."""
    return Opinion("", skipped=reason)


@dataclass(frozen=True)
class Importer:
    """A reader of one kind of file.

    Attributes:
        name: as in `import --kind`.
        opinions: `opinions(row, fallback_id, names)` reads one row; it raises ValueError on a row
            that cannot be read.
        keys: a row of this kind has these keys.
        accepts: a row of this kind also passes this test.
        names: reads what the file, or another file in its folder, declares about its questions.
        counting: how offsets count, where the tool fixes it.
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
        """Read the opinions of a row; where there are several, `part` is added to their ids.

        Raises:
            ValueError: the row is of another kind, or cannot be read.
        """
        if not self.recognises(row):
            raise RowError(f"not a record of {self.name}", "leave --kind out, or fix the file")
        opinions = list(self.opinions(row, fallback_id, names))
        if invalid := [opinion for opinion in opinions if not isinstance(opinion, Opinion)]:
            raise ValueError(f"the importer {self.name} yields {type(invalid[0]).__name__}, not Opinion")
        used = [opinion for opinion in opinions if not opinion.skipped]
        if not all(isinstance(opinion.response, str) for opinion in used):
            raise ValueError("the response is not text")
        for opinion in used if len(used) > 1 else ():
            opinion.id += "" if opinion.part is None else f"-{opinion.part}"
        return opinions


def read_opinions(importer: Importer, path: Path, rows: Sequence[LocatedRow], names: Names) -> list[Opinion]:
    """Read all opinions of a file, each with the location of its row.

    Raises:
        UserError: names all rows that cannot be read, and why.
    """

    def read_row(row: Row, fallback_id: str) -> list[Opinion]:
        return importer.read(row, fallback_id, names)

    opinions: list[Opinion] = []
    noun = f"record of {importer.name}"
    for location, opinion in convert_located_rows(rows, path, importer.keys, read_row, noun):
        opinion.location = location
        opinions.append(opinion)
    return opinions


def split_last_turn(row: Row) -> Row:
    """Split the only conversation of a row into its last turn, the assistant's, and the prompt.

    Other rows are returned unchanged.
    """
    conversations = [
        value for value in row.values() if isinstance(value, list) and value and all(map(is_turn, value))
    ]
    if len(conversations) != 1 or conversations[0][-1]["role"] != "assistant":
        return row
    if any(key in row for key in TOOL_RESPONSE_KEYS[:3]):
        return row
    (turns,) = conversations
    return {**row, "prompt": turns[:-1], "response": parse_turns(turns, "conversation")[-1].content}


def find_text(row: Mapping[str, Any], *keys: str) -> str:
    """Return the first text, or whole number as text, under one of `keys`; else ""."""
    return next(filter(None, (name_text(row.get(key)) for key in keys)), "")
