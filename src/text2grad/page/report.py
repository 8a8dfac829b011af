"""The page of a run: the values of its sections for the template, and `report.html`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.page import curves
from text2grad.page.outcome import describe_outcome
from text2grad.page.quality import describe_feedback, measure
from text2grad.page.render import all_visible, figure, render_page, visible, write_page
from text2grad.page.runs import Row, RunFolder, read_runs, read_samples
from text2grad.page.samples import SIGNALS, sample_views, thin
from text2grad.page.signs import (
    describe_choice,
    describe_gate,
    describe_reward_model,
    describe_training,
    metric_warnings,
    quote_warnings,
)
from text2grad.page.words import measure_title, metric_title, prompt_title
from text2grad.strict_yaml import YAMLMistakeError, parse_yaml

Presets = Sequence[Mapping[str, Any]]  # full settings
Curves = Mapping[str, Sequence[Row]]  # name -> rows of metrics.jsonl
SCRIPTS = (
    "text.mjs",
    "dom.mjs",
    "signals.mjs",
    "diff.mjs",
    "charts.mjs",
    "sample.mjs",
    "beside.mjs",
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
"""Policies that others start from, in order."""
UNEQUAL = 1.5
"""Ratio of the lengths of runs beyond which curves are drawn by the share of each run."""
BOOKKEEPING = ("run.folder", "run.threads", "run.loggers")
"""Settings without an effect on results."""


class Explanation(NamedTuple):
    """The meaning of a logged name, and its warning signs (docs/metrics.md)."""

    what: str = ""
    watch: str = ""


class PolicyRow(NamedTuple):
    """A policy: the steps and effect of its training, and its main held-out figures by title."""

    name: str
    steps: int
    effect: str
    cells: dict[str, str]


def build_report(*folders: Path, presets: Presets = ()) -> Path:
    """Write `report.html` into the first run folder and return its path; several runs share it.

    Raises:
        UserError: a folder is missing or empty, a file is damaged, or the page cannot be written.
    """
    return write_page(folders[0] / "report.html", render_run(read_runs(folders), presets=presets))


def render_run(run: RunFolder, live: bool = False, presets: Presets = ()) -> str:
    """Render the page of a run. `live`: a server sends the samples."""
    return render_page("page.html.j2", SCRIPTS, live=live, **sections(run, live, presets))


def sections(run: RunFolder, live: bool = False, presets: Presets = ()) -> dict[str, Any]:
    """Collect the values of the template."""
    notes = list(run.notes)
    samples = [] if live else sample_views(read_samples(run.paths, notes))
    comparisons = comparison_views(run)
    few_samples = thin(samples, SAMPLES)
    few_comparisons = [] if live else thin(comparisons, COMPARISONS)
    policies = policy_rows(run)
    return {
        "run": run,
        "title": " | ".join(run.together) or run.path.resolve().name,
        "facts": [] if run.together else _facts(run),
        "outcomes": _outcomes(run),
        "policies": policies,
        "differing": differing_settings(run.together),
        "changed": changed_settings(run, presets),
        "reward_model": _reward_model(run),
        "curves": _chart_group({visible(method.name): method.metrics for method in run.methods}, MAIN),
        "supervised": _supervised(run),
        "data": {"signals": SIGNALS, "samples": few_samples, "comparisons": few_comparisons, "live": live},
        "with_samples": bool(samples) or live,
        "samples_left_out": len(samples) - len(few_samples),
        "comparisons": len(comparisons),
        "comparisons_left_out": 0 if live else len(comparisons) - len(few_comparisons),
        "feedback": describe_feedback(measure(run.feedback)) if run.feedback else [],
        "evaluation": _evaluation_tables(run.evaluation),
        "warnings": [*notes, *warnings(run)],
    }


def comparison_views(run: RunFolder) -> list[Row]:
    """Return the answers to held-out prompts as plain data."""
    scores = [
        (name, v) for item in run.before_after for answer in item.answers for name, v in answer.scores.items()
    ]
    graded = {name for name, value in scores if value not in (0.0, 1.0, None)}
    views = []
    for item in run.before_after:
        view = item.model_dump(mode="json")
        for answer in view["answers"]:
            answer["scores"] = {  # a measure that is only ever 0 or 1 is passed or failed
                measure_title(name): value if value is None or name in graded else bool(value)
                for name, value in answer["scores"].items()
            }
        views.append(all_visible(view | {"title": prompt_title(item.prompt, item.id)}))
    return views


def _outcomes(run: RunFolder) -> list[str]:
    """Return the outcome of each run in a sentence."""
    sentences = {name: describe_outcome(part) for name, part in (run.together or {"": run}).items()}
    return [f"{name}: {text}" if name else text for name, text in sentences.items() if text]


def warnings(run: RunFolder) -> Iterator[str]:
    """Yield warnings about the reward model, the runs, and comparisons of policies."""
    for name, part in run.together.items():
        yield from (f"{visible(name)} {line}" for line in warnings(part))
    if not run.together:
        yield from quote_warnings(run.evaluation.get("reward_model", {}).get("unmatched"), "of the reward model")
        for method in run.methods:
            yield from (f"{visible(method.name)}: {line}" for line in metric_warnings(method.metrics))
        yield from (visible(line) for figures in run.evaluation.values() for line in figures.get("signs") or ())


# ---- results


@cache
def _explanations() -> dict[str, list[str]]:
    return json.loads(files("text2grad.page").joinpath("metrics.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def explain(name: str) -> Explanation:
    """Look up the explanation of a logged name; empty for an unknown name."""
    texts = _explanations()
    pattern = name if name in texts else next((pattern for pattern in texts if fnmatchcase(name, pattern)), "")
    return Explanation(*texts.get(pattern, ()))


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    """Return the base model of a run, and the time of its newest figures."""
    facts = [("base model", str(run.model.get("text") or _settings(run).get("policy.model", "")))]
    if times := [file.stat().st_mtime for file in run.path.rglob("metrics.jsonl")]:
        facts.append(("written", f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC"))
    return [(name, value) for name, value in facts if value]


def policy_rows(run: RunFolder) -> list[PolicyRow]:
    """List the policies that were trained or measured; those that others start from come first."""
    if run.together:
        policies = [(name, policy) for name, part in run.together.items() for policy in policy_rows(part)]
        return [policy._replace(name=f"{visible(name)} {policy.name}") for name, policy in policies]
    metrics = {"sft": run.sft, **{method.name: method.metrics for method in run.methods}}
    choices = {method.name: [describe_choice(method.choice)] for method in run.methods if method.choice}
    measured = [policy for policy, on, _ in (key.partition(" on ") for key in run.evaluation) if on]
    names = dict.fromkeys((*START_POLICIES, *metrics, *measured))
    return [
        PolicyRow(
            visible(name),
            len(rows),
            " ".join([*describe_training(rows), *choices.get(name, [])]),
            _main_figures(run.evaluation, name),
        )
        for name in names
        if (rows := metrics.get(name, [])) or name in measured
    ]


def _main_figures(evaluation: Mapping[str, Row], name: str) -> dict[str, str]:
    """Return the first greedy and the first sampled measure of a policy on each task."""
    tasks = {task for _, on, task in (key.partition(" on ") for key in evaluation) if on}
    cells: dict[str, str] = {}
    for key, figures in evaluation.items():
        policy, _, task = key.partition(" on ")
        for way in ("greedy", "sampled") if policy == name and task else ():
            if measure := next((key for key in figures if key.startswith(f"{way}_")), None):
                title = f"{measure_title(measure.removeprefix(f'{way}_'))}, {way}"
                cells[f"{task}: {title}" if len(tasks) > 1 else title] = figure(figures[measure])
    return cells


def _reward_model(run: RunFolder) -> list[str]:
    """Describe the reward model: its rates on held-out critiques and the verdict of its gate."""
    rates = describe_reward_model(run.evaluation.get("reward_model", {}))
    return [*rates, *(describe_gate(run.gate) if run.gate.get("figures") else [])]


def _evaluation_tables(evaluations: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return tables of evaluation/*.json: figures down, names with the same figures across."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, row in evaluations.items():
        groups.setdefault(tuple(key for key in row if key != "signs"), []).append(name)
    return [
        {
            "names": names,
            "rows": [(key, explain(key).what, [figure(evaluations[name][key]) for name in names]) for key in keys],
        }
        for keys, names in groups.items()
    ]


def differing_settings(runs: Mapping[str, RunFolder]) -> list[tuple[str, list[str]]]:
    """List the settings in which runs differ, with their values in every run."""
    configs = {name: _settings(run) for name, run in runs.items()}
    keys = dict.fromkeys(chain.from_iterable(configs.values()))
    rows = [(key, [config.get(key, "–") for config in configs.values()]) for key in keys if key not in BOOKKEEPING]
    derived = frozenset.intersection(*(run.derived for run in runs.values())) if runs else frozenset()
    return [(key, values) for key, values in rows if len(set(values)) > 1 and key not in derived]


def changed_settings(run: RunFolder, presets: Presets) -> list[tuple[str, str]]:
    """List the settings that differ from the nearest preset, without derived ones."""
    settings = {
        key: value for key, value in _settings(run).items() if key not in BOOKKEEPING and key not in run.derived
    }
    flat = [dict(_leaves(preset)) for preset in presets]
    changes = [[pair for pair in settings.items() if preset.get(pair[0]) != pair[1]] for preset in flat]
    return min(changes, key=len, default=[])


def _settings(run: RunFolder) -> dict[str, str]:
    """Return the settings of a run by `section.key`; empty if the file cannot be read."""
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


def _supervised(run: RunFolder) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the charts of both supervised stages: (title, command, charts)."""
    runs = {visible(name): part for name, part in (run.together or {"training": run}).items()}
    stages = (("Policy (SFT)", "sft", "sft"), ("Reward model", "train-reward", "reward_model"))
    return [
        (title, command, _chart_group({name: getattr(part, stage) for name, part in runs.items()}, SUPERVISED))
        for title, command, stage in stages
    ]


