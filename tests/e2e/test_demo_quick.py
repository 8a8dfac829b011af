"""`text2grad demo --quick`: the policy trained on a critic's words keeps more of its rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_quick_demo_trains_a_better_policy_and_writes_a_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "text2grad.cli", "demo", "--quick", "--json", "--run.folder", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert process.returncode == 0, process.stderr
    figures = json.loads(process.stdout.splitlines()[-1])
    assert set(figures) == {"sft", "scalar_ppo", "text2grad", "seconds", "peak_rss_mb"}
    assert figures["text2grad"]["sampled"] > max(0.9, figures["sft"]["sampled"] + 0.2)
    assert "names no day" in process.stderr and (tmp_path / "report.html").is_file()
