"""The size and shape of src: lines, lengths of functions, long signatures, import cycles, broken layers.

A function's length is its lines from `def` to its end, both counted; functions inside functions and methods are
functions of their own. Every parameter counts, `self`, `*args` and `**kwargs` too. Layers and cycles are what
tests/layers.py says they are. Lines include blank ones and comments. Functions and signatures are those outside the
sandbox package, which has lines of its own in the figures.

    python benchmarks/house.py [--source src]

The worst offenders stand in a table above the last line of stdout, which is one JSON object. Wanted: median at
most 8, largest at most 80, over_8_parameters at most 6, cycles 0, upward 0.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import layers

MOST_PARAMETERS = 8
SHOWN = 5


@dataclass(frozen=True)
class Function:
    """One function: where it stands, its lines and its parameters."""

    where: str
    lines: int
    parameters: int


def functions(file: Path, source: Path) -> Iterator[Function]:
    """Every function of a file, nested ones and methods included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(f"{file.relative_to(source)}:{node.lineno} {node.name}", lines, parameters(node.args))


def parameters(given: ast.arguments) -> int:
    several = [given.vararg, given.kwarg]
    return len(given.posonlyargs + given.args + given.kwonlyargs) + sum(each is not None for each in several)


def measure(source: Path) -> tuple[dict[str, Any], list[str]]:
    """The figures, and a table of the worst offenders, of the packages below a folder."""
    files = sorted(source.rglob("*.py"))
    of_sandbox = {file for file in files if file.relative_to(source).parts[0] == layers.SANDBOX}
    found = [each for file in files if file not in of_sandbox for each in functions(file, source)]
    house = layers.read_house(source)
    rings, broken = layers.cycles(house), layers.violations(house)
    lengths = sorted(each.lines for each in found)
    figures = {
        "src_lines": count_lines(set(files) - of_sandbox),
        "sandbox_lines": count_lines(of_sandbox),
        "median": statistics.median(lengths),
        "p90": lengths[int(0.9 * len(lengths))],
        "largest": lengths[-1],
        "over_8_parameters": sum(each.parameters > MOST_PARAMETERS for each in found),
        "cycles": len(rings),
        "upward": len(broken),
    }
    return figures, [*table(found), *(f"cycle      {' <-> '.join(ring)}" for ring in rings), *broken]


def count_lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def table(found: list[Function]) -> list[str]:
    """The longest functions, and those with too many parameters."""
    longest = sorted(found, key=lambda each: -each.lines)[:SHOWN]
    widest = sorted(
        (each for each in found if each.parameters > MOST_PARAMETERS), key=lambda each: -each.parameters
    )
    rows = [f"{each.lines:4} lines  {each.where}" for each in longest]
    return rows + [f"{each.parameters:4} parameters  {each.where}" for each in widest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=layers.SOURCE, help="the folder that holds the packages")
    figures, worst = measure(parser.parse_args().source)
    print("\n".join(worst))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
