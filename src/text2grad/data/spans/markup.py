"""Mark-up in a response: `due [-next week-]{the mail says Friday}`, and `[+...+]` for praise.

Corrections are written as by `git diff --word-diff`: `[-a-]{+b+}` replaces, and `{+b+}` alone
inserts. `<bad>...</bad>` and `<good>...</good>` are marks too.
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
"""The start or the end of a mark."""
_OTHERS = re.compile(
    r"\{--.+?--\}|\{\+\+.+?\+\+\}|\{~~.+?~>.*?~~\}|\{==.+?==\}"  # CriticMarkup
    r"|<(del|ins|error|incorrect|negative|positive|correct|good|bad|poor|wrong)\b[^<>]*>.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)
_SPACE_BEFORE = (" ", ".", ",", ";", ":", "!", "?", "\n", "")
"""Characters before which a space is dropped with the word that was removed or inserted."""


@dataclass
class MarkedText:
    """A text without its mark-up.

    Attributes:
        text: the plain text.
        marks: the marked intervals, in code points of `text`.
        corrected: the text with all corrections, "" without any or if some are unknown.
        omissions: inserted words that replace nothing.
        doubts: text that looks like mark-up and was kept.
    """

    text: str
    marks: list[Mark] = field(default_factory=list)
    corrected: str = ""
    omissions: tuple[str, ...] = ()
    doubts: list[str] = field(default_factory=list)

    def write(self, text: str) -> None:
        """Add unmarked text."""
        self.text += text
        self.corrected += text

    def mark(self, label: str, inner: str, reason: str, correction: str | None, following: str) -> None:
        """Add a mark with its correction, if any; `following` is the next character."""
        start = len(self.text)
        why = reason or (f"should be: {correction}" if correction else "")
        self.text += inner
        self.marks.append(Mark(start, len(self.text), label, inner, why))
        if label == "+1" or correction:
            self.corrected += correction or inner
        elif self.corrected.endswith(" ") and following in _SPACE_BEFORE:
            self.corrected = self.corrected[:-1]

    def insert(self, inner: str, following: str) -> None:
        """Add missing words; of the spaces around them, the plain text keeps one."""
        last = self.marks[-1].end if self.marks else 0
        if following in _SPACE_BEFORE and self.text.endswith(" ") and last < len(self.text):
            self.text = self.text[:-1]
        self.corrected += inner
        self.omissions += (inner.strip(),)


def read_markup(text: str) -> MarkedText:
    """Take the mark-up out of a text.

    Marked text has balanced square brackets, so `[+-]?[0-9+]` and `a[-1]` are no mark-up. A reason
    has balanced braces.

    Raises:
        ValueError: a reason is not closed, or a mark is inside another.
    """
    out, place = MarkedText(""), 0
    has_corrections = is_incomplete = False
    while opening := _OPENING.search(text, place):
        out.write(text[place : opening.start()])
        inner, place = _inner_text(text, opening)
        if not inner and not (opening[0] == "{+" and place):
            out.write(opening[0])
            # An opening bracket that nothing closes: `[-next week.`, unlike `a[-1]`.
            if opening[0][0] == "[" and all(depth > 0 for depth in _depths(text[opening.start() :], "[]")):
                out.doubts.append(text[opening.start() :][:40])
            place = opening.end()
        elif opening[0] == "{+":
            out.insert(inner, text[place : place + 1])
            has_corrections = True
        else:
            label = f"{POLARITY[opening[1].lower()]:+d}" if opening[1] else f"{opening[0][1]}1"
            if has_markup(inner):
                raise ValueError(f"a mark is inside another: {text[opening.start() : place][:60]!r}")
            reason, correction, place = _annotations(text, place, label)
            out.mark(label, inner, reason, correction, text[place : place + 1])
            has_corrections |= correction is not None
            is_incomplete |= label == "-1" and correction is None and bool(reason)
    out.write(text[place:])
    out.corrected = out.corrected if has_corrections and not is_incomplete else ""
    out.doubts += [match[0] for match in _OTHERS.finditer(out.text)]
    return out


def has_markup(text: str) -> bool:
    """True if a text has mark-up."""
    if not _OPENING.search(text):
        return False
    parsed = read_markup(text)
    return bool(parsed.marks or parsed.omissions)


def _inner_text(text: str, opening: re.Match[str]) -> tuple[str, int]:
    """Return the text inside a mark and the place after it; "" and 0 if nothing closes the mark."""
    start = opening.end()
    if opening[0] == "{+":
        end = text.find("+}", start + 1)
        return (text[start:end], end + 2) if end >= 0 else ("", 0)
    if opening[1]:
        closing = re.compile(rf"</{opening[1]}>", re.IGNORECASE).search(text, start)
        return (text[start : closing.start()], closing.end()) if closing else ("", 0)
    for length in find_all(f"{opening[0][1]}]", text[start:]):
        inner = text[start : start + length]
        if all(depth >= 0 for depth in _depths(inner, "[]")) and inner.count("[") == inner.count("]"):
            return (inner, start + length + 2) if inner else ("", 0)
    return "", 0


def _annotations(text: str, place: int, label: str) -> tuple[str, str | None, int]:
    """Return the reason and the correction that follow a mark, and the place after them."""
    reason, correction = "", None
    while text.startswith("{", place):
        end = text.find("+}", place + 3) if text.startswith("{+", place) and label == "-1" else -1
        if end >= 0 and correction is None:
            correction, place = text[place + 2 : end], end + 2
        elif reason or text.startswith("{+", place):
            break
        else:
            end = _closing_brace(text, place)
            reason, place = text[place + 1 : end].strip(), end + 1
    return reason, correction, place


def _depths(text: str, brackets: str) -> Iterator[int]:
    """Yield the number of open brackets after each character."""
    return accumulate((character == brackets[0]) - (character == brackets[1]) for character in text)


def _closing_brace(text: str, start: int) -> int:
    closing = next((place for place, depth in enumerate(_depths(text[start:], "{}")) if not depth), 0)
    if not closing:
        raise ValueError(f"the reason {text[start : start + 40]!r} behind a mark is not closed: a '}}' is missing")
    return start + closing


def write_markup(text: str, marks: Iterable[Mark]) -> str:
    """Write marks into a text.

    `read_markup` does not recover them if the text or a mark contains other mark-up.
    """
    for start, end, label, _, reason, _ in sorted(marks, reverse=True):
        sign = "+" if label == "+1" else "-"
        why = f"{{{reason}}}" if reason else ""
        text = f"{text[:start]}[{sign}{text[start:end]}{sign}]{why}{text[end:]}"
    return text
