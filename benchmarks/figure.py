"""Curves of a benchmark as one SVG file, with the geometry of the report's charts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from text2grad.report.curves import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, chart

COLOURS = ("#0b6e4f", "#b3541e", "#3a5ba0", "#8a4f9e", "#777777", "#bbbbbb", "#c9a227", "#2a9d8f")


def svg(lines: Sequence[Line], title: str, x_title: str) -> str:
    """The curves as an SVG document; thin ones (single seeds) are drawn pale behind the others.

    Raises:
        ValueError: no curve has a finite point.
    """
    names = list(dict.fromkeys(line.name for line in lines))
    drawn = chart(title, lines, names)
    if drawn is None:
        raise ValueError(f"nothing to draw for {title!r}")
    colour = dict(zip(names, COLOURS * (1 + len(names) // len(COLOURS)), strict=False))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 40:g} {HEIGHT + 16:g}" '
        'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="white"/>'
    ]
    parts += [f'<text x="{t.at}" y="{HEIGHT - 10}" text-anchor="middle">{t.text}</text>' for t in drawn.x_ticks]
    for tick in drawn.y_ticks:
        parts.append(f'<path d="M{LEFT} {tick.at}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{tick.at + 3}" text-anchor="end">{tick.text}</text>')
    shown = [line for line in lines if line.points]
    for line, path in zip(shown, drawn.paths, strict=True):
        look = 'stroke-width=".7" opacity=".35"' if line.thin else 'stroke-width="1.8"'
        parts.append(f'<path d="{path.data}" fill="none" stroke="{colour[line.name]}" {look}/>')
    bold = [line.name for line in lines if not line.thin and line.points]
    for name, label in zip(bold, drawn.labels, strict=False):
        at = f'x="{WIDTH - RIGHT + 4}" y="{label.y + 3}"'
        parts.append(f'<text {at} fill="{colour[name]}">{escape(label.text)}</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 1}">{escape(title)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT + 6}" text-anchor="middle">{escape(x_title)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
