"""Striking the API key out of what a server says, however the server has written it."""

from __future__ import annotations

import re
from collections.abc import Callable

SHORTEST_SECRET = 8
"""Characters. What is shorter (`none`, `EMPTY`) opens no account, and may be a word of an answer."""
STRUCK = "[key]"


def redactor(key: str) -> Callable[[str], str]:
    """A function that takes the key out of decoded text.

    It is also found where each of its characters may be escaped once more, or several times, as in JSON inside of
    JSON (`\\u0073`, `\\\\/`), in a URL (`%73`) or in HTML (`&#115;`): what is stored here may be decoded later.
    """
    if len(key) < SHORTEST_SECRET:
        return lambda text: text
    pattern = re.compile("".join(map(_ways, key)))
    return lambda text: pattern.sub(STRUCK, text) if key in text or _ESCAPE.search(text) else text


_ESCAPE = re.compile(r"[\\%&]")


def _ways(character: str) -> str:
    """A pattern of all ways to write a character."""
    code = ord(character)
    number = rf"0{{0,6}}(?i:{code:x})"
    escaped = (
        rf"\\{{1,8}}(?:[uU]\{{?{number}\}}?|x{number}|0?{code:o})"  # bounded: an answer may be all backslashes
    )
    return rf"(?:\\{{0,8}}{re.escape(character)}|{escaped}|%(?i:{code:02x})|&#(?:0{{0,6}}{code}|[xX]{number});?)"
