"""Held-out curves of a comparison as numbers and as SVG, and the rollouts that methods need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from statistics import fmean, pstdev

from text2grad.page.curves import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, chart
from text2grad_lab.compare import times
from text2grad_lab.compare.figures import WAYS, metrics_of
from text2grad_lab.compare.methods import METHODS, Methods
from text2grad_lab.compare.seeds import Seed

COLOURS = ("#0b6e4f", "#b3541e", "#3a5ba0", "#8a4f9e", "#777777", "#bbbbbb", "#c9a227", "#2a9d8f")
BAND = 'stroke="none" fill-opacity=".12"'
Point = Mapping[str, float]
Curves = Mapping[str, Sequence[Sequence[Point]]]
"""Points by method and seed."""


class Band(Line):
    """The outline of the values within one standard deviation of the mean over seeds."""


def curves_of(methods: Methods, seeds: Sequence[Seed], measure: str) -> dict[str, list[list[Point]]]:
    """Return the held-out curves (`ppo.heldout_every`) by method, a list of points per seed.

    A point has the rollouts and seconds so far, without evaluation, and the measure of greedy and
    of sampled answers.
    """
    by_method = {name: [list(_points(seed, name, measure)) for seed in seeds] for name in methods}
    return {name: curves for name, curves in by_method.items() if any(curves)}


def _points(seed: Seed, name: str, measure: str) -> Iterator[Point]:
    seconds = 0.0
    for number, row in enumerate(metrics_of(seed, name), start=1):
        seconds += times.seconds_of(row)
        if f"heldout_sampled_{measure}" in row:
            values = {way: row[f"heldout_{way}_{measure}"] for way in WAYS}
            rollouts = float(number * seed.settings(seed.works[name]).ppo.rollouts)
            yield {"rollouts": rollouts, "seconds": round(seconds, 1), **values}


def rollout_shares(curves: Curves, starts: Sequence[float]) -> dict[str, float | None]:
    """Return the share of scalar PPO's rollouts that each method needs for its last measure.

    The share is a mean over seeds, whose SFT policies have the measures `starts`; None if a seed
    never reaches the measure. The result is empty without scalar PPO.
    """
    shares: dict[str, float | None] = {}
    for name, by_seed in curves.items() if "scalar" in curves else ():
        counts = [
            rollouts_to(start, points, scalar[-1]["sampled"])
            for start, points, scalar in zip(starts, by_seed, curves["scalar"], strict=True)
        ]
        ends = [scalar[-1]["rollouts"] for scalar in curves["scalar"]]
        reached = [count / end for count, end in zip(counts, ends, strict=True) if count is not None]
        shares[name] = round(fmean(reached), 4) if len(reached) == len(counts) else None
    return shares


def rollouts_to(start: float, curve: Sequence[Point], rate: float) -> float | None:
    """Return the rollouts at which the interpolated curve first reaches `rate`; None: never."""
    points = [(0.0, start), *((point["rollouts"], point["sampled"]) for point in curve)]
    if start >= rate:
        return 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= rate:
            return x0 + (x1 - x0) * (rate - y0) / (y1 - y0)
    return None


def draw_curves(curves: Curves, starts: Sequence[float], title: str) -> str:
    """Return the sampled measure over rollouts as SVG: seeds thin and pale, their mean bold.

    A band shows one standard deviation over the seeds, as in the paper's Figure 5.
    """
    lines = [line for name, by_seed in curves.items() for line in _lines(METHODS.get(name, name), by_seed, starts)]
    return svg(lines, f"{title}, sampled", "rollouts")


def _lines(title: str, by_seed: Sequence[Sequence[Point]], starts: Sequence[float]) -> list[Line]:
    seeds = [
        Line(title, ((0.0, start), *((point["rollouts"], point["sampled"]) for point in points)), thin=True)
        for start, points in zip(starts, by_seed, strict=True)
    ]
    values = [dict(line.points) for line in seeds]
    shared = sorted(set(values[0]).intersection(*values[1:]))  # rollouts at which all seeds were measured
    over_seeds = {at: [value[at] for value in values] for at in shared}
    mean = Line(title, tuple((at, fmean(at_seeds)) for at, at_seeds in over_seeds.items()))
    upper, lower = (
        [(at, fmean(at_seeds) + sign * pstdev(at_seeds)) for at, at_seeds in over_seeds.items()] for sign in (1, -1)
    )
    bands = [Band(title, (*upper, *reversed(lower)), thin=True)] if len(values) > 1 else []
    return [*bands, *seeds, mean]


def svg(lines: Sequence[Line], title: str, x_title: str) -> str:
    """Return the curves as an SVG document; thin curves (single seeds) are pale.

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
    with_points = [line for line in lines if line.points]
    for line, path in zip(with_points, drawn.paths, strict=True):
        if isinstance(line, Band):
            parts.append(f'<path d="{path.data}Z" fill="{colour[line.name]}" {BAND}/>')
            continue
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
