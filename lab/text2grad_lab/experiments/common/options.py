"""The command line, the settings and the notes of finished work that experiments share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.config import Config, find_config, load_config, preset_names

Row = dict[str, Any]


def experiment_parser(
    doc: str | None, name: str, *, workers: int | None = None, counted: int | None = None, settings: bool = True
) -> argparse.ArgumentParser:
    """A parser with the options of most experiments; what is kept goes to `runs/<name>`.

    With `counted` that many seeds are run from --first-seed on, else --seeds lists them. `workers`: commands
    side by side, one thread each.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if counted is None:
        parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    else:
        parser.add_argument("--seeds", type=int, default=counted, help="how many")
        parser.add_argument("--first-seed", type=int, default=0, help="--seeds 1 --first-seed 7: a fresh one")
    if workers is not None:
        parser.add_argument("--workers", type=int, default=workers, help="commands side by side, one thread each")
    if settings:
        parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all commands")
    parser.add_argument("--out", type=Path, default=Path("runs") / name)
    return parser


def add_tuning(parser: argparse.ArgumentParser, seeds: Sequence[int], rates: Sequence[float]) -> None:
    """Add the options of a choice of learning rates on seeds that are not reported."""
    parser.add_argument("--tune-seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument("--lrs", type=float, nargs="+", default=list(rates), help="of several each takes the best")


BASELINES = "text2grad_lab:baselines"
"""The recipe with the rates of the baselines for each task."""


def configured(
    presets: Sequence[str], settings: Mapping[str, object], given: Iterable[str] = (), words: Sequence[str] = ()
) -> Config:
    """The preset of a task and the rates of the baselines, then recipes, settings, --set and command-line words."""
    task, *recipes = presets
    common = [f"--{key}={value}" for key, value in settings.items()] + [f"--{setting}" for setting in given]
    return load_config([find_config(name) for name in (preset_name(task), BASELINES, *recipes)], [*common, *words])


def preset_name(task: str) -> str:
    """Return what `--config` calls the preset of a task: one of the lab's where the product has none."""
    return task if ":" in task or task in preset_names() else f"text2grad_lab:{task}"


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of JSON Lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def row_once(results: Path, key: Row, make: Callable[[], Row]) -> Row:
    """The row of a results file with this key; made and appended where there is none."""
    for row in read_rows(results):
        if key.items() <= row.items():
            return row
    row = key | make()
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row) + "\n")
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row
