"""Learning curves as geometry: rows of metrics.jsonl become ticks, paths and labels.

Coordinates are SVG user units, y downwards. page.css has the colours, by class: m0, m1, ...
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from text2grad.page.render import number

Point = tuple[float, float]

WIDTH, HEIGHT = 360.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 84.0, 10.0, 24.0
LABEL_GAP = 13.0
LABEL_LENGTH = 12  # characters that fit right of the plot
MAX_POINTS = 400
TICKS = 5

STYLES = {"text2grad": "m0", "scalar_ppo": "m1", "scalar": "m1", "training": "m0"}
FREE_STYLES = ("m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9")


class Line(NamedTuple):
    """One curve: (step, value) pairs in order of step.

    `thin`: one of several seeds, drawn without a label.
    """

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
    data: str
    dots: tuple[Point, ...]


class EndLabel(NamedTuple):
    """The name of a curve, shown next to its last point."""

    style: str
    text: str
    y: float


class Chart(NamedTuple):
    """The chart of one metric.

    `hover` is JSON for web/charts.mjs: the steps, values and x coordinates of each curve. `last`
    describes the last values. `not_finite` counts the points that are NaN or infinite.
    """

    metric: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    paths: tuple[Path, ...]
    labels: tuple[EndLabel, ...]
    hover: str
    last: str
    not_finite: int


def pick_style(name: str, names: Sequence[str]) -> str:
    """Pick the CSS class of a curve: fixed for text2grad and scalar PPO, the others in order."""
    if name in STYLES:
        return STYLES[name]
    others = [other for other in names if other not in STYLES]
    return FREE_STYLES[others.index(name) % len(FREE_STYLES)]


def metric_points(rows: Iterable[dict[str, Any]], metric: str) -> tuple[Point, ...]:
    """Collect the (step, value) pairs of one metric; rows without a number for it are skipped."""
    values = ((row["step"], row.get(metric)) for row in rows)
    return tuple((float(x), float(y)) for x, y in values if isinstance(y, (int, float)) and not isinstance(y, bool))


def metric_names(rows: Iterable[dict[str, Any]]) -> list[str]:
    """List all numeric metrics in order of first appearance, without `step`."""
    names = (name for row in rows for name, value in row.items() if isinstance(value, (int, float)))
    return [name for name in dict.fromkeys(names) if name != "step"]


def chart(
    metric: str, lines: Sequence[Line], names: Sequence[str], ends: Mapping[str, float] | None = None
) -> Chart | None:
    """Lay out the chart of one metric; None if no curve has a finite point.

    Args:
        names: all curves of the page, so that a curve has the same style in every chart.
        ends: the last step of each run. With it the x axis is the share of each run in percent.
    """
    finite = [Line(line.name, tuple(filter(_is_finite, line.points)), line.thin) for line in lines]
    everything = [point for line in finite for point in line.points]
    if not everything:
        return None
    if ends is None:
        across = Scale.of([x for x, _ in everything], 0.0, LEFT, WIDTH - RIGHT)
        scales = dict.fromkeys(names, across)
    else:
        across = Scale(0.0, 100.0, LEFT, WIDTH - RIGHT)
        scales = {name: Scale(0.0, ends[name] or 1.0, LEFT, WIDTH - RIGHT) for name in names}
    y = Scale.of([y for _, y in everything], 0.06, HEIGHT - BOTTOM, TOP)
    bold = [line for line in finite if not line.thin and line.points]
    return Chart(
        metric=metric,
        x_ticks=tuple(
            Tick(across(at), f"{number(at)}{' %' if ends else ''}")
            for at in ticks(across.low, across.high, integers=True)
        ),
        y_ticks=tuple(Tick(y(at), number(at)) for at in ticks(y.low, y.high)),
        paths=tuple(
            _path(line, pick_style(line.name, names), scales[line.name], y) for line in lines if line.points
        ),
        labels=_end_labels(bold, names, y) if len(names) > 1 else (),
        hover=_hover(bold, scales, ends is not None),
        last=_last(bold),
        not_finite=sum(len(line.points) for line in lines) - len(everything),
    )


def ticks(low: float, high: float, integers: bool = False) -> list[float]:
    """Choose about `TICKS` round values (1, 2 or 5 times a power of ten) inside [low, high]."""
    rough = (high - low) / TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough * 0.999)
    if integers:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def spread_out(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions at least `gap` apart, inside [low, high] if there is room."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = list(accumulate((positions[i] for i in order), lambda before, at: max(at, before + gap)))
    if placed:
        placed[-1] = min(placed[-1], high)
    for i in range(len(placed) - 2, -1, -1):
        placed[i] = min(placed[i], placed[i + 1] - gap)
    return [max(position, low) for _, position in sorted(zip(order, placed, strict=True))]


def thinned(points: Sequence[Point]) -> list[Point]:
    """Keep about `MAX_POINTS` points with every spike: the extremes of each stretch."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MAX_POINTS)
    extremes: list[Point] = [points[0]]
    for begin in range(1, len(points) - 1, size):
        stretch = points[begin : min(begin + size, len(points) - 1)]
        extremes += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return [*extremes, points[-1]]


