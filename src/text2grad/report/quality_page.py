"""The quality of a feedback file as one static page: no script, no network, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from text2grad.report.visible import visible

_SECTIONS = {
    "Quotes (paper, table 15)": (
        *("records", "spans", "exact", "normalised", "fuzzy", "unmatched", "ambiguous", "unmatched_rate"),
        *("refused", "repeated_records", "records_without_spans", "records_all_good", "omissions"),
        *("canaries", "canaries_moved"),
    ),
    "Cost (paper, tables 12 and 14)": (
        *("tokens_per_response", "annotation_tokens_per_record", "dense_tokens_per_record", "saved_against_dense"),
        *("annotation_tokens", "dense_tokens"),
        *("input_tokens", "output_tokens", "usd", "usd_per_record", "usd_dense_per_record"),
    ),
    "Labels": (*("labelled_share", "good_share", "several_annotators", "agreement_alpha"),),
}
MOST_NAMED = 50
"""Responses whose agreement the page names."""
_LENGTHS = ("count", "mean", "min", "q1", "q2", "q3", "max", "position")
_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<title>Feedback quality: {{ name }}</title><style>{{ style }}</style></head>
<body><main><h1>Feedback quality: {{ name }}</h1>
{% for title, rows in sections.items() %}<section><h2>{{ title }}</h2><div class="scroll"><table><tbody>
{% for key, value in rows %}<tr><th scope="row">{{ key }}</th><td class="figure">{{ value }}</td></tr>
{% endfor %}</tbody></table></div></section>
{% endfor %}<section><h2>Tokens per span (paper, table 18), and place in the response by fifths</h2>
<div class="scroll"><table><thead><tr><th></th>
{% for key in keys %}<th scope="col">{{ key }}</th>{% endfor %}</tr></thead><tbody>
{% for label, row in lengths.items() %}<tr><th scope="row">{{ label }}</th>
{% for value in row %}<td class="figure">{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></section>
{% if agreement %}<section><h2>Agreement by response, the least first (Krippendorff's alpha)</h2>
<div class="scroll"><table><tbody>
{% for id, alpha in agreement.items() %}<tr><th scope="row">{{ id }}</th><td class="figure">{{ alpha }}</td></tr>
{% endfor %}</tbody></table></div></section>
{% endif %}{% if failed %}<section><h2>Failures</h2><div class="scroll"><table><tbody>
{% for kind, count in failed.items() %}<tr><th scope="row">{{ kind }}</th><td class="figure">{{ count }}</td></tr>
{% endfor %}</tbody></table></div></section>
{% endif %}</main></body></html>
"""


def quality_page(name: str, figures: dict[str, Any]) -> str:
    """The page of `Quality.figures`."""
    style = (files("text2grad.report") / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        loader=DictLoader({"page": _TEMPLATE}), autoescape=True, undefined=StrictUndefined, finalize=_harmless
    )
    sections = {
        title: [(key.replace("_", " "), _shown(figures.get(key))) for key in keys]
        for title, keys in _SECTIONS.items()
    }
    lengths = {
        label: [_shown(figures[f"{label}_spans"].get(key)) for key in _LENGTHS] for label in ("good", "poor")
    }
    return environment.get_template("page").render(
        name=name,
        style=Markup(style),
        policy=f"default-src 'none'; style-src 'sha256-{digest}'",
        sections=sections,
        keys=_LENGTHS,
        lengths=lengths,
        failed=figures["failed"],
        agreement=dict(list(figures["agreement"].items())[:MOST_NAMED]),
    )


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return " · ".join(map(str, value))
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _harmless(value: Any) -> Any:
    return value if isinstance(value, Markup) else visible(str(value))
