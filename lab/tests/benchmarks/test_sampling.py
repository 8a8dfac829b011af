"""The GPU benchmark script, run on a CPU: failed measurements do not lose the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from places import ROOT


def figures(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("way", ["loop", "batched", "static_graphs"])
def test_sampling_uses_the_current_policy_before_and_after_an_update(way: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "sampling.py"), "sample", "--way", way, "--model", "tiny"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    figure = json.loads(process.stdout.splitlines()[-1])
    assert figure["way"] == way and figure["tokens_per_second"] > 0
    assert max(figure["difference"], figure["difference_after_update"]) < 1e-3


def test_every_measurement_is_a_line_even_if_it_fails(tmp_path: Path) -> None:
    python, out = tmp_path / "python", tmp_path / "figures.jsonl"
    python.write_text('#!/bin/sh\n[ "$2" = trl ] && exit 1\necho words\necho "{\\"way\\": \\"$4\\"}"\n', "utf-8")
    python.chmod(0o755)
    variables = {**os.environ, "PYTHON": str(python), "OUT": str(out), "LOG": str(tmp_path / "log")}
    subprocess.run(["bash", str(ROOT / "benchmarks" / "gpu.sh")], env=variables, check=True)
    lines = figures(out)
    assert [line["way"] for line in lines if line.get("failed")] == ["loop", "batched"]
    assert [line["way"] for line in lines if not line.get("failed")] == [
        *("loop", "batched", "batched_graphs"),
        *("loop", "batched", "batched_graphs", "static_graphs", "static_graphs"),
    ]


def test_no_measurement_starts_after_the_deadline(tmp_path: Path) -> None:
    out = tmp_path / "figures.jsonl"
    variables = {**os.environ, "PYTHON": "no-such-python", "OUT": str(out), "TOTAL": "0"}
    subprocess.run(["bash", str(ROOT / "benchmarks" / "gpu.sh"), "--tiny"], env=variables, check=True)
    assert [line["failed"] for line in figures(out)] == [True] * 6
