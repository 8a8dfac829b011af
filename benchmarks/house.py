"""Measure the size and shape of the code: lines, functions, folders, settings, import cycles,
broken layers.

    python benchmarks/house.py [--root .]

The worst offenders come first. The last line of stdout is one JSON object:

- `src_lines`, `lab_lines`, `test_lines`: Python lines, blank ones and comments included, of
  src/text2grad, of lab without its tests, and of tests and lab/tests.
- `settings`: keys of a run's configuration. `lines_imported_by_train_ppo`: lines of our modules
  that `import text2grad.train.ppo` loads in a fresh process. Both are 0 in a tree without these
  modules.
- `largest_folder`: the most Python files directly in one folder of src. `longest_function`: lines
  from `def` to the end, in src/text2grad; nested functions and methods count as functions.
- `cycles` and `upward`: import cycles, and imports that break a rule of tests/layers.py.
- `suite_seconds`: duration of the last `make test`, null if there was none.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import layers

ROOT = Path(__file__).resolve().parents[1]
MOST_PARAMETERS = 8
MOST_SHOWN = 5
SUITE_SECONDS = ".pytest_cache/text2grad_suite_seconds"
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
    """A function: its place, its lines and its number of parameters."""

    place: str
    lines: int
    parameters: int


def functions(file: Path, source: Path) -> Iterator[Function]:
    """Yield every function of a file, nested ones and methods included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            place = f"{file.relative_to(source)}:{node.lineno} {node.name}"
            yield Function(place, lines, count_parameters(node.args))


def count_parameters(arguments: ast.arguments) -> int:
    variadic = [arguments.vararg, arguments.kwarg]
    named = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
    return len(named) + sum(argument is not None for argument in variadic)


def measure(root: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of a repository and a table of the worst offenders."""
    source, lab = root / "src", root / "lab"
    files = python_files(source / layers.PACKAGE)
    all_functions = [function for file in files for function in functions(file, source)]
    house = layers.read_house(source)
    rings, broken = layers.cycles(house), layers.violations(house)
    lab_tests = python_files(lab / "tests")
    figures = {
        "src_lines": count_lines(files),
        "lab_lines": count_lines(set(python_files(lab)) - set(lab_tests)),
        "test_lines": count_lines([*python_files(root / "tests"), *lab_tests]),
        "settings": count_in_process(COUNT_SETTINGS, source, "config/reference.py"),
        "largest_folder": max(folder_sizes(source).values(), default=0),
        "longest_function": max((function.lines for function in all_functions), default=0),
        "cycles": len(rings),
        "upward": len(broken),
        "lines_imported_by_train_ppo": count_in_process(COUNT_IMPORTED, source, "train/ppo.py"),
        "suite_seconds": suite_seconds(root),
    }
    cycles = [f"cycle      {' <-> '.join(ring)}" for ring in rings]
    return figures, [*table(all_functions, folder_sizes(source)), *cycles, *broken]


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def folder_sizes(source: Path) -> Counter[str]:
    """Count the Python files directly in each folder."""
    return Counter(str(file.parent.relative_to(source)) for file in python_files(source))


def count_lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def count_in_process(program: str, source: Path, needed: str) -> int:
    """Run a program that imports the packages of a folder and return the number that it prints."""
    if not (source / layers.PACKAGE / needed).is_file():
        return 0
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout)


def suite_seconds(root: Path) -> float | None:
    """Return the seconds that tests/conftest.py noted at the end of the last `make test`."""
    record = root / SUITE_SECONDS
    return float(record.read_text(encoding="utf-8")) if record.is_file() else None


def table(all_functions: list[Function], folders: Counter[str]) -> list[str]:
    """List the longest functions, those with too many parameters, and the largest folders."""
    longest = sorted(all_functions, key=lambda function: -function.lines)[:MOST_SHOWN]
    widest = [function for function in all_functions if function.parameters > MOST_PARAMETERS]
    rows = [f"{function.lines:4} lines       {function.place}" for function in longest]
    rows += [f"{function.parameters:4} parameters  {function.place}" for function in widest]
    rows += [f"{count:4} files       {folder}" for folder, count in folders.most_common(MOST_SHOWN)]
    median = statistics.median(function.lines for function in all_functions) if all_functions else 0
    return [*rows, f"{median:4.0f} lines       median of {len(all_functions)} functions"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    figures, worst = measure(parser.parse_args().root)
    print("\n".join(worst))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
