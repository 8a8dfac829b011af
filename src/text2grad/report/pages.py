"""Pages for the browser that need no network and run no script but their own, and other texts from templates.

Three things make them safe: jinja2 autoescape; `visible` over every value that reaches the template
(`finalize`); and a Content-Security-Policy that allows exactly our script and style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from text2grad.errors import UserError
from text2grad.feedback import to_json
from text2grad.report.curves import number
from text2grad.report.visible import visible

_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def render_page(template: str, scripts: Sequence[str] = (), live: bool = False, **values: Any) -> str:
    """An HTML page from a template of this folder, with our style and these modules of `web` as one script.

    `live`: the page asks the server it comes from for the rest.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_harmless, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "embedded": embedded}
    code, style = bundle(scripts) if scripts else "", _asset("page.css")
    policy = _content_security_policy(code, style) + ("; connect-src 'self'" if live else "")
    page = environment.from_string(_asset("macros.html.j2") + _asset(template))
    return page.render(script=Markup(code), style=Markup(style), policy=policy, live=live, **values)


def bundle(modules: Sequence[str]) -> str:
    """Modules of `web`, each before those that import from it, as one classic script: a page is one file.

    Their top-level names share one scope, so no two may be the same (a test loads every bundle).
    """
    texts = [_IMPORT.sub("", _asset(f"web/{name}")) for name in modules]
    return '(() => {\n"use strict";\n' + "\n".join(_EXPORT.sub("", text) for text in texts) + "})();\n"


def render_text(template: str, **values: Any) -> str:
    """A text that is not HTML from a template of this folder."""
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    return environment.from_string(_asset(template)).render(values)


def embedded(data: Any) -> Markup:
    """`data` as JSON that cannot leave the <script type="application/json"> element around it."""
    text = to_json(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def write_page(path: Path, text: str) -> Path:
    """Write a page, but never through a link: the run folder may belong to someone else.

    Raises:
        UserError: it is a link, or cannot be written.
    """
    if path.is_symlink():
        raise UserError(
            f"cannot write {path}: it is a link to another place", "remove the link, or name that place"
        )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        with open(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "make its folder writable") from error
    return path


def _harmless(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _content_security_policy(script: str, style: str) -> str:
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    return (
        f"default-src 'none'; {scripts}style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("text2grad.report").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")
