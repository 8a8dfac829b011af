"""Plant a repository and check that each figure of benchmarks/house.py changes with what it
counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

TIDY = {
    "src/text2grad/__init__.py": "",
    "src/text2grad/errors.py": "def one():\n    return 1\n\n\ndef two(x):\n    y = x\n    return y\n",
    "src/text2grad/rl/__init__.py": "",
    "src/codeverdict/__init__.py": "x = 1\n" * 200,
    "lab/text2grad_lab/book.py": "x = 1\n",
    "lab/tests/test_book.py": "x = 1\n" * 2,
    "tests/test_errors.py": "x = 1\n" * 3,
}
KEYS = "src_lines lab_lines test_lines settings largest_folder longest_function cycles upward"
FIGURES = dict(zip(KEYS.split(), (7, 1, 5, 0, 2, 3, 0, 0), strict=True))
FIGURES |= {"lines_imported_by_train_ppo": 0, "suite_seconds": None}
RING = {"src/text2grad/rl/__init__.py": "from text2grad.rl.ring import x\n", "src/text2grad/rl/ring.py": ""}
RING["src/text2grad/rl/ring.py"] = "import text2grad.rl\n"
SETTINGS = "def describe_settings():\n    return iter('abc')\n"


LOOP = "import os\nfrom text2grad import errors\n"
LONG = "class A:\n    async def f():\n" + "        x = 1\n" * 90
CHANGES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {}),
    ({"src/text2grad/errors.py": "\n# only lines\n\n"}, {"src_lines": 3, "longest_function": 0}),
    ({"src/text2grad/config/reference.py": SETTINGS}, {"src_lines": 9, "settings": 3}),
    ({"src/text2grad/train/ppo.py": LOOP}, {"src_lines": 9, "lines_imported_by_train_ppo": 9}),
    ({"src/text2grad/feedback.py": LONG}, {"src_lines": 99, "longest_function": 91, "largest_folder": 3}),
    (RING, {"src_lines": 9, "cycles": 1}),
    ({"src/text2grad/errors.py": "import text2grad.rl\n"}, {"src_lines": 1, "longest_function": 0, "upward": 1}),
    ({".pytest_cache/text2grad_suite_seconds": "12.5"}, {"suite_seconds": 12.5}),
]


@pytest.mark.parametrize(("files", "changed"), CHANGES)
def test_every_figure_changes_with_what_it_counts(
    tmp_path: Path, files: dict[str, str], changed: dict[str, Any]
) -> None:
    for name, text in {**TIDY, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(ROOT / "benchmarks" / "house.py"), "--root", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed.splitlines()[-1]) == {**FIGURES, **changed}
