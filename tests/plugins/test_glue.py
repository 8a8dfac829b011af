"""What a plug-in costs in lines, and what the benchmark counts as one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from absent import hiding
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import plugins


@pytest.mark.parametrize(
    ("name", "most"), [("trl", 60), ("tinker", 20), ("verifiers", 20), ("verl", 45), ("skyrl", 20)]
)
def test_a_plug_in_is_a_small_file(name: str, most: int) -> None:
    assert 10 < plugins.code_lines(plugins.PLUGINS / f"{name}.py") <= most


@pytest.mark.parametrize("name", plugins.ENGINES)
def test_without_torch_one_line_names_the_extra(name: str) -> None:
    code = hiding(["torch"]) + f"import text2grad.plugins.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingPackageError: this needs torch: pip install 'text2grad[train]'" in done.stderr.splitlines()[-1]


def test_lines_of_code_are_counted(tmp_path: Path) -> None:
    text = '"""Doc,\nof two lines."""\n\nimport os  # why\n\n# a comment\nx = """a string,\nno doc"""\n\n\n'
    text += 'def f(\n    a,\n):\n    """Doc."""\n    return a\n\n\ny: int = 0\n"""What y is."""\n'
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    assert plugins.code_lines(tmp_path / "a.py") == 1 + 2 + 4 + 1


def test_a_step_moves_what_was_paid_as_it_was_paid() -> None:
    assert plugins.tokens_moved_as_paid() == 1.0


def test_an_environment_that_is_not_there_has_no_engine(tmp_path: Path) -> None:
    assert plugins.installed("no-such-engine", tmp_path) is None
