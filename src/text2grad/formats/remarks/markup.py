"""Mark-up in a response: `due [-next week-]{the mail says Friday}`, `[+...+]` for praise, and corrections.

`[-a-]{+b+}` says what should be there instead, as `git diff --word-diff` writes it, and `{+b+}` alone what is
missing; `<bad>...</bad>` and `<good>...</good>` are marks as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from text2grad.formats.marks import POLARITY, Mark

_OPENING = re.compile(r"\[[+-]|\{\+(?!\+)|<(good|bad|poor|wrong)>", re.IGNORECASE)
BRACKETS = re.compile(r"\[[+-]|[+-]\]|\{\+|\+\}|</?(?:good|bad|poor|wrong)>", re.IGNORECASE)
"""What begins or ends a mark."""
_OTHERS = re.compile(
    r"\{--.+?--\}|\{\+\+.+?\+\+\}|\{~~.+?~>.*?~~\}|\{==.+?==\}"  # CriticMarkup
    r"|<(del|ins|error|incorrect|negative|positive|correct|good|bad|poor|wrong)\b[^<>]*>.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)
_SPACE_BEFORE = (" ", ".", ",", ";", ":", "!", "?", "\n", "")
"""What may follow a word that was taken out or put in, so that the text without it has no space there."""


class Unmarked(NamedTuple):
    """A text without its mark-up, and the intervals of it that were marked.

    `corrected` is the text with all corrections made, "" if there are none or not all are known; `omissions` are
    the words it has that replace nothing; `doubts` are what looks like mark-up and stays in the text.
    """

    text: str
    marks: tuple[Mark, ...] = ()
    corrected: str = ""
    omissions: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


class _Piece(NamedTuple):
    """One mark: what it encloses, what is said of it, and where the text goes on."""

    label: str
    inner: str
    reason: str
    instead: str | None
    end: int


class _Writer:
    """The two texts that a marked one is read into: as it was, and as it should be."""

    def __init__(self) -> None:
        self.text = self.corrected = ""
        self.marks: list[Mark] = []
        self.omissions: list[str] = []
        self.corrects = self.unclear = False

    def plain(self, text: str) -> None:
        self.text += text
        self.corrected += text

    def mark(self, piece: _Piece, following: str) -> None:
        """A mark, and what follows it."""
        reason = piece.reason or (f"should be: {piece.instead}" if piece.instead else "")
        start = len(self.text)
        self.marks.append(Mark(start, start + len(piece.inner), piece.label, piece.inner, reason))
        self.text += piece.inner
        self.corrects |= piece.instead is not None
        self.unclear |= piece.label == "-1" and piece.instead is None and bool(piece.reason)
        if piece.label == "+1":
            self.corrected += piece.inner
        elif piece.instead:
            self.corrected += piece.instead
        elif self.corrected.endswith(" ") and following in _SPACE_BEFORE:
            self.corrected = self.corrected[:-1]

    def insert(self, inner: str, following: str) -> None:
        """Words that are missing. Of the spaces on both sides of them the text itself had one."""
        last = self.marks[-1].end if self.marks else 0
        if following in _SPACE_BEFORE and self.text.endswith(" ") and last < len(self.text):
            self.text = self.text[:-1]
        self.corrected += inner
        self.omissions.append(inner.strip())
        self.corrects = True


def unmarked(text: str) -> Unmarked:
    """Take the mark-up out of a text.

    What is marked has as many opening as closing square brackets, so that `[+-]?[0-9+]` and `a[-1]` are no mark-up;
    a reason is in balanced braces.

    Raises:
        ValueError: a reason is not closed, or a mark is inside another.
    """
    out = _Writer()
    place = 0
    unclosed: list[str] = []
    while found := _OPENING.search(text, place):
        out.plain(text[place : found.start()])
        if found[0] == "{+":
            place = _inserted(text, found, out)
            continue
        piece = _piece(text, found)
        if piece is None:
            out.plain(found[0])
            unclosed += [text[found.start() :][:40]] if _never_closed(text, found) else []
            place = found.end()
        else:
            out.mark(piece, text[piece.end : piece.end + 1])
            place = piece.end
    out.plain(text[place:])
    kept = (found[0] for found in _OTHERS.finditer(out.text))
    return Unmarked(
        out.text,
        tuple(out.marks),
        out.corrected if out.corrects and not out.unclear else "",
        tuple(out.omissions),
        (*unclosed, *kept),
    )


def has_markup(text: str) -> bool:
    """Whether there is mark-up in a text."""
    if not _OPENING.search(text):
        return False
    found = unmarked(text)
    return bool(found.marks or found.omissions)


def _inserted(text: str, found: re.Match[str], out: _Writer) -> int:
    """Read `{+...+}`; where the text goes on."""
    end = text.find("+}", found.end() + 1)
    if end < 0:
        out.plain(found[0])
        return found.end()
    out.insert(text[found.end() : end], text[end + 2 : end + 3])
    return end + 2


def _piece(text: str, found: re.Match[str]) -> _Piece | None:
    """The mark that opens here, with what stands right behind it; None: it opens none."""
    if found[1]:
        closing = re.compile(rf"</{found[1]}>", re.IGNORECASE).search(text, found.end())
        inner = text[found.end() : closing.start()] if closing else ""
        after, label = closing.end() if closing else 0, f"{POLARITY[found[1].lower()]:+d}"
    else:
        sign = found[0][1]
        inner = _enclosed(text, found.end(), sign) or ""
        after, label = found.end() + len(inner) + 2, f"{sign}1"
    if not inner:
        return None
    if has_markup(inner):
        raise ValueError(f"a mark is inside another: {text[found.start() : after][:60]!r}")
    reason, instead = "", None
    while text.startswith("{", after):
        end = text.find("+}", after + 3) if text.startswith("{+", after) and label == "-1" else -1
        if end >= 0 and instead is None:
            instead, after = text[after + 2 : end], end + 2
        elif reason or text.startswith("{+", after):
            break
        else:
            end = _closing_brace(text, after)
            reason, after = text[after + 1 : end].strip(), end + 1
    return _Piece(label, inner, reason, instead, after)


def _enclosed(text: str, start: int, sign: str) -> str | None:
    """What stands between an opening at `start` and the first closing after which brackets are balanced."""
    end = text.find(f"{sign}]", start)
    while end > start:
        inner = text[start:end]
        if _balanced(inner):
            return inner
        end = text.find(f"{sign}]", end + 1)
    return None


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if depth < 0:
            return False
    return depth == 0


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place
    raise ValueError(f"the reason {text[start : start + 40]!r} behind a mark is not closed: a '}}' is missing")


def _never_closed(text: str, found: re.Match[str]) -> bool:
    """Whether no square bracket closes the one that opens here: `[-next week.`, and not `a[-1]`."""
    depth = 0
    for character in text[found.start() :] if found[0][0] == "[" else "]":
        depth += (character == "[") - (character == "]")
        if depth <= 0:
            return False
    return True


def marked_up(text: str, marks: Iterable[Mark]) -> str:
    """A text with its marks written into it; `unmarked` takes them out again unless text or marks are unlucky."""
    for start, end, label, _, reason, _ in sorted(marks, reverse=True):
        sign = "+" if label == "+1" else "-"
        why = f"{{{reason}}}" if reason else ""
        text = f"{text[:start]}[{sign}{text[start:end]}{sign}]{why}{text[end:]}"
    return text
