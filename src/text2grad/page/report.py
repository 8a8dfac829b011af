"""The page of a run: the values of each of its sections for the template, and the file `report.html`."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple, TypeGuard

from text2grad.page import curves
from text2grad.page.render import all_visible, number, render_page, visible, write_page
from text2grad.page.runs import Row, RunFolder, read_together
from text2grad.page.samples import SIGNALS, count_by_source, sample_views, thin
from text2grad.page.signs import describe_gate, describe_training, metric_warnings, quote_warnings
from text2grad.strict_yaml import YAMLMistakeError, parse_yaml

Curves = Mapping[str, Sequence[Sequence[Row]]]  # name -> for each seed -> rows of metrics.jsonl
SCRIPTS = (
    "text.mjs",
    "dom.mjs",
    "signals.mjs",
    "diff.mjs",
    "charts.mjs",
    "sample.mjs",
    "beside.mjs",
    "try.mjs",
    "view.mjs",
)
SAMPLES, COMPARISONS = 1_600_000, 600_000
"""Characters of JSON in a page that is one file, which stays under 3 MB with the curves."""
MAIN = (
    r"held_?out.*|.*pass@1.*",
    "score",
    "delta(_sum)?",
    "kl",
    "wrong_sign_rate",
    "explained_variance",
    "critic_failed",
    "response_length",
    "entropy",
)
SUPERVISED = ("loss|train_loss", "label_loss", "(held_?out|eval|validation)_loss")
"""Patterns of the curves that come first."""
START_POLICIES = ("base", "sft")
"""Policies that others start from, in their order."""
BOOKKEEPING = ("run.folder", "run.threads", "run.loggers")
"""Settings without an effect on results."""
REWARD_MODEL_ROWS = {
    "good_precision": "precision of good tokens",
    "good_recall": "recall of good tokens",
    "poor_precision": "precision of poor tokens",
    "poor_recall": "recall of poor tokens",
    "unmatched": "quotes that are not in the response",
    "ambiguous": "quotes that occur more than once and do not say which",
    "unreadable": "answers that cannot be read",
    "forced": "answers closed by the token limit",
    "wrong_sign_rate": "marked tokens whose true label is the opposite",
}


class Explanation(NamedTuple):
    """The meaning of a logged name and what to watch for (docs/metrics.md)."""

    what: str = ""
    watch: str = ""


class Cell(NamedTuple):
    """A figure: mean and spread over seeds."""

    mean: float | None
    spread: float | None = None
    seeds: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """For example `0.412 ± 0.020`, or `–`."""
        if self.mean is None:
            return "–"
        return f"{self.mean:.3f}" + (f" ± {self.spread:.3f}" if self.spread is not None else "")


class Results(NamedTuple):
    """A table of results: `cells[i][j]` belongs to policy i and column j."""

    metric: str
    columns: list[str]
    names: list[str]
    cells: list[list[Cell]]

    @property
    def has_spread(self) -> bool:
        """True if any figure is a mean over seeds."""
        return any(cell.spread is not None for row in self.cells for cell in row)

    @property
    def main_column(self) -> int:
        """The index of the sampled column, else 0."""
        return self.columns.index("sampled") if "sampled" in self.columns else 0


class PolicyRow(NamedTuple):
    """A trained policy: its steps, the effect of its training, and its main held-out figures by name."""

    name: str
    steps: int
    effect: str
    cells: dict[str, str]


def build_report(*folders: Path) -> Path:
    """Write `report.html` into the first run folder, and into each `seed-*` run folder of a single run.

    Several folders share one page. Links to other places get no page.

    Returns:
        The path of the page.

    Raises:
        UserError: no run folder, nothing in it yet, a damaged file in it, or the page cannot be written.
    """
    run = read_together(folders)
    for seed in run.seeds:
        if not seed.is_empty and not seed.path.is_symlink():
            write_page(seed.path / "report.html", render_run(seed, parent="../report.html"))
    return write_page(folders[0] / "report.html", render_run(run))


def render_run(run: RunFolder, parent: str = "", live: bool = False, policies: Sequence[str] = ()) -> str:
    """Render the page of a run.

    `parent`: the page over all seeds. `live`: a server sends the samples, and answers prompts to `policies`.
    """
    return render_page("page.html.j2", SCRIPTS, live=live, parent=parent, tried=policies, **sections(run, live))


def sections(run: RunFolder, live: bool = False) -> dict[str, Any]:
    """Collect the values of the template. A run over several seeds has no samples of its own."""
    samples = [] if live or run.seeds else sample_views(run.methods)
    comparisons = comparison_views(run)
    few_samples = thin(samples, SAMPLES)
    few_comparisons = [] if live else thin(comparisons, COMPARISONS)
    table = read_results(run.summary)
    reward_model = run.summary.get("reward_model") or run.evaluation.get("reward_model") or {}
    return {
        "run": run,
        "title": run.summary.get("title") or " | ".join(run.together) or run.path.resolve().name,
        "facts": [] if run.together else _facts(run),
        "results": table if table.names else None,
        "compared": run.summary.get("table"),
        "bars": _bars(table),
        "reward_model": reward_model_rows(reward_model),
        "headline": _headline(run, table),
        "policies": policy_rows(run),
        "differing": differing_settings(run.together),
        "gate": describe_gate(run.gate) if run.gate.get("figures") else [],
        "curves": _chart_group(_method_curves(run), MAIN),
        "supervised": _supervised(run),
        "data": {"signals": SIGNALS, "samples": few_samples, "comparisons": few_comparisons, "live": live},
        "with_samples": bool(samples) or live,
        "samples_left_out": len(samples) - len(few_samples),
        "comparisons": len(comparisons),
        "comparisons_left_out": 0 if live else len(comparisons) - len(few_comparisons),
        "feedback": count_by_source(run.feedback),
        "evaluation": _evaluation_tables(run.evaluation),
        "signs": list(_warnings(run)),
    }


def comparison_views(run: RunFolder) -> list[Row]:
    """The answers to held-out prompts side by side as plain data; of several seeds those of the first."""
    items = next((part.before_after for part in (run, *run.seeds) if part.before_after), [])
    return [all_visible(item.model_dump(mode="json")) for item in items]


def _warnings(run: RunFolder) -> Iterator[str]:
    """Warnings about the reward model, the runs, and policies compared with each other."""
    yield from quote_warnings(run.evaluation.get("reward_model", {}).get("unmatched"), "of the reward model")
    for method in run.methods:
        yield from (f"{visible(method.name)}: {line}" for line in metric_warnings(method.metrics))
    for figures in (run.summary, *run.evaluation.values()):
        yield from map(visible, figures.get("signs") or ())


# ---- results


@cache
def _explanations() -> dict[str, list[str]]:
    return json.loads(files("text2grad.page").joinpath("metrics.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def explain(name: str) -> Explanation:
    """Look up the explanation of a logged name; empty if there is none."""
    texts = _explanations()
    pattern = name if name in texts else next((pattern for pattern in texts if fnmatchcase(name, pattern)), "")
    return Explanation(*texts.get(pattern, ()))


def read_results(summary: Mapping[str, Any]) -> Results:
    """Read the table of summary.json; `seeds` of a row has each seed's columns."""
    rows = [row for row in summary.get("rows") or [] if isinstance(row, Mapping)]
    columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if is_number(value)))
    names = [str(row.get("name", "")) for row in rows]
    return Results(str(summary.get("metric", "")), columns, names, [[_cell(r, c) for c in columns] for r in rows])


