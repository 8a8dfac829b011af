"""The size and shape of src: lines, functions, comments, folders, settings, import cycles, broken layers.

A function's length is its lines from `def` to its end, both counted; functions inside functions and methods are
functions of their own. Every parameter counts, `self`, `*args` and `**kwargs` too. Layers and cycles are what
tests/layers.py says they are. Lines include blank ones and comments. Functions, signatures and prose are those
outside the sandbox package, which has lines of its own in the figures.

`files_in_largest_folder` counts the Python files directly in a folder. `comments_per_100` counts comments in 100
lines, not those that instruct a tool (`type:`, `noqa`, `fmt:`, `pragma:`). `longest_prose_line` is the longest
line, in characters, of a docstring or a comment. `settings` are the keys of a run's configuration, and
`lines_imported_by_train_ppo` the lines of all our modules that `import text2grad.train.ppo` loads in a fresh
process; both are 0 in a tree without these modules.

    python benchmarks/house.py [--source src]

The worst offenders stand in a table above the last line of stdout, which is one JSON object. Wanted: median at
most 8, largest at most 80, over_8_parameters at most 6, cycles 0, upward 0, files_in_largest_folder at most 14,
settings at most 220, lines_imported_by_train_ppo at most 8,000, longest_prose_line at most 100.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import layers

MOST_PARAMETERS = 8
SHOWN = 5
INSTRUCTIONS = ("type:", "noqa", "fmt:", "pragma:")
COUNT_SETTINGS = """
from text2grad.config.reference import describe_settings
print(sum(1 for _ in describe_settings()))
"""
COUNT_IMPORTED = """
import sys
import text2grad.train.ppo
ours = [m for name, m in sys.modules.items() if name.partition(".")[0] in ("text2grad", "codeverdict")]
files = [m.__file__ for m in ours if getattr(m, "__file__", None)]
print(sum(len(open(file, encoding="utf-8").read().splitlines()) for file in files))
"""


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
    ours = [file.read_text(encoding="utf-8") for file in files if file not in of_sandbox]
    comments = [comment for text in ours for comment in comments_of(text)]
    prose = [line.strip() for text in ours for line in docstring_lines(text)]
    figures = {
        "src_lines": count_lines(set(files) - of_sandbox),
        "sandbox_lines": count_lines(of_sandbox),
        "median": statistics.median(lengths),
        "p90": lengths[int(0.9 * len(lengths))],
        "largest": lengths[-1],
        "over_8_parameters": sum(each.parameters > MOST_PARAMETERS for each in found),
        "files_in_largest_folder": max(Counter(file.parent for file in files).values()),
        "comments_per_100": round(100 * len(comments) / count_lines(set(files) - of_sandbox), 2),
        "longest_prose_line": max(map(len, [*comments, *prose]), default=0),
        "settings": count_in_process(COUNT_SETTINGS, source, "config/reference.py"),
        "lines_imported_by_train_ppo": count_in_process(COUNT_IMPORTED, source, "train/ppo.py"),
        "cycles": len(rings),
        "upward": len(broken),
    }
    return figures, [*table(found), *(f"cycle      {' <-> '.join(ring)}" for ring in rings), *broken]


def comments_of(text: str) -> Iterator[str]:
    """The comments of a file's text, without those that instruct a tool."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.lstrip("# ").startswith(INSTRUCTIONS):
            yield token.string


def docstring_lines(text: str) -> Iterator[str]:
    """The lines of all strings that stand alone as a statement: docstrings, and what is said of a constant."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from node.value.value.splitlines()


def count_in_process(program: str, source: Path, needed: str) -> int:
    """The number that a program prints which imports the packages of a folder; 0 without the module it needs."""
    if not (source / layers.PACKAGE / needed).is_file():
        return 0
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout)


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
