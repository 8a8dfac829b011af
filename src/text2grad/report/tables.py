"""Tables for the page and the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from statistics import stdev
from typing import Any, NamedTuple, TypeGuard

REWARD_MODEL_COLUMNS = ("precision", "recall")
RATES = {
    "unmatched": "quotes that are not in the response",
    "ambiguous": "quotes that occur more than once and do not say which",
    "unreadable": "answers that cannot be read",
    "forced": "answers closed by the token limit",
    "wrong_sign_rate": "marked tokens whose true label is the opposite",
}


class Explanation(NamedTuple):
    """What a logged name means, and what to look out for, as docs/metrics.md says it."""

    what: str = ""
    watch: str = ""


@cache
def _explanations() -> dict[str, list[str]]:
    return json.loads(files("text2grad.report").joinpath("metrics.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def explained(name: str) -> Explanation:
    """The explanation of a logged name; empty if there is none."""
    known = _explanations()
    pattern = name if name in known else next((each for each in known if fnmatchcase(name, each)), "")
    return Explanation(*known.get(pattern, ()))


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
    """The results: `cells[i][j]` of policy i and column j."""

    metric: str
    columns: list[str]
    names: list[str]
    cells: list[list[Cell]]

    @property
    def has_spread(self) -> bool:
        """Whether any figure is a mean over seeds."""
        return any(cell.spread is not None for row in self.cells for cell in row)


def results(summary: Mapping[str, Any]) -> Results:
    """The rows of summary.json; `seeds` of a row has each seed's columns."""
    rows = [row for row in summary.get("rows") or [] if isinstance(row, Mapping)]
    columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if is_number(value)))
    names = [str(row.get("name", "")) for row in rows]
    return Results(str(summary.get("metric", "")), columns, names, [[_cell(r, c) for c in columns] for r in rows])


def _cell(row: Mapping[str, Any], column: str) -> Cell:
    values = [each.get(column) for each in (row, *(row.get("seeds") or [])) if isinstance(each, Mapping)]
    mean, *seeds = (float(value) if is_number(value) else None for value in values)
    known = tuple(value for value in seeds if value is not None)
    return Cell(mean, stdev(known) if len(known) > 1 else None, known)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite int or float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def reward_model_grid(figures: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Token precision and recall of good and poor, if measured."""
    grid = [
        (f"{label} tokens", [_share(figures.get(f"{label}_{column}")) for column in REWARD_MODEL_COLUMNS])
        for label in ("good", "poor")
    ]
    return grid if any(cell != "–" for _, row in grid for cell in row) else []


def reward_model_rates(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Failure rates of the reward model: (name, value, meaning)."""
    return [(name, _share(figures[name]), what) for name, what in RATES.items() if is_number(figures.get(name))]


def _share(value: Any) -> str:
    return f"{value:.3f}" if is_number(value) else "–"