def _chart_group(runs: Curves, main: Sequence[str]) -> dict[str, Any]:
    """Return the charts of all metrics: the main ones, the others, and the constant ones."""
    rows = [row for metrics in runs.values() for row in metrics]
    names = curves.metric_names(rows)
    values = {name: {row[name] for row in rows if row.get(name) is not None} for name in names}
    flat = {name: min(values[name], default=0.0) for name in names if len(values[name]) < 2}
    first, others = arrange([name for name in names if name not in flat], main)
    ends = {name: max(row["step"] for row in metrics) for name, metrics in runs.items() if metrics}
    by_share = len(ends) > 1 and max(ends.values()) > UNEQUAL * min(ends.values())
    shown_ends = ends if by_share else None
    return {
        "by_share": by_share,
        "main": list(_charts(runs, first, shown_ends)),
        "rest": list(_charts(runs, sorted(others), shown_ends)),
        "flat": [(metric_title(name), flat[name], explain(name)) for name in sorted(flat)],
        "methods": [(name, curves.pick_style(name, list(runs))) for name in runs],
    }


def _charts(
    runs: Curves, metrics: Iterable[str], ends: Mapping[str, float] | None
) -> Iterator[tuple[curves.Chart, str, Explanation]]:
    """Yield a chart of each metric with its logged name and explanation."""
    names = [name for name, rows in runs.items() if rows]
    for metric in metrics:
        lines = [curves.Line(name, curves.metric_points(runs[name], metric)) for name in names]
        if chart := curves.chart(metric_title(metric), lines, names, ends):
            yield chart, metric, explain(metric)


def arrange(names: Iterable[str], main: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split metric names into the main ones, in the order of `main`, and the others."""
    every = list(names)
    first = [name for pattern in main for name in every if re.fullmatch(pattern, name)]
    return first, [name for name in every if name not in first]
