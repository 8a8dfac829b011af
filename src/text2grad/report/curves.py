"""Learning curves as geometry: rows of metrics.jsonl -> ticks, paths and labels; the template draws them.

Coordinates are SVG user units, y downwards. Colours belong to page.css (class m0, m1, ... of a method).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple

Point = tuple[float, float]

WIDTH, HEIGHT = 360.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 84.0, 10.0, 24.0
DUST = 1e-12
LABEL_GAP = 13.0
LABEL_LENGTH = 12  # characters that fit right of the plot
MAX_POINTS = 400

STYLES = {"text2grad": "m0", "scalar_ppo": "m1", "scalar": "m1", "training": "m0"}
FREE_STYLES = ("m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9")


class Line(NamedTuple):
    """One curve: (step, value) in order of step. `thin`: one seed of several, drawn behind their mean."""

    name: str
    points: tuple[Point, ...]
    thin: bool = False


class Tick(NamedTuple):
    """A mark on an axis: its position and its label."""

    at: float
    text: str


class Path(NamedTuple):
    """A drawn curve: SVG path data, or a dot where a single point has no line."""

    style: str
    thin: bool
    data: str
    dots: tuple[Point, ...]


class EndLabel(NamedTuple):
    """The name of a curve, shown next to its last point."""

    style: str
    text: str
    y: float


class Chart(NamedTuple):
    """One small multiple. `hover` is JSON for web/charts.mjs: the x scale, and steps and values of each curve.

    `last` says in words where the curves end; `not_finite` counts points that are NaN or infinite.
    """

    metric: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    paths: tuple[Path, ...]
    labels: tuple[EndLabel, ...]
    hover: str
    last: str
    not_finite: int


def without_dust(value: float) -> float:
    """The value; what rounding leaves of zero, such as -1.4e-17, is zero."""
    return value if abs(value) > DUST else 0.0


def signed(value: float) -> str:
    """A value with its sign and two digits; zero is +0.00."""
    return f"{round(value, 2) + 0.0:+.2f}"


def number(value: float | None) -> str:
    """A value for people: three significant digits, a true minus sign, no needless zeros."""
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


def style_of(name: str, names: Sequence[str]) -> str:
    """The CSS class of a method's colour and dash: fixed for text2grad and scalar PPO, the rest in order."""
    if name in STYLES:
        return STYLES[name]
    others = [other for other in names if other not in STYLES]
    return FREE_STYLES[others.index(name) % len(FREE_STYLES)]


def points_of(rows: Iterable[dict[str, Any]], metric: str) -> tuple[Point, ...]:
    """The (step, value) pairs of one metric; rows without a number for it are skipped."""
    values = ((row["step"], row.get(metric)) for row in rows)
    return tuple((float(x), float(y)) for x, y in values if isinstance(y, (int, float)) and not isinstance(y, bool))


