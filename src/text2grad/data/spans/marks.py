"""Marks become spans, and so do the differences of a corrected text; marks that cannot are
counted."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from text2grad.data.scale import VERDICTS
from text2grad.feedback import Example, Feedback, Judgement, Label, Message, Place, Source, Span
from text2grad.feedback.locate import find_all
from text2grad.feedback.quotes import sort_spans
from text2grad.unicode_words import inside_word, units

LABELS: dict[Label, str] = {1: "good", -1: "poor"}
"""The names that are written; `POLARITY` has those that are read, in whatever case."""
POLARITY: dict[str, Label] = {
    **{word: (1 if score > 0 else -1) for word, score in VERDICTS.items() if score},
    **dict.fromkeys(("strength", "+", "+1", "1"), 1),
    **dict.fromkeys(("error", "weakness", "fault", "-", "-1"), -1),
}
HUMAN = Source(kind="human")
_PIECE = re.compile(r"\r\n|[\s\S]")


class Mark(NamedTuple):
    """A marked interval: code points, end exclusive; `text` is what the annotator saw there, "" if
    unknown."""

    start: int
    end: int
    label: str
    text: str = ""
    reason: str = ""
    weight: Any = 1.0

    @classmethod
    def parse(cls, value: Mapping[str, Any], **keys: str) -> Mark:
        """A mark written with these names as keys, or with other `keys`: `label="tag"`.

        Raises:
            ValueError: its offsets are not whole numbers.
        """
        places = [value[keys.get(name, name)] for name in ("start", "end")]
        start, end = map(_whole, places)
        if start is None or end is None:
            raise ValueError(f"offsets {places[0]!r} and {places[1]!r} are not whole numbers")
        label, text, reason = (str(value.get(keys.get(name, name)) or "") for name in ("label", "text", "reason"))
        return cls(start, end, label, text, reason)

    def at(self, start: int, end: int) -> Mark:
        """The same mark in another place."""
        return self._replace(start=start, end=end)


def _whole(value: Any) -> int | None:
    """A whole number, also where it is written as text or as 3.0."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Counting(NamedTuple):
    """What one step of an offset is: a code point, or a UTF-16 unit; and whether a line end of two
    characters (CRLF) is one step, as it is in a browser.
    """

    utf16: bool = False
    crlf_is_one: bool = False


CODE_POINTS, BROWSER = Counting(), Counting(utf16=True, crlf_is_one=True)
COUNTINGS = (CODE_POINTS, Counting(utf16=True), BROWSER, Counting(crlf_is_one=True))


def _steps(text: str, counting: Counting) -> dict[int, int]:
    """The offsets of a text that count in one way -> code points."""
    steps, offset = {0: 0}, 0
    for index, character in enumerate(text, start=1):
        if not (counting.crlf_is_one and text[index - 1 : index + 1] == "\r\n"):
            offset += 2 if counting.utf16 and ord(character) > 0xFFFF else 1
            steps[offset] = index
    return steps


def _place(mark: Mark, steps: Mapping[int, int]) -> Place:
    """The code points of a mark; -1 for what is no place of the text."""
    return steps.get(mark.start, -1), steps.get(mark.end, -1)


def _fits(mark: Mark, text: str, steps: Mapping[int, int]) -> bool:
    """True if its quote stands where a mark says; a mark without a quote begins and ends where
    words do."""
    start, end = _place(mark, steps)
    if not 0 <= start < end:
        return False
    if mark.text:
        return _one_line(mark.text) == _one_line(text[start:end])
    return not (inside_word(text, start) or inside_word(text, end))


def to_code_points(marks: Sequence[Mark], text: str, tool: Counting | None = None) -> list[Mark]:
    """The marks in code points of `text`, whatever their offsets count; -1 where that cannot be
    told.

    What a mark quotes tells: its offsets are counted so that they have the quote, else it is the
    quote's only place. Marks that quote nothing are counted as those of the same text are; if that
    leaves several ways, so that they begin and end where words do, and else as the `tool` is known
    to count (of a browser's, a program may have written the marks, too). What could still be one of
    several is nothing.
    """
    if not marks:
        return []
    steps = {counting: _steps(text, counting) for counting in (*([tool] if tool else []), *COUNTINGS)}
    bare, quoting = [mark for mark in marks if not mark.text], [mark for mark in marks if mark.text]
    fitting = [each for each in COUNTINGS if all(_fits(mark, text, steps[each]) for mark in quoting)]
    possible = [tool] if tool is not None and tool != BROWSER else fitting or COUNTINGS
    found = {each: tuple(_place(mark, steps[each]) for mark in bare) for each in possible}
    edged = {places for each, places in found.items() if all(_fits(mark, text, steps[each]) for mark in bare)}
    own = {found[tool]} if tool in found else set()
    ways = next((ways for ways in (edged, set(found.values()), own) if len(ways) == 1), set())
    places = iter(ways.pop() if ways else [(-1, -1)] * len(bare))
    return [_quoted(mark, steps.values(), text) if mark.text else mark.at(*next(places)) for mark in marks]


