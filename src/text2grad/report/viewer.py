"""The report of a run, one static HTML page: what each of its sections shows, as plain values for the template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.report import curves, signs, times
from text2grad.report.folder import Row, RunFolder
from text2grad.report.headline import differing_settings, facts_of, figure, headline_of, opening_of, policies_of
from text2grad.report.pages import render_page, write_page
from text2grad.report.samples import SIGNALS, counts_by_source, examples, sample_views
from text2grad.report.tables import Explanation, Results, explained, results, reward_model_grid, reward_model_rates
from text2grad.report.terminal import gate_lines
from text2grad.report.together import read_together
from text2grad.report.visible import all_visible, visible

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
COMPARISONS = 600_000
"""Characters of JSON of the answers side by side in a page that is one file."""
HELD_OUT = r"held_?out.*|.*pass@1.*"

MAIN = (
    HELD_OUT,
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
"""Which curves come first (docs/metrics.md explains them)."""
OF_VALUES = ("value", "value_loss", "explained_variance")  # these say nothing where there is no value function


def build_report(*folders: Path, settings: str = "") -> Path:
    """Write `report.html` into the first of these run folders, which are shown together, and one into each `seed-*`
    run folder inside of one alone; returns its path.

    A `seed-*` that is a link to another place is shown, but gets no page there. `settings`: how those of the run
    differ from a preset, in words.

    Raises:
        UserError: no run folder, nothing in it yet, a damaged file in it, or the page cannot be written.
    """
    run = read_together(folders)
    for seed in run.seeds:
        if not seed.is_empty and not seed.path.is_symlink():
            write_page(seed.path / "report.html", page(seed, parent="../report.html"))
    return write_page(folders[0] / "report.html", page(run, settings=settings))


def page(
    run: RunFolder, parent: str = "", live: bool = False, settings: str = "", policies: Sequence[str] = ()
) -> str:
    """The page of a run as text; `parent` links a seed's page to the page over all seeds.

    `live`: the samples are not in it, the page asks a server for them; and for answers of `policies`, if there are
    some, to prompts of one's own.
    """
    shown = sections(run, live, settings)
    return render_page("page.html.j2", scripts=SCRIPTS, parent=parent, live=live, tried=policies, **shown)


def sections(run: RunFolder, live: bool = False, settings: str = "") -> dict[str, Any]:
    """Everything the template shows. A run over several seeds shows what they share; samples are per seed."""
    views, left_out = sample_views([] if live or run.seeds else run.methods)
    compared = comparisons_of(run)
    kept = [] if live else _within(compared, COMPARISONS)
    return {
        "run": run,
        "title": run.summary.get("title") or " | ".join(run.together) or run.path.resolve().name,
        "facts": [] if run.together else facts_of(run, settings),
        **_results(run),
        "headline": headline_of(run),
        "opening": "" if run.together else opening_of(run),
        "policies": policies_of(run),
        "differing": differing_settings(run.together),
        "gate": gate_lines(run.gate) if run.gate.get("figures") else [],
        "curves": _chart_group(_method_curves(run), MAIN),
        "clock": list(_against_seconds(_method_curves(run))),
        "times": _times(_method_curves(run)),
        "supervised": _supervised(run),
        "data": {"signals": SIGNALS, "samples": views, "comparisons": kept, "live": live},
        "with_samples": bool(views) or live,
        "samples_left_out": left_out,
        "comparisons": len(compared),
        "comparisons_left_out": 0 if live else len(compared) - len(kept),
        "feedback": counts_by_source(run.feedback),
        "examples": examples(run.feedback),
        "evaluation": _evaluation(run.evaluation),
        "signs": list(_signs(run)),
    }


def comparisons_of(run: RunFolder) -> list[Row]:
    """The answers to held-out prompts side by side as plain data; of several seeds those of the first."""
    items = next((part.before_after for part in (run, *run.seeds) if part.before_after), [])
    return [all_visible(item.model_dump(mode="json")) for item in items]


def _within(rows: Sequence[Row], budget: int) -> list[Row]:
    """Rows of every task in turn, until their JSON has so many characters."""
    left: dict[str, list[Row]] = {}
    for row in rows:
        left.setdefault(row["task"], []).append(row)
    kept: list[Row] = []
    for row in (row for turn in zip_longest(*left.values()) for row in turn if row is not None):
        budget -= len(json.dumps(row, ensure_ascii=False))
        if budget < 0:
            break
        kept.append(row)
    return kept


def _signs(run: RunFolder) -> Iterator[str]:
    """Warnings about the reward model, the runs, and policies compared with each other."""
    yield from signs.of_quotes(run.evaluation.get("reward_model", {}).get("unmatched"), "of the reward model")
    for method in run.methods:
        yield from (f"{visible(method.name)}: {line}" for line in signs.of_metrics(method.metrics))
    for figures in (run.summary, *run.evaluation.values()):
        yield from map(visible, figures.get("signs") or ())


def _results(run: RunFolder) -> dict[str, Any]:
    table = results(run.summary)
    figures = run.summary.get("reward_model") or run.evaluation.get("reward_model") or {}
    return {
        "results": table if table.names else None,
        "compared": run.summary.get("table"),
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
    full, base = max(1.0, *values), cells[0].mean
    rows = []
    for index, cell in enumerate(cells):
        gain = "–" if cell.mean is None or base is None else f"{cell.mean - base:+.3f}".replace("-", "−")
        marks = [round(100 * value / full, 2) for value in cell.seeds if len(cell.seeds) > 1]
        width = round(100 * (cell.mean or 0.0) / full, 2)
        rows.append({"width": width, "ticks": marks, "gain": gain if index else ""})
    return {"column": table.columns[column], "against": table.names[0], "full": full, "rows": rows}


def _method_curves(run: RunFolder) -> dict[str, list[list[Row]]]:
    """The metrics of each method, for each of its seeds."""
    rows_by_method: dict[str, list[list[Row]]] = {}
    for part in run.seeds or [run]:
        for method in part.methods:
            left_out = () if method.valued else OF_VALUES
            rows = [{name: value for name, value in row.items() if name not in left_out} for row in method.metrics]
            rows_by_method.setdefault(visible(method.name), []).append(rows)
    return rows_by_method


def _supervised(run: RunFolder) -> list[tuple[str, str, dict[str, Any]]]:
    """The curves of both supervised stages: (title, command that makes them, charts)."""
    runs = {visible(name): each.seeds or [each] for name, each in (run.together or {"training": run}).items()}
    stages = (("Policy (SFT)", "sft", "sft"), ("Reward model", "train-reward", "reward_model"))
    return [(title, command, _chart_group(_rows_of(runs, stage), SUPERVISED)) for title, command, stage in stages]


def _rows_of(runs: Mapping[str, Sequence[RunFolder]], stage: str) -> Curves:
    return {name: [rows for part in parts if (rows := getattr(part, stage))] for name, parts in runs.items()}


def _chart_group(runs: Curves, main: Sequence[str]) -> dict[str, Any]:
    """Charts of all metrics, with what each means: the main ones, the rest, and those that never change."""
    every_row = [row for seeds in runs.values() for rows in seeds for row in rows]
    names = curves.metrics_of(every_row)
    values = {name: {row[name] for row in every_row if row.get(name) is not None} for name in names}
    flat = {name: min(values[name], default=0.0) for name in names if len(values[name]) < 2}
    first, rest = arranged([name for name in names if name not in flat], main)
    draw = partial(_chart, runs)
    return {
        "main": [(drawn, explained(name)) for name in first if (drawn := draw(name))],
        "rest": [(drawn, explained(name)) for name in sorted(rest) if (drawn := draw(name))],
        "flat": [(name, flat[name], explained(name)) for name in sorted(flat)],
        "methods": [(name, curves.style_of(name, list(runs))) for name in runs],
        "seeds": max((len(seeds) for seeds in runs.values()), default=0),
    }


def _chart(runs: Curves, metric: str, clocked: bool = False) -> curves.Chart | None:
    """The curve of each seed, and their mean, over steps or (`clocked`) over seconds, the mean at mean seconds."""
    lines: list[curves.Line] = []
    for name, seeds in runs.items():
        having = [rows for rows in seeds if curves.points_of(rows, metric)]
        own = [curves.Line(name, curves.points_of(rows, metric), len(having) > 1) for rows in having]
        drawn = [*own, curves.mean_line(name, own)] if len(own) > 1 else own
        if clocked and own:
            clocks = [_seconds(rows) for rows in having]
            shared = set(clocks[0]).intersection(*clocks)
            mean = {step: fmean(clock[step] for clock in clocks) for step in shared}
            drawn = [curves.at(line, clock) for line, clock in zip(drawn, [*clocks, mean], strict=False)]
        lines += drawn
    return curves.chart(metric, lines, list(runs), "second" if clocked else "step")


def _against_seconds(runs: Curves) -> Iterator[tuple[curves.Chart, Explanation]]:
    """The held-out curves against the seconds of training, without those of measuring."""
    every_row = [row for seeds in runs.values() for rows in seeds for row in rows]
    if not any(map(times.seconds_of, every_row)):
        return
    for metric in (name for name in curves.metrics_of(every_row) if re.fullmatch(HELD_OUT, name)):
        if drawn := _chart(runs, metric, clocked=True):
            yield drawn, Explanation("against seconds of training, measuring aside")


def _times(runs: Curves) -> dict[str, Any] | None:
    """The seconds of a step of each method, over all its seeds."""
    seconds = times.seconds_a_step({name: [row for rows in seeds for row in rows] for name, seeds in runs.items()})
    return {"head": times.HEAD, "rows": times.time_rows(seconds, {})} if seconds else None


def _seconds(rows: Sequence[Row]) -> dict[float, float]:
    """Seconds until the end of each step."""
    spent = accumulate(map(times.seconds_of, rows))
    return {float(row["step"]): round(seconds, 1) for row, seconds in zip(rows, spent, strict=True)}


def _evaluation(files: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Tables over evaluation/*.json, figures down and names across; files with the same figures share a table."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, row in files.items():
        alike.setdefault(tuple(key for key in row if key != "signs"), []).append(name)
    return [
        {
            "names": names,
            "rows": [(key, explained(key).what, [figure(files[name][key]) for name in names]) for key in figures],
        }
        for figures, names in alike.items()
    ]


def arranged(names: Iterable[str], main: Sequence[str] = MAIN) -> tuple[list[str], list[str]]:
    """Split metric names into the main ones, in the order of `main`, and the rest."""
    every = list(names)
    first = [name for pattern in main for name in every if re.fullmatch(pattern, name)]
    return first, [name for name in every if name not in first]
