"""Read the cells of questions.yaml, and print or run them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from text2grad.errors import UsageError, UserError
from text2grad.strict_yaml import parse_yaml

LIST = Path(__file__).with_name("questions.yaml")
MODEL, SEEDS = "SmolLM2", range(3)
"""A measured cell has figures of this model for as many seeds."""


@dataclass(frozen=True)
class Cell:
    """One measurement of a question.

    Attributes:
        commands: its commands in order; one with `{seed}` stands for a command of each seed.
        figure: what the lab book records, "" if nothing.
        model: the model of the figure.
        seeds: the number of seeds of the figure.
        entry: page and heading of the figure in the lab book.
        reason: why there is no figure, if it is not that the command was not run.
        after: the cell that must be run before.
        needs: what the commands need besides the package.
        cpu_hours: estimated cost of all seeds on one core.
    """

    question: str
    name: str
    commands: tuple[str, ...]
    cpu_hours: float
    figure: str = ""
    model: str = ""
    seeds: int = 0
    entry: str = ""
    reason: str = ""
    after: str = ""
    needs: str = ""

    @property
    def measured(self) -> bool:
        return bool(self.figure) and self.model == MODEL and self.seeds >= len(SEEDS)

    @property
    def why_empty(self) -> str:
        """Why the cell is not measured, with its cost."""
        reason = self.reason or "not run"
        if self.figure:
            seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
            reason = f"only {self.model}, {seeds}: {self.figure} ({self.entry})"
        return f"{reason}; about {self.cpu_hours:.1f} CPU hours"

    def command_lines(self) -> Iterator[str]:
        """Yield the commands to run, those of all seeds if there are any."""
        if "{seed}" not in " ".join(self.commands):
            yield from self.commands
            return
        for seed, command in product(SEEDS, self.commands):
            yield command.replace("{seed}", str(seed))


@cache
def read_list() -> Any:
    """Return the content of questions.yaml."""
    return parse_yaml(LIST.read_text(encoding="utf-8"))


def cells() -> list[Cell]:
    """Return all cells in the order of the file."""
    return [
        cell_of(name, question.get("needs", ""), row, values)
        for name, question in read_list()["questions"].items()
        for row in question["cells"]
        for values in row.get("over", [{}])
    ]


def cell_of(question: str, needs: str, row: Mapping[str, Any], values: Mapping[str, Any]) -> Cell:
    """Return the cell of a row of the file, with the values of one repetition."""
    texts = {**read_list()["words"], **values}
    rates = read_list()["rates"]
    seconds = sum(rates[part]["seconds"] * rates[part]["times"] * count for part, count in row["cost"].items())
    return Cell(
        question=question,
        name=fill(row["name"], texts),
        commands=tuple(fill(command, texts) for command in row["commands"]),
        cpu_hours=len(SEEDS) * seconds / 3600,
        seeds=values.get("seeds", row.get("seeds", 0)),
        needs=needs,
        **{key: fill(row.get(key, ""), texts) for key in ("figure", "model", "entry", "reason", "after")},
    )


def fill(text: str, texts: Mapping[str, Any]) -> str:
    """Replace the names in braces by their texts, which may have names too; `{seed}` stays."""
    filled = re.sub(r"\{(\w+)\}", lambda match: str(texts.get(match[1], match[0])), text)
    return filled if filled == text else fill(filled, texts)


def status() -> dict[str, Any]:
    """Return the number of cells and of measured ones, and the reasons for the empty ones."""
    all_cells = cells()
    empty = [[cell.question, cell.name, cell.why_empty] for cell in all_cells if not cell.measured]
    return {"cells": len(all_cells), "measured": len(all_cells) - len(empty), "empty": empty}


def show_status(status: Mapping[str, Any]) -> None:
    """Print the status as one line of JSON."""
    print(json.dumps(status))


def show_table(_: Mapping[str, Any]) -> None:
    """Print the cells of each question as a table."""
    for name, question in read_list()["questions"].items():
        print(f"\n{name}: {question['asks']}\n\n| cell | figure | entry, or why it is empty |\n| --- | --- | --- |")
        for cell in cells():
            if cell.question == name:
                figure, note = (cell.figure, cell.entry) if cell.measured else ("–", cell.why_empty)
                print(f"| {cell.name} | {figure} | {note} |")


def select(words: Sequence[str]) -> list[Cell]:
    """Return the cells of a question, or the named ones of them.

    Raises:
        UsageError: there is no such question or cell.
    """
    question, *names = words
    chosen = [cell for cell in cells() if cell.question == question]
    if not chosen:
        raise UsageError(f"no question {question!r}", f"--run takes {', '.join(read_list()['questions'])}")
    if unknown := set(names) - {cell.name for cell in chosen}:
        raise UsageError(f"no cell {min(unknown)!r}", f"{question} has: {'; '.join(cell.name for cell in chosen)}")
    return [cell for cell in chosen if not names or cell.name in names]


def run_cells(selected: Sequence[Cell]) -> dict[str, Any]:
    """Run the commands of cells one after the other; each resumes what it finished before.

    Raises:
        UserError: a command failed.
    """
    for cell in selected:
        print(f"{cell.question}, {cell.name}{f' (needs {cell.needs})' if cell.needs else ''}", file=sys.stderr)
        for line in cell.command_lines():
            print(f"$ {line}", file=sys.stderr, flush=True)
            words = [sys.executable if word == "python" else word for word in shlex.split(line)]
            if code := subprocess.run(words, check=False).returncode:
                raise UserError(f"exit code {code} of: {line}", "see above; the same command resumes here")
    return {"ran": len(selected)}
