"""What a page opens with: how far the policies of a run came, and of what model, when, with which settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from text2grad.report import curves
from text2grad.report.folder import Row, RunFolder, read_object
from text2grad.report.tables import is_number, results
from text2grad.report.verdict import sentences_of
from text2grad.report.visible import visible
from text2grad.strict_yaml import YAMLMistakeError, parse_yaml

BOOKKEEPING = ("run.folder", "run.threads", "run.loggers")
"""Settings that say nothing about a result."""
Z = 1.96
"""Standard errors on each side of a mean that hold it in 95 of 100 samples."""
FIRST = ("base", "sft")
"""Policies that others start from, in their order."""


class PolicyRow(NamedTuple):
    """A policy of a run: the steps of its training, their effect, and its main held-out figures by name."""

    name: str
    steps: int
    effect: str
    cells: dict[str, str]


def facts_of(run: RunFolder, settings: str) -> list[tuple[str, str]]:
    """Model, date, cost, and `settings`: how they differ from those of a preset."""
    summary, model = run.summary, run.model.get("text") or dict(leaves(parsed(run.config))).get("policy.model", "")
    minutes, seconds = divmod(round(summary.get("seconds") or 0), 60)
    memory = summary.get("peak_rss_mb") or 0
    facts = [
        ("base model", str(model)),
        ("seeds", ", ".join(map(str, summary.get("seeds") or []))),
        ("written", _date(run.path)),
        ("time", (f"{minutes} min {seconds} s" if minutes else f"{seconds} s") if summary.get("seconds") else ""),
        ("peak memory", f"{memory:,.0f} MB" if memory else ""),
        ("settings", settings),
    ]
    return [(name, value) for name, value in facts if value]


def _date(path: Path) -> str:
    """When the newest figures of a run were written."""
    files = (path.glob(kind) for kind in ("summary.json", "*/metrics.jsonl", "ppo/*/metrics.jsonl"))
    times = [file.stat().st_mtime for file in chain(*files)]
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC" if times else ""


def headline_of(run: RunFolder) -> str:
    """The main measure of each policy, in the order of the table, with its interval where there is one."""
    table, compared = results(run.summary), run.summary.get("table") or {}
    if (not compared or not table.columns) and (measured := _from_evaluations(run, table.metric)):
        return measured
    if not table.columns:
        return ""
    column = "sampled" if "sampled" in table.columns else table.columns[0]
    intervals = {row[0]: row[2] for row in compared.get("rows", ()) if tuple(compared["head"][2:3]) == ("95 %",)}
    parts = []
    for name, cells in zip(table.names, table.cells, strict=True):
        interval = f" ({intervals[name]})" if name in intervals else ""
        parts.append(f"{name} {cells[table.columns.index(column)].text}{interval}")
    return f"{table.metric} {' → '.join(parts)}".strip()


def _from_evaluations(run: RunFolder, metric: str) -> str:
    """The same by the scores of each problem: of the task that most policies of a run were measured on."""
    by_task: dict[str, dict[str, Path]] = {}
    for file in sorted(run.path.glob("evaluation/*/*.scores.json")) if not run.together else ():
        by_task.setdefault(file.parent.name, {})[file.name.removesuffix(".scores.json")] = file
    if not by_task:
        return ""
    task, files = max(by_task.items(), key=lambda item: len(item[1]))
    order = sorted(files, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    measured = [(name, _main_scores(read_object(files[name]))) for name in order]
    parts = [f"{visible(name)} {_with_interval(scores)}" for name, (_, scores) in measured if scores]
    named = {measure for _, (measure, scores) in measured if scores}
    return f"{metric or f'{visible(task)} {named.pop()}'} {' → '.join(parts)}" if len(named) == 1 else ""


def _main_scores(ways: Mapping[str, Any]) -> tuple[str, list[float]]:
    """The first measure of a file of scores, sampled if it was, and its value for each problem."""
    way = next((way for way in ("sampled", "greedy") if ways.get(way)), "")
    problems = list(ways[way].values()) if way else []
    measure = next(iter(problems[0]), "") if problems else ""
    values = [float(each[measure]) for each in problems if is_number(each.get(measure))]
    return f"{way} {measure.replace('_', ' ')}", values


def _with_interval(values: Sequence[float]) -> str:
    """A mean, and where there are several values its 95 % interval by their standard error."""
    middle = fmean(values)
    if len(values) < 2:
        return f"{middle:.3f}"
    error = Z * stdev(values) / sqrt(len(values))
    low, high = middle - error, middle + error
    if min(values) >= 0 and max(values) <= 1:  # a share
        low, high = max(0.0, low), min(1.0, high)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def opening_of(run: RunFolder) -> str:
    """A summary in one sentence."""
    spans = sum(len(record.spans) for record in run.feedback)
    marked = f"{len(run.feedback)} records of feedback with {spans} marked passages" if run.feedback else ""
    names = [row.name for row in policies_of(run)] or results(run.summary).names
    trained = f"{len(names)} polic{'ies' if len(names) > 1 else 'y'}: {', '.join(names)}" if names else ""
    parts = "; ".join(filter(None, (marked, trained)))
    measured = run.summary.get("rows") or any(row.cells for row in policies_of(run)) or not names
    unmeasured = "" if measured else " None was measured on held-out prompts yet (text2grad evaluate NAME)."
    return f"{parts}.{unmeasured}" if parts else ""


def policies_of(run: RunFolder) -> list[PolicyRow]:
    """The policies that were trained."""
    if run.together:
        every = ((name, row) for name, each in run.together.items() for row in policies_of(each))
        return [row._replace(name=f"{visible(name)} {row.name}") for name, row in every]
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
                cells[f"{task}: {measure.replace('_', ' ')}"] = figure(figures[measure])
    return cells


def figure(value: Any) -> str:
    """A figure of an evaluation as text."""
    return curves.number(value) if is_number(value) else str(value)


def differing_settings(runs: Mapping[str, RunFolder]) -> list[tuple[str, list[str]]]:
    """The settings in which runs differ, each with its value in every run."""
    configs = {name: dict(leaves(parsed(run.config))) for name, run in runs.items()}
    keys = dict.fromkeys(chain.from_iterable(configs.values()))
    rows = [(key, [config.get(key, "–") for config in configs.values()]) for key in keys if key not in BOOKKEEPING]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def parsed(text: str) -> Any:
    """A configuration as data; nothing of one that cannot be read."""
    try:
        return parse_yaml(text)
    except YAMLMistakeError:
        return {}


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every setting by `section.key`, as text."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(each, f"{key}.{name}".lstrip("."))
    elif key:
        yield key, str(value)
