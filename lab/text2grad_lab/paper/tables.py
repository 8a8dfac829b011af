"""The paper's tables next to our figures, read from the run folders.

tables.yaml has the tables. Each seed has a folder in which the list was run: the current one, or a
`seed-N` in it. A cell is the mean over the seeds that have its file.
"""

from __future__ import annotations

import ast
import csv
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.config import find_config, load_config
from text2grad.page.runs import read_metrics
from text2grad.strict_yaml import parse_yaml
from text2grad_lab.compare.times import seconds_of

TABLES = Path(__file__).with_suffix(".yaml")
MISSING = "–"
PRESET = "preset "
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
Spec = Mapping[str, Any]
Values = tuple[Any, ...]
"""The figures of a cell: one, or those that are printed with colons."""


@dataclass
class Cell:
    """A published figure, and ours with its seeds, model and date.

    If ours is missing, `steps` and `note` say how to get it.
    """

    paper: Any
    ours: Values | None = None
    seeds: int = 0
    model: str = ""
    date: str = ""
    steps: Sequence[str] = ()
    note: str = ""
    format: str = ".3f"

    @property
    def text(self) -> str:
        """Return the paper's figure and ours, as printed."""
        paper = () if self.paper is None else (self.paper,)
        return " | ".join(":".join(map(self._text, values)) or MISSING for values in (paper, self.ours or ()))

    def _text(self, value: Any) -> str:
        return value if isinstance(value, str) else format(value, self.format)


