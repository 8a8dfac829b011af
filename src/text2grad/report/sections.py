"""What each section of the page shows, as plain values for the template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from text2grad.report import compare, curves, intake
from text2grad.report.folder import Method, Row, RunFolder
from text2grad.report.metrics import MAIN, OF_VALUES, SUPERVISED, arranged
from text2grad.report.samples import STRIP_ROWS, sample_views
from text2grad.report.tables import Results, is_number, results, reward_model_grid, reward_model_rates
from text2grad.report.visible import visible

Curves = Mapping[str, Sequence[Sequence[Row]]]  # name -> for each seed -> rows of metrics.jsonl


def sections(run: RunFolder) -> dict[str, Any]:
    """Everything the template shows. A run over several seeds shows what they share; samples are per seed."""
    views, left_out = sample_views(run.methods)
    shown = compare.shown(run.before_after)
    return {
        "run": run,
        "title": run.summary.get("title") or run.path.resolve().name,
        "facts": _facts(run.summary),
        **_results(run),
        "curves": _chart_group(_method_curves(run), MAIN),
        "supervised": _supervised(run),
        "samples": {"rows": STRIP_ROWS, "samples": views} if views else None,
        "samples_left_out": left_out,
        "comparisons": shown,
        "line_diff": compare.line_diff,
        "comparisons_left_out": len(run.before_after) - len(shown),
        "feedback": intake.counts_by_source(run.feedback),
        "examples": intake.examples(run.feedback),
        "evaluation": _evaluation(run.evaluation),
    }


def _facts(summary: Row) -> list[tuple[str, str]]:
    minutes, seconds = divmod(round(summary.get("seconds") or 0), 60)
    time = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    memory = summary.get("peak_rss_mb") or 0
    facts = [
        ("seeds", ", ".join(map(str, summary.get("seeds") or []))),
        ("time", time if summary.get("seconds") else ""),
        ("peak memory", f"{memory:,.0f} MB" if memory else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _results(run: RunFolder) -> dict[str, Any]:
    table = results(run.summary)
    figures = run.summary.get("reward_model") or run.evaluation.get("reward_model") or {}
    return {
        "results": table if table.names else None,
        "bars": _bars(table),
        "grid": reward_model_grid(figures),
        "rates": reward_model_rates(figures),
    }


def _bars(table: Results) -> dict[str, Any] | None:
    """A bar per policy for the sampled (else the first) column, a tick per seed; widths in percent."""
    if not table.columns:
        return None
    column = table.columns.index("sampled") if "sampled" in table.columns else 0
    cells = [row[column] for row in table.cells]
    values = [value for cell in cells for value in (cell.mean or 0.0, *cell.seeds)]
    if min(values) < 0:
        return None
    full = 1.0 if max(values) <= 1 else max(values)
    rows = [
        {
            "width": round(100 * (cell.mean or 0.0) / full, 2),
            "ticks": [round(100 * value / full, 2) for value in cell.seeds if len(cell.seeds) > 1],
            "gain": _gain(cell.mean, cells[0].mean) if index else "",
        }
        for index, cell in enumerate(cells)
    ]
    return {"column": table.columns[column], "against": table.names[0], "full": full, "rows": rows}


def _gain(value: float | None, base: float | None) -> str:
    if value is None or base is None:
        return "–"
    return f"{value - base:+.3f}".replace("-", "−")


def _method_curves(run: RunFolder) -> dict[str, list[list[Row]]]:
    found: dict[str, list[list[Row]]] = {}
    for part in run.seeds or [run]:
        for method in part.methods:
            found.setdefault(visible(method.name), []).append(_telling(method))
    return found


def _telling(method: Method) -> list[Row]:
    """The rows of a run; without the value function's metrics if there is no value function."""
    if method.valued:
        return method.metrics
    return [{name: value for name, value in row.items() if name not in OF_VALUES} for row in method.metrics]


def _supervised(run: RunFolder) -> list[tuple[str, str, dict[str, Any]]]:
    """The curves of both supervised stages: (title, command that makes them, charts)."""
    stages: list[tuple[str, str, Callable[[RunFolder], list[Row]]]] = [
        ("Policy (SFT)", "sft", lambda part: part.sft),
        ("Reward model", "train-reward", lambda part: part.reward_model),
    ]
    found = []
    for title, command, read in stages:
        seeds = [rows for part in run.seeds or [run] if (rows := read(part))]
        found.append((title, command, _chart_group({"training": seeds}, SUPERVISED)))
    return found


def _chart_group(found: Curves, main: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Small multiples of all metrics: the main ones (with a line on how to read them), and the rest."""
    every_row = (row for seeds in found.values() for rows in seeds for row in rows)
    first, rest = arranged(curves.metrics_of(every_row), main)
    draw = partial(_chart, found)
    return {
        "main": [(drawn, about) for name, about in first if (drawn := draw(name))],
        "rest": [(drawn, "") for name in sorted(rest) if (drawn := draw(name))],
        "methods": [(name, curves.style_of(name, list(found))) for name in found],
        "seeds": max((len(seeds) for seeds in found.values()), default=0),
    }


def _chart(found: Curves, metric: str) -> curves.Chart | None:
    lines: list[curves.Line] = []
    for name, seeds in found.items():
        each = [points for rows in seeds if (points := curves.points_of(rows, metric))]
        thin = len(each) > 1
        own = [curves.Line(name, points, thin) for points in each]
        lines += [*own, curves.mean_line(name, own)] if thin else own
    return curves.chart(metric, lines, names=list(found))


def _evaluation(files: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Tables over evaluation/*.json, figures down and names across; what measures the same shares a table."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, row in files.items():
        alike.setdefault(tuple(row), []).append(name)
    return [
        {"names": names, "rows": [(key, [_figure(files[name][key]) for name in names]) for key in figures]}
        for figures, names in alike.items()
    ]


def _figure(value: Any) -> str:
    return curves.number(float(value)) if is_number(value) else str(value)