def _is_finite(point: Point) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


class Scale(NamedTuple):
    """A linear map of values in [low, high] to coordinates in [start, end]."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], share: float, start: float, end: float) -> Scale:
        """Span the range of `values` plus a free `share` at both ends."""
        low, high = min(values), max(values)
        if low == high == 0:
            return cls(-share, 1.0, start, end)
        room = (high - low) * share if high > low else abs(high) * 0.5
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def _path(line: Line, style: str, x: Scale, y: Scale) -> Path:
    """Return SVG path data: values that are not finite leave gaps, and single points are dots."""
    stretches: list[list[Point]] = [[]]
    for point in thinned(line.points):
        if _is_finite(point):
            stretches[-1].append((x(point[0]), y(point[1])))
        elif stretches[-1]:
            stretches.append([])
    drawn = ("M" + "L".join(f"{across:g} {down:g}" for across, down in s) for s in stretches if len(s) > 1)
    return Path(style, "".join(drawn), tuple(s[0] for s in stretches if len(s) == 1))


def _end_labels(lines: Sequence[Line], names: Sequence[str], y: Scale) -> tuple[EndLabel, ...]:
    placed = spread_out([y(line.points[-1][1]) for line in lines], LABEL_GAP, TOP, HEIGHT - BOTTOM)
    short = [name if len(name := line.name) <= LABEL_LENGTH else name[: LABEL_LENGTH - 1] + "…" for line in lines]
    return tuple(
        EndLabel(pick_style(line.name, names), name, round(at, 1))
        for line, name, at in zip(lines, short, placed, strict=True)
    )


def _hover(lines: Sequence[Line], scales: Mapping[str, Scale], by_share: bool) -> str:
    curves = []
    for line in lines:
        points = thinned(line.points)
        curve = {
            "name": line.name,
            "steps": [step for step, _ in points],
            "values": [float(f"{value:.4g}") for _, value in points],
            "x": [scales[line.name](step) for step, _ in points],
        }
        curves.append(curve)
    return json.dumps({"byShare": by_share, "curves": curves}, separators=(",", ":"))


def _last(lines: Sequence[Line]) -> str:
    """Describe the end of the curves, each with its step if they end at different steps."""
    ends = [(line.name, *line.points[-1]) for line in lines]
    steps = {step for _, step, _ in ends}
    if len(steps) == 1:
        return f"step {number(*steps)}: " + " · ".join(f"{name} {number(value)}" for name, _, value in ends)
    return "at the end: " + " · ".join(f"{name} {number(y)} (step {number(x)})" for name, x, y in ends)
