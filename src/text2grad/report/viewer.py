"""The report of a run, one static HTML page: what each of its sections shows, as plain values for the template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.report import curves, signs, times
from text2grad.report.folder import BeforeAfter, Row, RunFolder, read_run
from text2grad.report.pages import render_page, write_page
from text2grad.report.samples import SIGNALS, counts_by_source, examples, sample_views
from text2grad.report.tables import Results, explained, is_number, results, reward_model_grid, reward_model_rates
from text2grad.report.terminal import gate_lines
from text2grad.report.verdict import sentences_of
from text2grad.report.visible import visible
from text2grad.unicode_words import units

Curves = Mapping[str, Sequence[Sequence[Row]]]  # name -> for each seed -> rows of metrics.jsonl
MAX_SHOWN = 40
SCRIPTS = ("text.mjs", "dom.mjs", "signals.mjs", "diff.mjs", "charts.mjs", "sample.mjs", "view.mjs")
MOST_WORDS = 600
"""Of an answer that is compared word by word; longer ones are compared by lines."""
HELD_OUT = r"held_?out.*|.*pass@1.*"

MAIN = (  # which curves come first, and how to read each (docs/metrics.md explains them in full)
    (HELD_OUT, "held-out problems, never trained on: higher is better"),
    (r"score", "the critic's verdict, mean over the responses, −1 to 1"),
    (r"delta(_sum)?", "token pseudo-rewards of a response added up, mean"),
    (r"kl", "distance from the reference policy per response: must not run away"),
    (r"wrong_sign_rate", "labelled tokens whose advantage has the other sign: lower is better"),
    (r"explained_variance", "of the value function: 1 foresees all returns, 0 none"),
    (r"critic_failed", "share of critiques that failed and were masked out"),
    (r"response_length", "tokens per response, mean"),
    (r"entropy", "of the policy, per token: towards 0 it stops exploring"),
)
SUPERVISED = (
    (r"loss|train_loss", "next-token loss"),
    (r"label_loss", "second loss: good, poor or neither, of every response token"),
    (r"(held_?out|eval|validation)_loss", "next-token loss, held-out"),
)
OF_VALUES = ("value", "value_loss", "explained_variance")  # these say nothing where there is no value function


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


def page(run: RunFolder, parent: str = "", live: bool = False) -> str:
    """The page of a run as text; `parent` links a seed's page to the page over all seeds.

    `live`: the samples are not in it, the page asks a server for them.
    """
    return render_page("page.html.j2", scripts=SCRIPTS, parent=parent, live=live, **sections(run, live))


def sections(run: RunFolder, live: bool = False) -> dict[str, Any]:
    """Everything the template shows. A run over several seeds shows what they share; samples are per seed."""
    views, left_out = sample_views([] if live else run.methods)
    shown = _first_of_each_task(run.before_after)
    return {
        "run": run,
        "title": run.summary.get("title") or run.path.resolve().name,
        "facts": _facts(run.summary, run.model),
        **_results(run),
        "headline": _headline(run.summary),
        "opening": _opening(run),
        "policies": _policies(run),
        "gate": gate_lines(run.gate) if run.gate.get("figures") else [],
        "curves": _chart_group(_method_curves(run), MAIN),
        "clock": list(_against_seconds(_method_curves(run))),
        "times": _times(_method_curves(run)),
        "supervised": _supervised(run),
        "samples": {"signals": SIGNALS, "samples": views} if views or live else None,
        "samples_left_out": left_out,
        "comparisons": shown,
        "diff_of": diff_of,
        "comparisons_left_out": len(run.before_after) - len(shown),
        "feedback": counts_by_source(run.feedback),
        "examples": examples(run.feedback),
        "evaluation": _evaluation(run.evaluation),
        "signs": list(_signs(run)),
    }


def _signs(run: RunFolder) -> Iterator[str]:
    """Warnings about the reward model, the runs, and policies compared with each other."""
    yield from signs.of_quotes(run.evaluation.get("reward_model", {}).get("unmatched"), "of the reward model")
    for method in run.methods:
        yield from (f"{visible(method.name)}: {line}" for line in signs.of_metrics(method.metrics))
    for figures in (run.summary, *run.evaluation.values()):
        yield from map(visible, figures.get("signs") or ())


def _facts(summary: Row, model: Row) -> list[tuple[str, str]]:
    minutes, seconds = divmod(round(summary.get("seconds") or 0), 60)
    time = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    memory = summary.get("peak_rss_mb") or 0
    facts = [
        ("base model", str(model.get("text") or "")),
        ("seeds", ", ".join(map(str, summary.get("seeds") or []))),
        ("time", time if summary.get("seconds") else ""),
        ("peak memory", f"{memory:,.0f} MB" if memory else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _headline(summary: Row) -> str:
    """The main measure of each policy, in the order of the table, with its interval where one was computed."""
    table, compared = results(summary), summary.get("table") or {}
    if not table.columns:
        return ""
    column = "sampled" if "sampled" in table.columns else table.columns[0]
    intervals = {row[0]: row[2] for row in compared.get("rows", ()) if tuple(compared["head"][2:3]) == ("95 %",)}
    parts = []
    for name, cells in zip(table.names, table.cells, strict=True):
        interval = f" ({intervals[name]})" if name in intervals else ""
        parts.append(f"{name} {cells[table.columns.index(column)].text}{interval}")
    return " → ".join(parts)


def _opening(run: RunFolder) -> str:
    """A summary in one sentence."""
    spans = sum(len(record.spans) for record in run.feedback)
    marked = f"{len(run.feedback)} records of feedback with {spans} marked passages" if run.feedback else ""
    names = [row.name for row in _policies(run)] or results(run.summary).names
    trained = f"{len(names)} polic{'ies' if len(names) > 1 else 'y'}: {', '.join(names)}" if names else ""
    parts = "; ".join(filter(None, (marked, trained)))
    measured = run.summary.get("rows") or any(row.cells for row in _policies(run)) or not names
    unmeasured = "" if measured else " None was measured on held-out prompts yet (text2grad evaluate NAME)."
    return f"{parts}.{unmeasured}" if parts else ""


class PolicyRow(NamedTuple):
    """A policy of a run: the steps of its training, their effect, and its main held-out figures by name."""

    name: str
    steps: int
    effect: str
    cells: dict[str, str]


def _policies(run: RunFolder) -> list[PolicyRow]:
    trained = {"sft": run.sft, **{method.name: method.metrics for method in run.methods}}
    return [
        PolicyRow(visible(name), len(rows), " ".join(sentences_of(rows)), _measured(run.evaluation, name))
        for name, rows in trained.items()
        if rows
    ]


def _measured(evaluation: Mapping[str, Row], name: str) -> dict[str, str]:
    """The first measure of each way to answer, on each task."""
    cells: dict[str, str] = {}
    for key, figures in evaluation.items():
        policy, _, task = key.partition(" on ")
        for way in ("greedy", "sampled") if policy == name and task else ():
            for measure in [each for each in figures if each.startswith(f"{way}_")][:1]:
                cells[f"{task}: {measure.replace('_', ' ')}"] = _figure(figures[measure])
    return cells


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
    parts = run.seeds or [run]
    stages = (
        ("Policy (SFT)", "sft", [part.sft for part in parts if part.sft]),
        ("Reward model", "train-reward", [part.reward_model for part in parts if part.reward_model]),
    )
    return [(title, command, _chart_group({"training": seeds}, SUPERVISED)) for title, command, seeds in stages]


def _chart_group(runs: Curves, main: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Small multiples of all metrics: the main ones (with a line on how to read them), and the rest."""
    every_row = [row for seeds in runs.values() for rows in seeds for row in rows]
    names = curves.metrics_of(every_row)
    zero = [name for name in names if not any(row.get(name) for row in every_row)]
    first, rest = arranged([name for name in names if name not in zero], main)
    draw = partial(_chart, runs)
    return {
        "main": [(drawn, about) for name, about in first if (drawn := draw(name))],
        "rest": [(drawn, explained(name)) for name in sorted(rest) if (drawn := draw(name))],
        "zero": [(name, explained(name)) for name in sorted(zero)],
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


def _against_seconds(runs: Curves) -> Iterator[tuple[curves.Chart, str]]:
    """The held-out curves against the seconds of training, without those of measuring."""
    every_row = [row for seeds in runs.values() for rows in seeds for row in rows]
    for metric in (name for name in curves.metrics_of(every_row) if re.fullmatch(HELD_OUT, name)):
        if drawn := _chart(runs, metric, clocked=True):
            yield drawn, "against seconds of training, measuring aside"


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
        {"names": names, "rows": [(key, [_figure(files[name][key]) for name in names]) for key in figures]}
        for figures, names in alike.items()
    ]


