"""The command `compare` end to end: all methods, one table, and no repeated work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import TOY

METHODS = ("sft", "rejection", "text2grad")


def compared(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    options = ("--seeds", "1", "--at-once", "2", "--json", "--run.folder", str(folder), *TOY, *words)
    command = [sys.executable, "-m", "text2grad_lab", "compare", "--methods", *METHODS, *options]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)


@pytest.mark.nightly
def test_methods_are_compared_and_finished_work_is_not_repeated(tmp_path: Path) -> None:
    plan = json.loads(compared(tmp_path, "--plan").stdout.splitlines()[-1])
    assert plan["rollouts"] == 2 * 8 and not (tmp_path / "seed-0").exists()
    done = compared(tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures["methods"]) == list(METHODS) and isinstance(figures["collapsed"], list)
    for name, row in figures["methods"].items():
        low, high = row["interval"]
        assert low <= row["metric"] <= high and len(row["seeds"]) == 1
        assert ("difference" in row) == (name != "text2grad") and row["peak_mb"] > 50
    assert figures["methods"]["text2grad"]["rollouts"] == 2 * 8 and figures["methods"]["rejection"]["rollouts"] == 0
    table = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert "| rejection sampling |" in table
    again = compared(tmp_path)
    assert json.loads(again.stdout.splitlines()[-1]) == figures and "sft (" not in again.stderr
    (tmp_path / "seed-0" / "done" / "evaluate_sft.json").unlink()
    third = compared(tmp_path)
    assert third.returncode == 0 and "evaluate sft (" in third.stderr and "train" not in third.stderr
