"""A few cells of benchmarks/faults.py; `make faults` plays all of them."""

from __future__ import annotations

import json
import subprocess
import sys

from places import ROOT


def test_a_few_faults_lose_nothing() -> None:
    words = ["benchmarks/faults.py", "--only", "import,annotate", "--sample", "5", "--seed", "1"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["cells"] > 30 and result["violations"] == 0, done.stderr
    assert result["played"] >= 3, "without a small disk, full disks are not played"