def metrics_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Names of all numeric metrics, in order of first appearance, without `step`."""
    names = (name for row in rows for name, value in row.items() if isinstance(value, (int, float)))
    return [name for name in dict.fromkeys(names) if name != "step"]


def at(line: Line, places: Mapping[float, float]) -> Line:
    """The curve at other x: those of its steps in `places`."""
    return line._replace(points=tuple((places[step], value) for step, value in line.points if step in places))


def mean_line(name: str, lines: Sequence[Line]) -> Line:
    """The mean over seeds at every step that all of them reached."""
    values = [dict(line.points) for line in lines]
    shared = sorted(set(values[0]).intersection(*values[1:]))
    return Line(name, tuple((step, fmean(value[step] for value in values)) for step in shared))


def chart(metric: str, lines: Sequence[Line], names: Sequence[str], unit: str = "step") -> Chart | None:
    """The geometry of one metric's chart; None when no curve has a finite point.

    `names` are all curves of the page, so that each keeps its style in every chart. `unit`: what x counts.
    """
    finite = [Line(line.name, tuple(filter(_is_finite, line.points)), line.thin) for line in lines]
    everything = [point for line in finite for point in line.points]
    if not everything:
        return None
    x = Scale.of([x for x, _ in everything], 0.0, LEFT, WIDTH - RIGHT)
    y = Scale.of([y for _, y in everything], 0.06, HEIGHT - BOTTOM, TOP)
    bold = [line for line in finite if not line.thin and line.points]
    return Chart(
        metric=metric,
        x_ticks=tuple(Tick(x(at), number(at)) for at in ticks(x.low, x.high, whole=True)),
        y_ticks=tuple(Tick(y(at), number(at)) for at in ticks(y.low, y.high)),
        paths=tuple(_path(line, style_of(line.name, names), x, y) for line in lines if line.points),
        labels=_end_labels(bold, names, y) if len(names) > 1 else (),
        hover=_hover(bold, x, unit),
        last=_last(bold, unit),
        not_finite=sum(len(line.points) for line in lines) - len(everything),
    )


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten) inside [low, high], about `count` of them."""
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough * 0.999)
    if whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted`, at least `gap` apart and inside [low, high] if there is room."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(accumulate((wanted[i] for i in order), lambda before, at: max(at, before + gap)))
    if placed:
        placed[-1] = min(placed[-1], high)
    for i in range(len(placed) - 2, -1, -1):
        placed[i] = min(placed[i], placed[i + 1] - gap)
    return [max(position, low) for _, position in sorted(zip(order, placed, strict=True))]


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most about `limit` points that keep every spike: the lowest and highest of each stretch."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(2 * len(points) / limit)
    kept: list[Point] = [points[0]]
    for begin in range(1, len(points) - 1, size):
        stretch = points[begin : min(begin + size, len(points) - 1)]
        extremes = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept.extend(sorted(extremes))
    return [*kept, points[-1]]


def _is_finite(point: Point) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


class Scale(NamedTuple):
    """From values between `low` and `high` to coordinates between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], share: float, start: float, end: float) -> Scale:
        """The range of `values` with `share` of it left free at both ends; around a constant, half its size."""
        low, high = min(values), max(values)
        if low == high == 0:
            return cls(-share, 1.0, start, end)
        room = (high - low) * share if high > low else abs(high) * 0.5
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def _path(line: Line, style: str, x: Scale, y: Scale) -> Path:
    """Path data that breaks where a value is not finite; a point between two breaks becomes a dot."""
    stretches: list[list[Point]] = [[]]
    for point in thinned(line.points):
        if _is_finite(point):
            stretches[-1].append((x(point[0]), y(point[1])))
        elif stretches[-1]:
            stretches.append([])
    drawn = ("M" + "L".join(f"{across:g} {down:g}" for across, down in s) for s in stretches if len(s) > 1)
    return Path(style, line.thin, "".join(drawn), tuple(s[0] for s in stretches if len(s) == 1))


def _end_labels(lines: Sequence[Line], names: Sequence[str], y: Scale) -> tuple[EndLabel, ...]:
    placed = spread_out([y(line.points[-1][1]) for line in lines], LABEL_GAP, TOP, HEIGHT - BOTTOM)
    short = [name if len(name := line.name) <= LABEL_LENGTH else name[: LABEL_LENGTH - 1] + "…" for line in lines]
    return tuple(
        EndLabel(style_of(line.name, names), name, round(at, 1))
        for line, name, at in zip(lines, short, placed, strict=True)
    )


def _hover(lines: Sequence[Line], x: Scale, unit: str) -> str:
    curves = []
    for line in lines:
        steps, values = zip(*thinned(line.points), strict=True)
        curves.append({"name": line.name, "steps": steps, "values": [float(f"{value:.4g}") for value in values]})
    scale = {"low": x.low, "high": x.high, "left": x.start, "right": x.end}
    return json.dumps({"scale": scale, "unit": unit, "curves": curves}, separators=(",", ":"))


def _last(lines: Sequence[Line], unit: str) -> str:
    """Where the curves end; each with its own step when they do not end together."""
    ends = [(line.name, *line.points[-1]) for line in lines]
    steps = {step for _, step, _ in ends}
    if len(steps) == 1:
        return f"{unit} {number(*steps)}: " + " · ".join(f"{name} {number(value)}" for name, _, value in ends)
    return "at the end: " + " · ".join(f"{name} {number(y)} ({unit} {number(x)})" for name, x, y in ends)
