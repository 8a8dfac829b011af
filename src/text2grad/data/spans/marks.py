"""Spans from an annotator's marks, and from the differences of a corrected text."""

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
"""The names that are written; `POLARITY` has all names that are read, in any case."""
POLARITY: dict[str, Label] = {
    **{word: (1 if score > 0 else -1) for word, score in VERDICTS.items() if score},
    **dict.fromkeys(("strength", "+", "+1", "1"), 1),
    **dict.fromkeys(("error", "weakness", "fault", "-", "-1"), -1),
}
HUMAN = Source(kind="human")
_PIECE = re.compile(r"\r\n|[\s\S]")


class Mark(NamedTuple):
    """A marked interval, end exclusive, in the offsets of its file.

    `text` is what the annotator saw there, "" if unknown.
    """

    start: int
    end: int
    label: str
    text: str = ""
    reason: str = ""
    weight: Any = 1.0

    @classmethod
    def parse(cls, value: Mapping[str, Any], **keys: str) -> Mark:
        """Read a mark from an object; `keys` rename its keys, as in `label="tag"`.

        Raises:
            ValueError: the offsets are not whole numbers.
        """
        offsets = [value[keys.get(name, name)] for name in ("start", "end")]
        start, end = map(_parse_offset, offsets)
        if start is None or end is None:
            raise ValueError(f"offsets {offsets[0]!r} and {offsets[1]!r} are not whole numbers")
        label, text, reason = (str(value.get(keys.get(name, name)) or "") for name in ("label", "text", "reason"))
        return cls(start, end, label, text, reason)

    def at(self, start: int, end: int) -> Mark:
        """Return the mark at another place."""
        return self._replace(start=start, end=end)


def _parse_offset(value: Any) -> int | None:
    """Parse a whole number, also as text or as 3.0."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Counting(NamedTuple):
    """The unit of offsets: code points or UTF-16 units; CRLF is one unit in a browser."""

    utf16: bool = False
    crlf_is_one: bool = False


CODE_POINTS, BROWSER = Counting(), Counting(utf16=True, crlf_is_one=True)
COUNTINGS = (CODE_POINTS, Counting(utf16=True), BROWSER, Counting(crlf_is_one=True))


def _code_points(text: str, counting: Counting) -> dict[int, int]:
    """Map the offsets of a counting to code points."""
    code_points, offset = {0: 0}, 0
    for index, character in enumerate(text, start=1):
        if not (counting.crlf_is_one and text[index - 1 : index + 1] == "\r\n"):
            offset += 2 if counting.utf16 and ord(character) > 0xFFFF else 1
            code_points[offset] = index
    return code_points


def _place(mark: Mark, code_points: Mapping[int, int]) -> Place:
    """Return the code points of a mark, -1 for an offset that is not in the text."""
    return code_points.get(mark.start, -1), code_points.get(mark.end, -1)


def _fits(mark: Mark, text: str, code_points: Mapping[int, int]) -> bool:
    """True if a mark has its quote at its place; without a quote, if it covers whole words."""
    start, end = _place(mark, code_points)
    if not 0 <= start < end:
        return False
    if mark.text:
        return _as_shown(mark.text) == _as_shown(text[start:end])
    return not (inside_word(text, start) or inside_word(text, end))


def to_code_points(marks: Sequence[Mark], text: str, tool: Counting | None = None) -> list[Mark]:
    """Convert the offsets of marks to code points of `text`; -1 where they are ambiguous.

    A mark with a quote is placed by a counting in which its offsets have the quote, else at the
    quote's only place. Marks without a quote use one counting for the whole text. If several remain
    possible after the marks with quotes, those in which the marks cover whole words are preferred,
    then the counting of the `tool`. A browser's counting is only preferred, never enforced: a
    program may have written the marks of such a tool.
    """
    if not marks:
        return []
    by_counting = {counting: _code_points(text, counting) for counting in (*([tool] if tool else []), *COUNTINGS)}
    bare, quoting = [mark for mark in marks if not mark.text], [mark for mark in marks if mark.text]
    fitting = [
        counting for counting in COUNTINGS if all(_fits(mark, text, by_counting[counting]) for mark in quoting)
    ]
    possible = [tool] if tool is not None and tool != BROWSER else fitting or COUNTINGS
    places = {counting: tuple(_place(mark, by_counting[counting]) for mark in bare) for counting in possible}
    on_words = {
        places[counting] for counting in possible if all(_fits(mark, text, by_counting[counting]) for mark in bare)
    }
    tool_places = {places[tool]} if tool in places else set()
    candidates = (on_words, {*places.values()}, tool_places)
    (bare_places,) = next((ways for ways in candidates if len(ways) == 1), {((-1, -1),) * len(bare)})
    remaining = iter(bare_places)
    return [
        _locate_quote(mark, by_counting.values(), text) if mark.text else mark.at(*next(remaining))
        for mark in marks
    ]


def _locate_quote(mark: Mark, countings: Iterable[Mapping[int, int]], text: str) -> Mark:
    """Place a mark by its offsets if they have its quote, else at the quote's only place."""
    places = [_place(mark, code_points) for code_points in countings if _fits(mark, text, code_points)][:1]
    places = places or list(_find_shown(_as_shown(mark.text), text))
    if len(places) != 1:
        return mark.at(-1, -1)
    return mark.at(*places[0])._replace(text=text[slice(*places[0])])


