"""Shared options, settings and recorded results of the experiments."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from text2grad.config import Config, find_config, load_config, preset_names

Row = dict[str, Any]


def experiment_parser(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all experiments; results go to `runs/<name>`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all commands")
    parser.add_argument("--out", type=Path, default=Path("runs") / name)
    return parser


BASELINES = "text2grad_lab:baselines"
"""The recipe with the rates of the baselines for each task."""


def load_preset(task: str, settings: Mapping[str, object], overrides: Sequence[str] = ()) -> Config:
    """Return a task's preset with the rates of the baselines, settings, and overrides."""
    preset = find_config(task if task in preset_names() else f"text2grad_lab:{task}")
    words = [f"--{key}={value}" for key, value in settings.items()] + [f"--{setting}" for setting in overrides]
    return load_config([preset, find_config(BASELINES)], words)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a JSON Lines file; empty without a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def row_once(results: Path, key: Row, make: Callable[[], Row]) -> Row:
    """Return the row of a results file with this key, made and appended if missing."""
    for row in read_rows(results):
        if key.items() <= row.items():
            return row
    row = key | make()
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row) + "\n")
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


DOWNSTREAM = frozenset({"ppo", "offline", "credit", "critic", "extra", "evaluate"})
"""Sections that do not affect the SFT policy and the reward model, which learns from
`annotate.critic`."""


def recipe_of(config: Config, without: frozenset[str] = frozenset()) -> str:
    """Return a digest of all settings except some sections, the run folder and the threads."""
    fields = config.model_dump_json(exclude={"run": {"folder", "threads"}, **dict.fromkeys(without, True)})
    return hashlib.sha256(f"{version('text2grad')} {fields}".encode()).hexdigest()[:16]


def refuse_other_recipe(config: Config) -> None:
    """Record the recipe of the models in a run folder.

    Raises:
        SystemExit: they were made with another recipe.
    """
    recipe_file, recipe = config.run.folder / "recipe.txt", recipe_of(config, DOWNSTREAM)
    recorded = recipe_file.read_text(encoding="utf-8") if recipe_file.is_file() else recipe
    if recorded != recipe:
        raise SystemExit(f"the models in {recipe_file.parent} were made with other settings: choose another --out")
    recipe_file.parent.mkdir(parents=True, exist_ok=True)
    recipe_file.write_text(recipe, encoding="utf-8")
