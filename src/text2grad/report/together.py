"""Several runs on one page: every policy has the name of its run before its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.report.folder import (
    BeforeAfter,
    Row,
    RunFolder,
    method_folders,
    read_run,
    seed_folders,
)


def run_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Runs by the names of their folders, with those of the folders above where two are equal; each run once."""
    found = list(dict.fromkeys(path.resolve() for path in paths))
    short = [path.name for path in found]
    return {path.name if short.count(path.name) == 1 else f"{path.parent.name}/{path.name}": path for path in found}


def sample_folders(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """The folders with samples, of each seed if there are several, by the names that the page shows."""
    names = run_names(paths)
    for title, path in names.items():
        for run in (path, *seed_folders(path)):
            for folder in method_folders(run):
                seed = "" if run == path else run.name
                yield " ".join(filter(None, (title if len(names) > 1 else "", seed, folder.resolve().name))), folder


def read_together(paths: Sequence[Path], with_samples: bool = True) -> RunFolder:
    """One run as `read_run` reads it; several as one whose policies are those of all.

    Raises:
        UserError: as `read_run`, of any of them.
    """
    names = run_names(paths)
    if len(names) == 1:
        return read_run(paths[0], with_samples)
    runs = {name: read_run(path, with_samples) for name, path in names.items()}
    summaries = {name: run.summary for name, run in runs.items() if run.summary.get("rows")}
    metrics = {summary.get("metric") for summary in summaries.values()}
    rows = [_named(name, row) for name, each in summaries.items() for row in each["rows"]]
    return RunFolder(
        path=next(iter(runs.values())).path,
        summary={"title": " | ".join(runs), "metric": metrics.pop(), "rows": rows} if len(metrics) == 1 else {},
        model={},
        config="",
        sft=[],
        reward_model=[],
        methods=[
            method._replace(name=f"{name} {method.name}")
            for name, run in runs.items()
            for part in run.seeds or [run]
            for method in part.methods
        ],
        feedback=[],
        before_after=_side_by_side({name: run.before_after for name, run in runs.items()}),
        evaluation={f"{name} {key}": row for name, run in runs.items() for key, row in run.evaluation.items()},
        gate={},
        seeds=[],
        notes=[f"{name}: {note}" for name, run in runs.items() for note in run.notes],
        together=runs,
    )


def _named(run: str, row: Any) -> Row:
    return {**row, "name": f"{run} {row.get('name', '')}"} if isinstance(row, Mapping) else {}


def _side_by_side(comparisons: Mapping[str, Sequence[BeforeAfter]]) -> list[BeforeAfter]:
    """The answers of all runs to each prompt that several of them, or any, have answered."""
    groups: dict[tuple[str, str, str], BeforeAfter] = {}
    for name, items in comparisons.items():
        for item in items:
            key = (item.task, item.id, "\0".join(message.content for message in item.prompt))
            own = tuple(answer.model_copy(update={"name": f"{name} {answer.name}"}) for answer in item.answers)
            known = groups.get(key)
            groups[key] = item.model_copy(update={"answers": (*(known.answers if known else ()), *own)})
    return list(groups.values())
