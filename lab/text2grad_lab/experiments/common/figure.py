"""What an experiment found as an SVG file: curves, drawn as in the report, or the tokens of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from text2grad.page.curves import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, chart

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


CHARACTER, ROW, MARGIN = 7.8, 19.0, 14.0  # of a fixed-width font of 13 units
UP, DOWN = "11,110,79", "190,40,30"


class Strip(NamedTuple):
    """One answer as one method saw it: its tokens' texts and the numbers they got."""

    title: str
    tokens: Sequence[str]
    numbers: Sequence[float]


def tokens_svg(strips: Sequence[Strip]) -> str:
    """Answers below each other, every token on a ground of its number: green above 0, red below, in proportion."""
    parts: list[str] = []
    y, width = MARGIN, 0.0
    for strip in strips:
        y += ROW
        parts.append(f'<text x="{MARGIN}" y="{y - 6}" font-family="sans-serif">{escape(strip.title)}</text>')
        largest = max(map(abs, strip.numbers), default=0.0) or 1.0
        x = MARGIN
        for token, number in zip(strip.tokens, strip.numbers, strict=True):
            colour = f"rgba({UP if number > 0 else DOWN},{0.7 * abs(number) / largest:.2f})"
            for n, piece in enumerate(token.split("\n")):
                x, y = (MARGIN, y + ROW) if n else (x, y)
                if piece:
                    wide = len(piece) * CHARACTER
                    at, size = f'x="{x:.1f}" y="{y}"', f'width="{wide:.1f}" height="{ROW - 2}"'
                    parts.append(f'<rect {at} {size} fill="{colour}"/>')
                    if piece.strip():
                        at = f'x="{x:.1f}" y="{y + 13}" textLength="{wide:.1f}" xml:space="preserve"'
                        parts.append(f"<text {at}>{escape(piece)}</text>")
                    x, width = x + wide, max(width, x + wide)
        y += ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + MARGIN:.0f} {y:.0f}" '
        'font-family="monospace" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