def _figure(value: Any) -> str:
    return curves.number(value) if is_number(value) else str(value)


def arranged(
    names: Iterable[str], main: tuple[tuple[str, str], ...] = MAIN
) -> tuple[list[tuple[str, str]], list[str]]:
    """Split metric names into the main ones with their explanation, in the order of `main`, and the rest."""
    rest = list(names)
    first: list[tuple[str, str]] = []
    for pattern, about in main:
        matching = [name for name in rest if re.fullmatch(pattern, name)]
        first += [(name, about) for name in matching]
        rest = [name for name in rest if name not in matching]
    return first, rest


class DiffPiece(NamedTuple):
    """Part of an answer: "same", "added", or "gone" (only in the answer compared with)."""

    kind: str
    text: str


def _first_of_each_task(items: Sequence[BeforeAfter]) -> list[BeforeAfter]:
    """The first `MAX_SHOWN`; of several tasks the first of each, an equal share."""
    tasks = Counter(item.task for item in items)
    left = dict.fromkeys(tasks, max(1, MAX_SHOWN // max(1, len(tasks))))
    kept = []
    for item in items:
        left[item.task] -= 1
        kept += [item] if left[item.task] >= 0 else []
    return kept


def diff_of(before: str, after: str) -> list[DiffPiece]:
    """`after` in order, with what is gone of `before` in its old places: by word, of long answers by line."""
    old, new = _words_in(before), _words_in(after)
    if max(len(old), len(new)) > MOST_WORDS:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    result: list[DiffPiece] = []
    for kind, a_start, a_end, b_start, b_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            result.append(DiffPiece("same", "".join(new[b_start:b_end])))
        else:
            gone, added = "".join(old[a_start:a_end]), "".join(new[b_start:b_end])
            result += [each for each in (DiffPiece("gone", gone), DiffPiece("added", added)) if each.text]
    return result


def _words_in(text: str) -> list[str]:
    """The words and signs of a text, and what stands between them."""
    edges = sorted({0, len(text), *(edge for place in units(text) for edge in place)})
    return [text[a:b] for a, b in pairwise(edges)]