def _cell(row: Mapping[str, Any], column: str) -> Cell:
    values = [part.get(column) for part in (row, *(row.get("seeds") or [])) if isinstance(part, Mapping)]
    mean, *seeds = (float(value) if is_number(value) else None for value in values)
    measured = tuple(value for value in seeds if value is not None)
    return Cell(mean, stdev(measured) if len(measured) > 1 else None, measured)


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a finite int or float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def reward_model_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The measured rates of a reward model: (meaning, value)."""
    return [
        (text, f"{figures[name]:.3f}") for name, text in REWARD_MODEL_ROWS.items() if is_number(figures.get(name))
    ]


def _bars(table: Results) -> dict[str, Any] | None:
    """A bar for each policy in the main column, with a tick for each seed; widths in percent."""
    if not table.columns:
        return None
    cells = [row[table.main_column] for row in table.cells]
    values = [value for cell in cells for value in (cell.mean or 0.0, *cell.seeds)]
    if min(values) < 0:
        return None
    full, base = max(1.0, *values), cells[0].mean
    rows = []
    for index, cell in enumerate(cells):
        gain = "–" if cell.mean is None or base is None else f"{cell.mean - base:+.3f}".replace("-", "−")
        marks = [round(100 * value / full, 2) for value in cell.seeds if len(cell.seeds) > 1]
        width = round(100 * (cell.mean or 0.0) / full, 2)
        rows.append({"width": width, "ticks": marks, "gain": gain if index else ""})
    return {"column": table.columns[table.main_column], "against": table.names[0], "full": full, "rows": rows}


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    """Model, seeds, date and cost of a run."""
    summary, model = run.summary, run.model.get("text") or _settings(run).get("policy.model", "")
    minutes, seconds = divmod(round(summary.get("seconds") or 0), 60)
    memory = summary.get("peak_rss_mb") or 0
    facts = [
        ("base model", str(model)),
        ("seeds", ", ".join(map(str, summary.get("seeds") or []))),
        ("written", _date(run.path)),
        ("time", (f"{minutes} min {seconds} s" if minutes else f"{seconds} s") if summary.get("seconds") else ""),
        ("peak memory", f"{memory:,.0f} MB" if memory else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _date(path: Path) -> str:
    """The time of the newest figures of a run."""
    figures = (path.glob(kind) for kind in ("summary.json", "*/metrics.jsonl", "ppo/*/metrics.jsonl"))
    times = [file.stat().st_mtime for file in chain(*figures)]
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC" if times else ""


def _headline(run: RunFolder, table: Results) -> str:
    """The main measure of each policy, with its interval if there is one."""
    if not table.columns:
        return _measured_headline(run.evaluation)
    compared = run.summary.get("table") or {}
    intervals = {row[0]: row[2] for row in compared.get("rows", ()) if tuple(compared["head"][2:3]) == ("95 %",)}
    parts = []
    for name, cells in zip(table.names, table.cells, strict=True):
        interval = f" ({intervals[name]})" if name in intervals else ""
        parts.append(f"{name} {cells[table.main_column].text}{interval}")
    return f"{table.metric} {' → '.join(parts)}".strip()


def _measured_headline(evaluation: Mapping[str, Row]) -> str:
    """The headline from evaluation/*/*.json: the measure that most policies have."""
    names = {key.partition(" on ")[0] for key in evaluation if " on " in key}
    order = sorted(names, key=lambda name: (name not in START_POLICIES, name))
    cells = {name: _main_figures(evaluation, name) for name in order}
    columns = Counter(column for row in cells.values() for column in row)
    if not columns:
        return ""
    column = max(columns, key=lambda name: (columns[name], ": sampled " in name))
    return (
        f"{column} {' → '.join(f'{visible(name)} {row[column]}' for name, row in cells.items() if column in row)}"
    )


def policy_rows(run: RunFolder) -> list[PolicyRow]:
    """List the policies that were trained."""
    if run.together:
        rows = [(name, row) for name, part in run.together.items() for row in policy_rows(part)]
        return [row._replace(name=f"{visible(name)} {row.name}") for name, row in rows]
    trained = {"sft": run.sft, **{method.name: method.metrics for method in run.methods}}
    return [
        PolicyRow(visible(name), len(rows), " ".join(describe_training(rows)), _main_figures(run.evaluation, name))
        for name, rows in trained.items()
        if rows
    ]


def _main_figures(evaluation: Mapping[str, Row], name: str) -> dict[str, str]:
    """The first greedy and the first sampled measure of a policy on each task."""
    cells: dict[str, str] = {}
    for key, figures in evaluation.items():
        policy, _, task = key.partition(" on ")
        for way in ("greedy", "sampled") if policy == name and task else ():
            if measure := next((key for key in figures if key.startswith(f"{way}_")), None):
                cells[f"{task}: {measure.replace('_', ' ')}"] = _figure(figures[measure])
    return cells


def _figure(value: Any) -> str:
    return number(value) if is_number(value) else str(value)


def _evaluation_tables(evaluations: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Tables over evaluation/*.json, figures down and names across; names with the same figures share a table."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, row in evaluations.items():
        groups.setdefault(tuple(key for key in row if key != "signs"), []).append(name)
    return [
        {
            "names": names,
            "rows": [(key, explain(key).what, [_figure(evaluations[name][key]) for name in names]) for key in keys],
        }
        for keys, names in groups.items()
    ]


def differing_settings(runs: Mapping[str, RunFolder]) -> list[tuple[str, list[str]]]:
    """List the settings in which runs differ, with their values in every run."""
    configs = {name: _settings(run) for name, run in runs.items()}
    keys = dict.fromkeys(chain.from_iterable(configs.values()))
    rows = [(key, [config.get(key, "–") for config in configs.values()]) for key in keys if key not in BOOKKEEPING]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _settings(run: RunFolder) -> dict[str, str]:
    """The settings of a run by `section.key`; empty if its file cannot be read."""
    try:
        return dict(_leaves(parse_yaml(run.config)))
    except YAMLMistakeError:
        return {}


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _leaves(child, f"{key}.{name}".lstrip("."))
    elif key:
        yield key, str(value)


# ---- curves


def _method_curves(run: RunFolder) -> dict[str, list[list[Row]]]:
    """The metrics of each method, for each of its seeds."""
    rows_by_method: dict[str, list[list[Row]]] = {}
    for part in run.seeds or [run]:
        for method in part.methods:
            rows_by_method.setdefault(visible(method.name), []).append(method.metrics)
    return rows_by_method


def _supervised(run: RunFolder) -> list[tuple[str, str, dict[str, Any]]]:
    """The charts of both supervised stages: (title, command, charts)."""
    runs = {visible(name): part.seeds or [part] for name, part in (run.together or {"training": run}).items()}
    stages = (("Policy (SFT)", "sft", "sft"), ("Reward model", "train-reward", "reward_model"))
    return [
        (title, command, _chart_group(_stage_rows(runs, stage), SUPERVISED)) for title, command, stage in stages
    ]


def _stage_rows(runs: Mapping[str, Sequence[RunFolder]], stage: str) -> Curves:
    return {name: [rows for part in parts if (rows := getattr(part, stage))] for name, parts in runs.items()}


def _chart_group(runs: Curves, main: Sequence[str]) -> dict[str, Any]:
    """The charts of all metrics with their explanations: the main ones, the others, and the constant ones."""
    rows = [row for seeds in runs.values() for seed in seeds for row in seed]
    names = curves.metric_names(rows)
    values = {name: {row[name] for row in rows if row.get(name) is not None} for name in names}
    flat = {name: min(values[name], default=0.0) for name in names if len(values[name]) < 2}
    first, others = arrange([name for name in names if name not in flat], main)
    draw = partial(_chart, runs)
    return {
        "main": [(chart, explain(name)) for name in first if (chart := draw(name))],
        "rest": [(chart, explain(name)) for name in sorted(others) if (chart := draw(name))],
        "flat": [(name, flat[name], explain(name)) for name in sorted(flat)],
        "methods": [(name, curves.pick_style(name, list(runs))) for name in runs],
        "seeds": max((len(seeds) for seeds in runs.values()), default=0),
    }


def _chart(runs: Curves, metric: str) -> curves.Chart | None:
    """The curve of each seed, and their mean."""
    lines: list[curves.Line] = []
    for name, seeds in runs.items():
        measured = [points for rows in seeds if (points := curves.metric_points(rows, metric))]
        seed_lines = [curves.Line(name, points, thin=len(measured) > 1) for points in measured]
        lines += [*seed_lines, curves.mean_line(name, seed_lines)] if len(measured) > 1 else seed_lines
    return curves.chart(metric, lines, list(runs))


def arrange(names: Iterable[str], main: Sequence[str] = MAIN) -> tuple[list[str], list[str]]:
    """Split metric names into the main ones, in the order of `main`, and the others."""
    every = list(names)
    first = [name for pattern in main for name in every if re.fullmatch(pattern, name)]
    return first, [name for name in every if name not in first]
