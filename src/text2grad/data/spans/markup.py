"""Mark-up in a response: `due [-next week-]{the mail says Friday}`, `[+...+]` for praise, and
corrections.

`[-a-]{+b+}` says what should be there instead, as `git diff --word-diff` writes it, and `{+b+}`
alone what is missing; `<bad>...</bad>` and `<good>...</good>` are marks as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from text2grad.data.spans.marks import POLARITY, Mark
from text2grad.feedback.locate import find_all

_OPENING = re.compile(r"\[[+-]|\{\+(?!\+)|<(good|bad|poor|wrong)>", re.IGNORECASE)
BRACKETS = re.compile(r"\[[+-]|[+-]\]|\{\+|\+\}|</?(?:good|bad|poor|wrong)>", re.IGNORECASE)
"""What begins or ends a mark."""
_OTHERS = re.compile(
    r"\{--.+?--\}|\{\+\+.+?\+\+\}|\{~~.+?~>.*?~~\}|\{==.+?==\}"  # CriticMarkup
    r"|<(del|ins|error|incorrect|negative|positive|correct|good|bad|poor|wrong)\b[^<>]*>.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)
_SPACE_BEFORE = (" ", ".", ",", ";", ":", "!", "?", "\n", "")
"""What may follow a word that was taken out or put in, so that the text without it has no space
there."""


@dataclass
class MarkedText:
    """A text without its mark-up, and the intervals of it that were marked.

    `corrected` is the text with all corrections made, "" if there are none or not all are known;
    `omissions` are the words it has that replace nothing; `doubts` are what looks like mark-up and
    stays in the text.
    """

    text: str
    marks: list[Mark] = field(default_factory=list)
    corrected: str = ""
    omissions: tuple[str, ...] = ()
    doubts: list[str] = field(default_factory=list)

    def write(self, text: str) -> None:
        """Add text that is not marked."""
        self.text += text
        self.corrected += text

    def mark(self, label: str, inner: str, reason: str, instead: str | None, following: str) -> None:
        """Add a mark, and its correction if there is one; `following` is the character after it."""
        start = len(self.text)
        why = reason or (f"should be: {instead}" if instead else "")
        self.text += inner
        self.marks.append(Mark(start, len(self.text), label, inner, why))
        if label == "+1" or instead:
            self.corrected += instead or inner
        elif self.corrected.endswith(" ") and following in _SPACE_BEFORE:
            self.corrected = self.corrected[:-1]

    def insert(self, inner: str, following: str) -> None:
        """Add words that are missing. Of the spaces on both sides of them the text itself had
        one."""
        last = self.marks[-1].end if self.marks else 0
        if following in _SPACE_BEFORE and self.text.endswith(" ") and last < len(self.text):
            self.text = self.text[:-1]
        self.corrected += inner
        self.omissions += (inner.strip(),)


def read_markup(text: str) -> MarkedText:
    """Take the mark-up out of a text.

    What is marked has as many opening as closing square brackets, so that `[+-]?[0-9+]` and `a[-1]`
    are no mark-up; a reason is in balanced braces.

    Raises:
        ValueError: a reason is not closed, or a mark is inside another.
    """
    out, place = MarkedText(""), 0
    corrects = unclear = False
    while found := _OPENING.search(text, place):
        out.write(text[place : found.start()])
        inner, place = _inner(text, found)
        if not inner and not (found[0] == "{+" and place):
            out.write(found[0])
            # No bracket closes what opens here (`[-next week.`, and not `a[-1]`).
            if found[0][0] == "[" and all(depth > 0 for depth in _depths(text[found.start() :], "[]")):
                out.doubts.append(text[found.start() :][:40])
            place = found.end()
        elif found[0] == "{+":
            out.insert(inner, text[place : place + 1])
            corrects = True
        else:
            label = f"{POLARITY[found[1].lower()]:+d}" if found[1] else f"{found[0][1]}1"
            if has_markup(inner):
                raise ValueError(f"a mark is inside another: {text[found.start() : place][:60]!r}")
            reason, instead, place = _said(text, place, label)
            out.mark(label, inner, reason, instead, text[place : place + 1])
            corrects |= instead is not None
            unclear |= label == "-1" and instead is None and bool(reason)
    out.write(text[place:])
    out.corrected = out.corrected if corrects and not unclear else ""
    out.doubts += [found[0] for found in _OTHERS.finditer(out.text)]
    return out


def has_markup(text: str) -> bool:
    """Whether there is mark-up in a text."""
    if not _OPENING.search(text):
        return False
    found = read_markup(text)
    return bool(found.marks or found.omissions)


def _inner(text: str, found: re.Match[str]) -> tuple[str, int]:
    """What the mark that opens here encloses, and where the text goes on behind it; "" and 0: it
    opens none."""
    if found[0] == "{+":
        end = text.find("+}", found.end() + 1)
        return (text[found.end() : end], end + 2) if end >= 0 else ("", 0)
    if found[1]:
        closing = re.compile(rf"</{found[1]}>", re.IGNORECASE).search(text, found.end())
        return (text[found.end() : closing.start()], closing.end()) if closing else ("", 0)
    inner = _enclosed(text, found.end(), found[0][1])
    return (inner, found.end() + len(inner) + 2) if inner else ("", 0)


def _said(text: str, place: int, label: str) -> tuple[str, str | None, int]:
    """The reason and the correction that stand right behind a mark, and where the text goes on."""
    reason, instead = "", None
    while text.startswith("{", place):
        end = text.find("+}", place + 3) if text.startswith("{+", place) and label == "-1" else -1
        if end >= 0 and instead is None:
            instead, place = text[place + 2 : end], end + 2
        elif reason or text.startswith("{+", place):
            break
        else:
            end = _closing_brace(text, place)
            reason, place = text[place + 1 : end].strip(), end + 1
    return reason, instead, place


def _enclosed(text: str, start: int, sign: str) -> str:
    """What stands between an opening at `start` and the first closing after which brackets are
    balanced."""
    for end in find_all(f"{sign}]", text[start:]):
        inner = text[start : start + end]
        if all(depth >= 0 for depth in _depths(inner, "[]")) and inner.count("[") == inner.count("]"):
            return inner
    return ""


def _depths(text: str, brackets: str) -> Iterator[int]:
    """How many brackets are open behind each character."""
    return accumulate((character == brackets[0]) - (character == brackets[1]) for character in text)


def _closing_brace(text: str, start: int) -> int:
    closing = next((place for place, depth in enumerate(_depths(text[start:], "{}")) if not depth), 0)
    if not closing:
        raise ValueError(f"the reason {text[start : start + 40]!r} behind a mark is not closed: a '}}' is missing")
    return start + closing


def write_markup(text: str, marks: Iterable[Mark]) -> str:
    """A text with its marks written into it; `read_markup` takes them out unless text or marks are
    unlucky."""
    for start, end, label, _, reason, _ in sorted(marks, reverse=True):
        sign = "+" if label == "+1" else "-"
        why = f"{{{reason}}}" if reason else ""
        text = f"{text[:start]}[{sign}{text[start:end]}{sign}]{why}{text[end:]}"
    return text