def _find_shown(quote: str, text: str) -> Iterator[Place]:
    """Yield the places of a quote in a text, both as an editor shows them."""
    display, starts = "", []
    for piece in _PIECE.finditer(text):
        starts += [piece.start(), *[-1] * (len(_as_shown(piece[0])) - 1)]
        display += _as_shown(piece[0])
    starts.append(len(text))
    for place in find_all(quote, display) if quote else ():
        start, end = starts[place], starts[place + len(quote)]
        if start >= 0 and end >= 0:
            yield start, end


def fits_text(mark: Mark, text: str) -> bool:
    """True if a mark fits a text in some counting: its quote is there, or it covers whole words."""
    return any(_fits(mark, text, _code_points(text, counting)) for counting in COUNTINGS)


def _as_shown(text: str) -> str:
    """Return a text as an editor shows it: a line end as backslash and n."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\\n").replace("\xa0", " ")


def resolve_marks(
    marks: Iterable[Mark], response: str, labels: Mapping[str, Label] = POLARITY
) -> tuple[tuple[Span, ...], list[tuple[str, Mark]]]:
    """Convert the marks of a response, in code points, to spans; `labels` are in lower case.

    Returns:
        The spans in order, and (reason, mark) for each mark without one; a reason is a field of
        `QuoteCounts`.
    """
    unresolved: list[tuple[str, Mark]] = []
    spans: dict[tuple[int, int, int], Span] = {}
    for mark in marks:
        start, end, name, quote, reason, weight = mark
        label = labels.get(name.strip().casefold())
        text = response[start:end]
        if not 0 <= start < end <= len(response) or (quote and text != quote):
            unresolved.append(("unmatched", mark))
        elif label is None:
            unresolved.append(("no_polarity", mark))
        elif (start, end, label) in spans:
            unresolved.append(("repeated", mark))
        else:
            span = Span(start=start, end=end, label=label, text=text, reason=reason, weight=weight)
            spans[start, end, label] = span
    return sort_spans(spans.values()), unresolved


def build_human_record(
    id: str,
    prompt: str | tuple[Message, ...],
    response: str,
    judgement: Judgement,
    meta: Mapping[str, Any],
    source: Source = HUMAN,
) -> Feedback:
    """Build the record of a person's judgement; the judgement's own `meta` wins over `meta`."""
    judgement = judgement.model_copy(update={"meta": {**meta, **judgement.meta}})
    return Feedback.of(Example(id=id, prompt=as_turns(prompt)), response, judgement, source)


def as_turns(prompt: str | tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a prompt as turns; text, or no prompt, becomes a turn of the user."""
    return (Message(role="user", content=prompt or ""),) if isinstance(prompt, str) or not prompt else prompt


def drop_empty(**meta: object) -> dict[str, object]:
    """Return the arguments without those that are empty or zero (False is kept)."""
    return {name: value for name, value in meta.items() if value or isinstance(value, bool)}


def id_subject(record: Feedback) -> object:
    """Return what the id of a record identifies: its prompt, or the response if that is empty."""
    return record.prompt if any(turn.content for turn in record.prompt) else record.response


def diff_spans(response: str, corrected: str, reason: str = "") -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """Compare a response with its correction by words.

    Scripts without spaces are compared by characters. Unicode normalisation is no difference.

    Returns:
        Poor spans of the words that were removed or replaced, and the words that were inserted.
    """
    before, after = list(units(response)), list(units(corrected))
    matcher = difflib.SequenceMatcher(
        None,
        [unicodedata.normalize("NFC", response[start:end]) for start, end in before],
        [unicodedata.normalize("NFC", corrected[start:end]) for start, end in after],
        autojunk=False,
    )
    spans: list[Span] = []
    inserted: list[str] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        new = corrected[after[k][0] : after[m - 1][1]] if m > k else ""
        if kind in ("delete", "replace"):
            start, end = before[i][0], before[j - 1][1]
            why = reason or (f"should be: {new}" if new else "to be removed")
            spans.append(Span(start=start, end=end, label=-1, text=response[start:end], reason=why))
        elif kind == "insert":
            inserted.append(new)
    return tuple(spans), tuple(inserted)
