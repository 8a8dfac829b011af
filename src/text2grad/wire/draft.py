"""z while it is being written: what the grammar alone cannot know, and the shortest way to end it well."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal, Self

from text2grad.wire.quotable import NUMBER, Quotable, escaped
from text2grad.wire.quotes import Key

Place = Literal["outline", "critique", "phrase", "piece", "reason"]

_TO_CRITIQUE = b'{"critique": "'
_TO_PIECE = b'{"quote": "'
_TO_REASON = ', "reason": "'
_TO_SCORE = b', "score": '
_LISTS = b', "good_spans": [], "poor_spans": []}'
_AFTER_LIST = {0: b"", 1: b', "poor_spans": []}', 2: b"}", 3: b"}"}
_THIRD_LIST = b', "improvable_spans": []}'
_NUMBER = re.compile(NUMBER.encode())
_TURN = re.compile(r'"turn": ([0-9]+)')
_NUMBER_ENDS = (b"", b"0", b"5", b"05", b"-05", b"e-05", b"0e-05")
_LOWEST = {0xE0: b"\xa0\x80", 0xF0: b"\x90\x80\x80"}  # first bytes of UTF-8 that not every byte may follow
_CUT_ESCAPE = re.compile(rb"(?:[^\\]|^)(?:\\\\)*(\\(?:u[0-9a-f]{0,3})?)\Z", re.DOTALL)


class Draft:
    """The beginning of a z about a response, which keeps to the grammar of `Quotable.grammar`.

    `place` is what the next byte belongs to: a string that holds content, or the outline around those.
    `feed` takes what is written next; `closing` says how the rest could go.
    """

    def __init__(self, quotable: Quotable) -> None:
        self.quotable = quotable
        self.place: Place = "outline"
        self.begun = b""  # of the open string, or of the outline since the last string, object or bracket
        self.done = False
        self._criticised = False
        self._mentioned: frozenset[Key] = frozenset()  # by this list without an occurrence
        self._before: str | None = None  # the plain quote right before this place in the list
        self._lists = 0  # how many span lists were opened
        self.in_list = False  # whether a span list is open
        self._in_object = False
        self._quote: str | None = None  # of the open object, and what may follow it
        self._endings: tuple[str, ...] = ()
        self._reasoned = False

    def copy(self) -> Self:
        """An independent draft that begins alike."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @property
    def escaping(self) -> bool:
        """Whether the open string ends in a backslash that waits for its letter."""
        return self.place != "outline" and (len(self.begun) - len(self.begun.rstrip(b"\\"))) % 2 == 1

    @property
    def after_quote(self) -> bool:
        """Whether an object's quote is written and the outline of the object is not."""
        return self._quote is not None and self.place == "outline"

    def feed(self, text: bytes) -> bool:
        """Write on; False when what is written can no longer resolve (the draft is of no use then)."""
        position = 0
        while 0 <= position < len(text):
            step = self._outline if self.place == "outline" else self._content
            position = step(text, position)
        if position < 0 or not self.after_quote or self._reasoned:
            return position >= 0
        return any(rest.startswith(self.begun.decode()) for rest in self._object_rests())

    def _outline(self, text: bytes, position: int) -> int:
        """Take outline up to a string that holds content, or all of it; -1: it does not resolve."""
        for index in range(position, len(text)):
            byte = text[index : index + 1]
            self.begun = (self.begun + byte).lstrip() if not self._criticised else self.begun + byte
            if byte == b'"' and (place := self._opened()) is not None:
                if place == "reason" and not self._open_reason():
                    return -1
                self.place, self.begun = place, b""
                return index + 1
            if byte in b"[]{}" and not self._bracket(byte):
                return -1
        return len(text)

    def _opened(self) -> Place | None:
        """The kind of content that the quotation mark just written opens, if it opens content."""
        if not self._lists:
            return "critique" if self.begun == _TO_CRITIQUE else None
        if self._in_object and self.begun.endswith(b'": "'):
            return "piece" if self._quote is None else "reason"
        return "phrase" if self.in_list and not self._in_object else None

    def _bracket(self, byte: bytes) -> bool:
        if byte == b"[":
            self._lists += 1
            self.in_list, self._mentioned, self._before, self.begun = True, frozenset(), None, b""
        elif byte == b"]":
            self.in_list, self.begun = False, b""
        elif byte == b"{":
            self._in_object, self._before = self.in_list, None
        elif self._in_object:
            resolves = self._reasoned or self._note(self.begun.decode().removesuffix("}"))
            self._in_object, self._quote, self._reasoned, self.begun = False, None, False, b""
            return resolves
        else:
            self.done = True
        return True

    def _open_reason(self) -> bool:
        head = self.begun.decode().removesuffix(_TO_REASON)
        self._reasoned = True
        return self._may_have_reason(head) and self._note(head)

    def _note(self, head: str) -> bool:
        """Remember an object that names no occurrence."""
        if "occurrence" not in head:
            turn = _TURN.search(head)
            self._mentioned |= {(self._quote or "", "part" in head, int(turn[1]) if turn else None)}
        return head in self._endings

    def _content(self, text: bytes, position: int) -> int:
        """Take content up to the end of its string, or all of it; -1: it does not resolve."""
        end = string_end(text, position, self.escaping)
        self.begun += text[position:end]
        if end == len(text):
            return end
        place, content = self.place, self.begun
        self.place, self.begun = "outline", b""
        self._criticised = True
        if place == "phrase":
            phrase = _unescaped(content)
            barred = self._barred(phrase)
            self._mentioned |= {(phrase, False, None)}
            self._before = phrase
            return -1 if barred else end + 1
        if place == "piece":
            self._quote = _unescaped(content)
            self._endings = tuple(self.quotable.object_endings(self._quote, self._mentioned))
        return end + 1

    def _barred(self, phrase: str) -> bool:
        """Whether a clear phrase would not resolve here: it stands in the list, or reads on from the one before."""
        repeated = (phrase, False, None) in self._mentioned
        return repeated or (self._before is not None and self.quotable.reads_on(self._before, f', "{phrase}'))

    def barred_bodies(self) -> Iterator[bytes]:
        """What a phrase must not stop inside of, escaped: every barred phrase begins one of these."""
        for phrase, part, turn in self._mentioned:
            if not (part or turn):
                yield escaped(phrase).encode()
        if self._before is not None:
            yield from self.quotable.readings_after(f'{self._before}", "')

    def _may_have_reason(self, head: str) -> bool:
        return bool(head) or not self.quotable.reads_on(self._quote or "", ', "reason')

    def _object_rests(self) -> Iterator[str]:
        for head in self._endings:
            yield head + "}"
            if self._may_have_reason(head):
                yield head + _TO_REASON

    def lives(self) -> bool:
        """Whether there is any way on: quicker than asking for a `closing`."""
        return self.place not in ("phrase", "piece") or self.closing() is not None

    def closing(self) -> bytes | None:
        """A short text that ends z so that all of it resolves; b"" when it has ended, None when nothing does."""
        if self.place == "critique":
            return _mended(self.begun) + b'"' + _LISTS
        if self.place == "reason":
            return _mended(self.begun) + b'"}' + self._list_end()
        if self.place == "phrase":
            rest = self.quotable.finish_phrase(self.begun, self._barred)
            return None if rest is None else rest + b'"' + self._list_end()
        if self.place == "piece":
            piece = self.quotable.finish_piece(self.begun, self._mentioned)
            return None if piece is None else piece + b"}" + self._list_end()
        if self.begun.startswith(_TO_SCORE):
            return _number_end(self.begun.removeprefix(_TO_SCORE))
        fits = [text for text in self._outline_rests() if text.startswith(self.begun)]
        return min(fits, key=len)[len(self.begun) :] if fits else None

    def _outline_rests(self) -> Iterator[bytes]:
        """Endings from where `begun` begins, one at least for every way the outline can go from there."""
        if self.done:
            yield self.begun
        elif not self._lists:
            yield _LISTS if self._criticised else _TO_CRITIQUE + b'"' + _LISTS
        elif not self.in_list:
            yield _AFTER_LIST[self._lists]
            yield from [_TO_SCORE + b"0}"] if self._lists > 1 else []
            yield from [_THIRD_LIST] if self._lists == 2 else []
        elif self._quote is not None:
            rests = ["}"] if self._reasoned else self._object_rests()
            yield from (rest.encode() + (b"" if rest.endswith("}") else b'"}') + self._list_end() for rest in rests)
        else:
            yield self._list_end()
            if (piece := self.quotable.finish_piece(b"", self._mentioned)) is not None:
                item = _TO_PIECE + piece + b"}" + self._list_end()
                yield from (item, b", " + item)

    def _list_end(self) -> bytes:
        return b"]" + _AFTER_LIST[self._lists]


def string_end(text: bytes, position: int, escaping: bool) -> int:
    """Where the string that is open at `position` ends; the length of the text where it does not."""
    for index in range(position, len(text)):
        if escaping:
            escaping = False
        elif text[index] == 0x5C:
            escaping = True
        elif text[index] == 0x22:
            return index
    return len(text)


def _unescaped(content: bytes) -> str:
    return str(json.loads(b'"' + content + b'"'))


def _mended(content: bytes) -> bytes:
    """What completes the last character or escape of a string's content."""
    if b"\\" in content[-5:] and (cut := _CUT_ESCAPE.search(content)):
        digits = len(cut[1]) - 2
        return b"\\" if digits < 0 else b"0010"[digits:]
    for written in range(1, min(4, len(content)) + 1):
        lead = content[-written]
        if lead < 0x80:
            break
        if lead >= 0xC0:
            length = 2 + (lead >= 0xE0) + (lead >= 0xF0)
            return _LOWEST.get(lead, b"\x80\x80\x80")[written - 1 : length - 1]
    return b""


def _number_end(begun: bytes) -> bytes | None:
    if begun.endswith(b"}"):
        return b""
    return next((end + b"}" for end in _NUMBER_ENDS if _NUMBER.fullmatch(begun + end)), None)