@dataclass
class Table:
    """A table: rows of cells by name, each cell by the name of its column."""

    number: int
    title: str
    columns: list[str]
    rows: list[tuple[str, dict[str, Cell]]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {
            "table": self.number,
            "title": self.title,
            "columns": self.columns,
            "rows": [{"name": name, **_row_data(cells)} for name, cells in self.rows],
        }


def _row_data(cells: Mapping[str, Cell]) -> dict[str, Any]:
    model, day, _ = row_facts(cells)
    return {
        "paper": {name: cell.paper for name, cell in cells.items()},
        "ours": {
            name: cell.ours[0] if cell.ours and len(cell.ours) == 1 else cell.ours for name, cell in cells.items()
        },
        "seeds": {name: cell.seeds for name, cell in cells.items()},
        "model": model,
        "date": day,
        "missing": {
            name: {"steps": list(cell.steps), "note": cell.note}
            for name, cell in cells.items()
            if cell.steps or cell.note
        },
    }


def row_facts(cells: Mapping[str, Cell]) -> tuple[str, str, str]:
    """Return the model, the latest date and the number of seeds of a row; "" if not measured."""
    measured = [cell for cell in cells.values() if cell.seeds]
    models = ", ".join(sorted({cell.model for cell in measured if cell.model}))
    counts = sorted({cell.seeds for cell in measured})
    seeds = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else ""
    return models, max((cell.date for cell in measured), default=""), seeds


@cache
def read_tables() -> dict[int, Spec]:
    """Return the tables of tables.yaml by number."""
    tables: dict[int, Spec] = parse_yaml(TABLES.read_text(encoding="utf-8"))
    return tables


def steps_of(number: int) -> list[str]:
    """Return the names of the steps that fill a table, in the order of its cells."""
    table = read_tables()[number]
    cells = [cell_fields(table, row, column) for row in table["rows"] for column in table["columns"].values()]
    return list(dict.fromkeys(step for cell in cells for step in str(cell.get("step", "")).split()))


def fill_table(number: int, folder: Path) -> Table:
    """Return a table with the figures of the runs in a folder and in its `seed-N` folders."""
    spec = read_tables()[number]
    seeds = [folder, *sorted(folder.glob("seed-*"))]
    table = Table(number, spec["title"], list(spec["columns"]))
    for row in spec["rows"]:
        cells = {}
        for (name, column), paper in zip(spec["columns"].items(), row["paper"], strict=True):
            if "of" in row:
                cells[name] = combine(row["of"], paper, [above[name] for _, above in table.rows])
            elif "of" in column:
                cells[name] = combine(column["of"], paper, [cells[other] for other in column["columns"]])
            else:
                cells[name] = fill_cell(cell_fields(spec, row, column), paper, seeds)
        table.rows.append((row["name"], cells))
    return table


def cell_fields(table: Spec, row: Spec, column: Spec) -> dict[str, Any]:
    """Return the fields of a cell with the names in braces replaced.

    `file` is absent if it names a field that the cell does not have.
    """
    if "of" in row or "of" in column:
        return {}
    below = {**table, **row}
    fields = below | {
        name: text.replace(f"{{{name}}}", str(below.get(name, ""))) if isinstance(text, str) else text
        for name, text in column.items()
    }
    resolved: dict[str, Any] = {}
    for name in ("file", "key", "step", "note", "run", "format"):
        try:
            resolved[name] = str(fields[name]).format_map(fields).format_map(fields)
        except KeyError:
            continue
    return resolved


def combine(how: str, paper: Any, cells: Sequence[Cell]) -> Cell:
    """Return the mean, sum or ratio of cells; missing if one of them is, or not published."""
    result = Cell(paper, format=cells[0].format)
    values = [cell.ours[0] for cell in cells if cell.ours is not None]
    if len(values) == len(cells) and paper is not None:
        total = values[0] / values[1] if how == "ratio" else sum(values)
        result.ours = (total / len(values) if how == "mean" else total,)
        result.seeds = min(cell.seeds for cell in cells)
        result.model, result.date = cells[0].model, max(cell.date for cell in cells)
    return result


def fill_cell(fields: Mapping[str, str], paper: Any, seeds: Sequence[Path]) -> Cell:
    """Return a cell with the mean of its figures over the seeds that have them."""
    cell = Cell(paper, format=fields.get("format", ".3f"))
    figures = [
        (values, file, seed)
        for seed in seeds
        for file in files_of(fields, seed)
        if (values := evaluate(fields["key"], read_data(file))) is not None
    ]
    if figures:
        cell.ours = tuple(map(mean_value, zip(*(values for values, _, _ in figures), strict=True)))
        dates = [date.fromtimestamp(Path(file).stat().st_mtime) for _, file, _ in figures if Path(file).is_file()]
        cell.seeds, cell.date = len(dates), str(max(dates)) if dates else ""
        cell.model = model_of(figures[0][2] / "runs" / fields.get("run", ""))
    else:
        cell.steps = fields.get("step", "").split()
        cell.note = fields.get("note", "" if cell.steps else "published only")
    return cell


def files_of(fields: Mapping[str, str], seed: Path) -> Iterator[str]:
    """Yield at most one file of a cell: in a seed's folder, or the preset that it names."""
    pattern = fields.get("file", "")
    if "key" not in fields or not pattern:
        return
    if pattern.startswith(PRESET):
        yield pattern
    else:
        yield from map(str, sorted(seed.glob(pattern))[:1])


def mean_value(values: Sequence[Any]) -> Any:
    """Return the mean of numbers; the first of anything else."""
    return fmean(values) if isinstance(values[0], int | float) else values[0]


def read_data(file: str) -> Any:
    """Return what a file holds: JSON, a preset's settings, mean metrics, or AlpacaEval's models."""
    path = Path(file)
    if file.startswith(PRESET):
        return load_config([find_config(file.removeprefix(PRESET))]).model_dump(mode="json")
    if path.suffix == ".jsonl":
        return {"seconds": fmean(map(seconds_of, read_metrics(path)))}
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as lines:
            return {"models": {row[""]: row for row in csv.DictReader(lines)}}
    return json.loads(path.read_text(encoding="utf-8"))


def evaluate(key: str, data: Any) -> Values | None:
    """Evaluate a key such as `100 * judge.win, good.exact` on data; None if a name is missing."""
    body = ast.parse(key, mode="eval").body
    parts = body.elts if isinstance(body, ast.Tuple) else [body]
    try:
        values = tuple(_value(part, data) for part in parts)
    except (KeyError, IndexError, TypeError, ZeroDivisionError):
        return None
    if isinstance(values[0], list):
        values = tuple(values[0])
    return None if None in values else values


def _value(node: ast.expr, data: Any) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return data[name]
        case ast.Attribute(parent, name):
            return _value(parent, data)[name]
        case ast.Subscript(parent, place):
            return _number(_value(parent, data)[_value(place, data)])
        case ast.BinOp(left, operation, right):
            result: float = OPERATORS[type(operation)](_value(left, data), _value(right, data))
            return result
    raise ValueError(f"not arithmetic: {ast.unparse(node)}")


def _number(value: Any) -> Any:
    """Return the number in the text of a CSV file; other values unchanged."""
    return float(value) if isinstance(value, str) else value


def model_of(run: Path) -> str:
    """Return the base model of a run by its settings; "" without settings."""
    file = run / "config.yaml"
    if not file.is_file():
        return ""
    name = str(parse_yaml(file.read_text(encoding="utf-8"))["policy"]["model"])
    adapter = run.parent.parent / name / "adapter_config.json"
    if adapter.is_file():
        name = str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    return Path(name).name


def show_tables(tables: Sequence[Table]) -> None:
    """Print tables: in each cell the paper's figure and ours, then what fills the missing cells."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    width = None if Console().is_terminal else 200
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    for table in tables:
        drawn = RichTable(title=f"Table {table.number}: {table.title} (paper | ours)", box=box.SIMPLE)
        for name in ("", *table.columns, "seeds", "model", "date"):
            drawn.add_column(name, no_wrap=name not in table.columns)
        for name, cells in table.rows:
            model, day, seeds = row_facts(cells)
            drawn.add_row(name, *(cell.text for cell in cells.values()), seeds, model, day)
        console.print(drawn)
        for line in missing_lines(table):
            console.print(line, soft_wrap=True)


def missing_lines(table: Table) -> Iterator[str]:
    """Yield what fills the missing cells of each row; one line for rows that need the same."""
    rows: dict[str, list[str]] = {}
    for name, cells in table.rows:
        steps = dict.fromkeys(step for cell in cells.values() for step in cell.steps)
        notes = dict.fromkeys(cell.note for cell in cells.values() if cell.note)
        parts = [*([f"--only {' '.join(steps)}"] if steps else []), *notes]
        if parts:
            rows.setdefault("; ".join(parts), []).append(name)
    yield from (f"{MISSING} {', '.join(names)}: {missing}" for missing, names in rows.items())
