"""Text of a model made harmless and readable: nothing invisible stays invisible, nothing acts on the screen.

HTML escaping is the template's business (autoescape); here go the characters that survive it and still do
harm: terminal escapes, bidi overrides, zero-width characters, lone surrogates.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_KEPT = frozenset("\n\t\u200c\u200d")  # the two joiners shape Indic and Persian text and emoji
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_WHITESPACE = {" ": "·", "\n": "⏎", "\t": "⇥", "\u00a0": "⍽"}
_TERMINAL_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)


def visible(text: str) -> str:
    """`text` with control, bidi and zero-width characters spelled out (ESC as U+241B, others as ⟨U+202E⟩).

    Newlines and tabs stay. The result always encodes as UTF-8.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def all_visible(data: Any) -> Any:
    """Plain data with `visible` over every text in its lists and mappings."""
    if isinstance(data, dict):
        return {key: all_visible(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [all_visible(value) for value in data]
    return visible(data) if isinstance(data, str) else data


def _shown(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def token_label(token: str) -> str:
    """A token as a cell of the strip shows it: `visible`, with white space drawn (· ⏎ ⇥); ∅ if empty."""
    return "".join(_WHITESPACE.get(character) or _shown(character) for character in token) or "∅"


def stripped(text: str) -> str:
    """`text` for a terminal: escape sequences and other unseen characters removed, newlines and tabs kept."""
    plain = _TERMINAL_SEQUENCE.sub("", text)
    return "".join(c for c in plain if c in _KEPT or unicodedata.category(c) not in _UNSEEN)
