"""The report of a run: one static HTML page that needs no network and runs no script but its own.

Safety stands on three legs: jinja2 autoescape; `visible` over every value that reaches the template
(`finalize`); and a Content-Security-Policy that allows exactly our script and style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from text2grad.feedback import to_json
from text2grad.report.curves import number
from text2grad.report.folder import RunFolder, read_run, write_page
from text2grad.report.sections import sections
from text2grad.report.visible import visible


def build_report(run_folder: Path) -> Path:
    """Write `run_folder/report.html`, and one for each `seed-*` run folder inside; returns its path.

    A `seed-*` that is a link to another place is shown, but gets no page there.

    Raises:
        UserError: no run folder, nothing in it yet, a damaged file in it, or the page cannot be written.
    """
    run = read_run(run_folder)
    for seed in run.seeds:
        if not seed.is_empty and not seed.path.is_symlink():
            write_page(seed.path / "report.html", page(seed, parent="../report.html"))
    return write_page(run_folder / "report.html", page(run))


def page(run: RunFolder, parent: str = "") -> str:
    """The page of a run as text; `parent` links a seed's page to the page over all seeds."""
    environment = Environment(
        loader=DictLoader({"page": _asset("page.html.j2")}),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["embedded"] = embedded
    script, style = _asset("page.js"), _asset("page.css")
    return environment.get_template("page").render(
        script=Markup(script),
        style=Markup(style),
        policy=_content_security_policy(script, style),
        parent=parent,
        **sections(run),
    )


def embedded(data: Any) -> Markup:
    """`data` as JSON that cannot leave the <script type="application/json"> element it stands in."""
    text = to_json(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _harmless(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _content_security_policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("text2grad.report").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")
