"""Render self-contained pages and other texts from templates.

Three things make them safe: jinja2 autoescape; `visible` over every value that reaches the template
(`finalize`); and a Content-Security-Policy that allows exactly our script and style, by their
hashes. Escaping leaves characters that still do harm: terminal escapes, bidi overrides, zero-width
characters, lone surrogates. `visible` spells them out for a page, `stripped` removes them for a
terminal.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import unicodedata
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeGuard

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from text2grad.json_text import to_json
from text2grad.jsonl import whole_file

DUST = 1e-12
"""Values below are what rounding leaves of zero."""
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_HARMLESS = frozenset("\n\t\u200c\u200d")  # the two joiners shape Indic and Persian text and emoji
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_WHITESPACE = {" ": "·", "\n": "⏎", "\t": "⇥", "\u00a0": "⍽"}
_TERMINAL_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)


def render_page(template: str, scripts: Sequence[str] = (), live: bool = False, **values: Any) -> str:
    """Render an HTML page from a template of this folder, with its style and script.

    `live`: the page may request more data from its server.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_make_visible, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "embedded": embedded}
    code, style = bundle(scripts), _asset("page.css")
    policy = _content_security_policy(code, style) + ("; connect-src 'self'" if live else "")
    page = environment.from_string(_asset(template))
    return page.render(script=Markup(code), style=Markup(style), policy=policy, live=live, **values)


def bundle(modules: Sequence[str]) -> str:
    """Join modules of `web`, in an order in which imports come first, into one classic script.

    Their top-level names share one scope and must differ.
    """
    texts = [_IMPORT.sub("", _asset(f"web/{name}")) for name in modules]
    return '(() => {\n"use strict";\n' + "\n".join(_EXPORT.sub("", text) for text in texts) + "})();\n"


def render_text(template: str, **values: Any) -> str:
    """Render a text that is not HTML from a template of this folder."""
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    return environment.from_string(_asset(template)).render(values)


def embedded(data: Any) -> Markup:
    """Write `data` as JSON that cannot close the <script> element around it."""
    text = to_json(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def write_page(path: Path, text: str) -> Path:
    """Write a page, never through a link, since the run folder may belong to someone else.

    Raises:
        UserError: the file cannot be written.
    """
    with whole_file(path, errors="replace", newline="\n") as file:
        file.write(text)
    return path


def _make_visible(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _content_security_policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("text2grad.page").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def visible(text: str) -> str:
    """Spell out control, bidi and zero-width characters (ESC as U+241B, others as ⟨U+202E⟩).

    Newlines and tabs stay. The result always encodes as UTF-8.
    """
    return text if text.isprintable() else "".join(map(_visible_character, text))


def all_visible(data: Any) -> Any:
    """Apply `visible` to every text in the lists and mappings of plain data."""
    if isinstance(data, dict):
        return {key: all_visible(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [all_visible(value) for value in data]
    return visible(data) if isinstance(data, str) else data


def _visible_character(character: str) -> str:
    if character in _HARMLESS or unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def token_label(token: str) -> str:
    """Write a token for the page: `visible`, with whitespace drawn (· ⏎ ⇥); ∅ if empty."""
    return "".join(_WHITESPACE.get(character) or _visible_character(character) for character in token) or "∅"


def stripped(text: str) -> str:
    """Remove escape sequences and invisible characters for a terminal, except newlines and tabs."""
    plain = _TERMINAL_SEQUENCE.sub("", text)
    return "".join(c for c in plain if c in _HARMLESS or unicodedata.category(c) not in _UNSEEN)


def without_dust(value: float) -> float:
    """Return the value, or zero if it is only a rounding error such as -1.4e-17."""
    return value if abs(value) > DUST else 0.0


def signed(value: float) -> str:
    """Format a value with its sign and two digits; zero is +0.00."""
    return f"{round(value, 2) + 0.0:+.2f}"


def number(value: float | None) -> str:
    """Format a value for people: three significant digits, a true minus sign, no needless zeros."""
    if value is None or not math.isfinite(value):
        return "–"
    value = without_dust(value)
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        text = f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    elif size >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a finite int or float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def figure(value: Any) -> str:
    """Format a figure of an evaluation: a number for people, anything else as it is."""
    return number(value) if is_number(value) else str(value)