def _quoted(mark: Mark, countings: Iterable[Mapping[int, int]], text: str) -> Mark:
    """A mark where its quote stands: as its offsets say, else in the quote's only place."""
    places = [_place(mark, steps) for steps in countings if _fits(mark, text, steps)][:1]
    places = places or list(_places(_one_line(mark.text), text))
    if len(places) != 1:
        return mark.at(-1, -1)
    return mark.at(*places[0])._replace(text=text[slice(*places[0])])


def _places(quote: str, text: str) -> Iterator[tuple[int, int]]:
    """Where a quote stands in a text, both as an editor shows them."""
    shown, begins = "", []
    for piece in _PIECE.finditer(text):
        begins += [piece.start(), *[-1] * (len(_one_line(piece[0])) - 1)]
        shown += _one_line(piece[0])
    begins.append(len(text))
    for place in find_all(quote, shown) if quote else ():
        start, end = begins[place], begins[place + len(quote)]
        if start >= 0 and end >= 0:
            yield start, end


def fits_text(mark: Mark, text: str) -> bool:
    """True if a mark's offsets, in one counting or another, have its quote; one without a quote,
    whole words."""
    return any(_fits(mark, text, _steps(text, counting)) for counting in COUNTINGS)


def _one_line(text: str) -> str:
    """A text as an editor shows it: a line end as backslash and n."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\\n").replace("\xa0", " ")


def resolve_marks(
    marks: Iterable[Mark], response: str, labels: Mapping[str, Label] = POLARITY
) -> tuple[tuple[Span, ...], list[tuple[str, Mark]]]:
    """The spans of marks, in order, and the marks that gave none, each with why (a name of
    `QuoteCounts`).

    `labels` are the names of labels in lower case.
    """
    lost: list[tuple[str, Mark]] = []
    spans: dict[tuple[int, int, int], Span] = {}
    for mark in marks:
        start, end, name, text, reason, weight = mark
        label = labels.get(name.strip().casefold())
        found = response[start:end]
        if not 0 <= start < end <= len(response) or (text and found != text):
            lost.append(("unmatched", mark))
        elif label is None:
            lost.append(("no_polarity", mark))
        elif (start, end, label) in spans:
            lost.append(("repeated", mark))
        else:
            span = Span(start=start, end=end, label=label, text=found, reason=reason, weight=weight)
            spans[start, end, label] = span
    return sort_spans(spans.values()), lost


def build_human_record(
    id: str,
    prompt: str | tuple[Message, ...],
    response: str,
    judgement: Judgement,
    meta: Mapping[str, Any],
    source: Source = HUMAN,
) -> Feedback:
    """A record of what a person said, with `meta` as it is."""
    said = judgement.model_copy(update={"meta": {**meta, **judgement.meta}})
    return Feedback.of(Example(id=id, prompt=as_turns(prompt)), response, said, source)


def as_turns(prompt: str | tuple[Message, ...]) -> tuple[Message, ...]:
    """A prompt as turns: in plain text, or where there is none, it is the user's."""
    return (Message(role="user", content=prompt or ""),) if isinstance(prompt, str) or not prompt else prompt


def drop_empty(**meta: object) -> dict[str, object]:
    """What is known, without what is empty or zero (False is kept)."""
    return {name: value for name, value in meta.items() if value or isinstance(value, bool)}


def id_subject(record: Feedback) -> object:
    """What the id of a record stands for: its prompt, or the response of one without a prompt."""
    return record.prompt if any(turn.content for turn in record.prompt) else record.response


def diff_spans(response: str, corrected: str, reason: str = "") -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """What a person's corrected text says of the response: words they took out or replaced are poor
    spans, words they only put in are omissions. Of scripts without spaces, characters are compared;
    composed or not is no edit.
    """
    before, after = list(units(response)), list(units(corrected))
    matcher = difflib.SequenceMatcher(
        None,
        [unicodedata.normalize("NFC", response[start:end]) for start, end in before],
        [unicodedata.normalize("NFC", corrected[start:end]) for start, end in after],
        autojunk=False,
    )
    spans: list[Span] = []
    missing: list[str] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        put_in = corrected[after[k][0] : after[m - 1][1]] if m > k else ""
        if kind in ("delete", "replace"):
            start, end = before[i][0], before[j - 1][1]
            why = reason or (f"should be: {put_in}" if put_in else "to be removed")
            spans.append(Span(start=start, end=end, label=-1, text=response[start:end], reason=why))
        elif kind == "insert":
            missing.append(put_in)
    return tuple(spans), tuple(missing)
