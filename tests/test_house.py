"""benchmarks/house.py on a planted package: each of its figures moves with what it counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

TIDY = {
    "text2grad/__init__.py": "",
    "text2grad/errors.py": "def one():\n    return 1\n\n\ndef two(x):\n    y = x\n    return y\n",
    "text2grad/rl/__init__.py": "",
    "text2grad/rl/loss.py": "class A:\n    def f(self, a, b, c, d, e, f, g):\n        return self\n",
    "codeverdict/__init__.py": "def of_the_sandbox(a, b, c, d, e, f, g, h, i):\n" + "    x = 1\n" * 200,
}
LONG = "def long():\n" + "    x = 1\n" * 90
FIGURES = {
    "src_lines": 10,
    "sandbox_lines": 201,
    "median": 2,
    "p90": 3,
    "largest": 3,
    "over_8_parameters": 0,
    "files_in_largest_folder": 2,
    "comments_per_100": 0.0,
    "longest_prose_line": 0,
    "settings": 0,
    "lines_imported_by_train_ppo": 0,
    "cycles": 0,
    "upward": 0,
}


def house_of(folder: Path, files: dict[str, str]) -> tuple[dict[str, Any], str]:
    """The figures of a tree with these files, and the table above them."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, str(ROOT / "benchmarks" / "house.py"), "--source", str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\n")
    table, _, last = said.rpartition("\n")
    return json.loads(last), table


def test_the_figures_of_a_tidy_house(tmp_path: Path) -> None:
    assert house_of(tmp_path, TIDY)[0] == FIGURES


@pytest.mark.parametrize(
    ("file", "text", "changed", "shown"),
    [
        (
            "text2grad/errors.py",
            "\n# only lines\n\n",
            {
                "src_lines": 6,
                "median": 2,
                "p90": 2,
                "largest": 2,
                "comments_per_100": 16.67,
                "longest_prose_line": 12,
            },
            "",
        ),
        ("text2grad/errors.py", TIDY["text2grad/errors.py"] + "x = 1  # type: ignore\n", {"src_lines": 11}, ""),
        (
            "text2grad/errors.py",
            TIDY["text2grad/errors.py"] + '"""Short."""\nx = 1\n"""What it is\n    for."""\n',
            {"src_lines": 14, "longest_prose_line": 10},
            "",
        ),
        ("text2grad/rl/advantage.py", "", {"files_in_largest_folder": 3}, ""),
        (
            "text2grad/config/reference.py",
            "def describe_settings():\n    return iter('abc')\n",
            {"src_lines": 12, "median": 2, "p90": 3, "settings": 3},
            "",
        ),
        (
            "text2grad/train/ppo.py",
            "import os\nfrom text2grad import errors\n",
            {"src_lines": 12, "lines_imported_by_train_ppo": 9},
            "",
        ),
        ("codeverdict/results.py", "\n\n", {"sandbox_lines": 203}, ""),
        (
            "text2grad/feedback.py",
            LONG,
            {"src_lines": 101, "median": 2.5, "p90": 91, "largest": 91, "files_in_largest_folder": 3},
            "91 lines",
        ),
        (
            "text2grad/feedback.py",
            "def outer():\n    def inner():\n        def innermost():\n            return 1\n",
            {"src_lines": 14, "median": 2.5, "p90": 4, "largest": 4, "files_in_largest_folder": 3},
            "feedback.py:1 outer",
        ),
        (
            "text2grad/rl/loss.py",
            "class A:\n    async def f(self, a, /, b, c, d, *e, f, g, **h):\n        return self\n",
            {"over_8_parameters": 1},
            "9 parameters  text2grad/rl/loss.py:2 f",
        ),
        (
            "text2grad/rl/__init__.py",
            "def f():\n    from text2grad.rl import loss\n    from text2grad.rl.ring import x\n",
            {"src_lines": 14, "cycles": 1, "median": 2.5, "files_in_largest_folder": 3},
            "text2grad.rl <-> text2grad.rl.ring",
        ),
        (
            "text2grad/errors.py",
            TIDY["text2grad/errors.py"] + "import text2grad.rl.loss\n",
            {"src_lines": 11, "upward": 1},
            "imports go from the top down only",
        ),
        (
            "codeverdict/runner.py",
            "from text2grad.errors import one\n",
            {"sandbox_lines": 202, "upward": 1},
            "codeverdict knows nothing of text2grad",
        ),
    ],
)
def test_every_figure_can_go_wrong(
    tmp_path: Path, file: str, text: str, changed: dict[str, Any], shown: str
) -> None:
    ring = {"text2grad/rl/ring.py": "import text2grad.rl\n"} if "ring" in text else {}
    figures, table = house_of(tmp_path, {**TIDY, file: text, **ring})
    assert figures == {**FIGURES, **changed}
    assert shown in table
