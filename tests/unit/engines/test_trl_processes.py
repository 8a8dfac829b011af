"""Two processes train what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="pip install 'text2grad[trl]'")

import two_processes
from both_engines import lines
from safetensors.torch import load_file

from tiny_runs import tiny_model

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
HERE = Path(__file__).parent
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def launched(*words: str) -> subprocess.CompletedProcess[str]:
    paths = [str(HERE), *filter(None, map(str, sys.path))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*LAUNCH, *words], capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["weights", "adapters"])
def test_two_processes_train_what_one_does(kind: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    alone = two_processes.run(model, tmp_path / "one", kind)
    ended = launched(str(HERE / "two_processes.py"), str(model), str(tmp_path / "two"), kind)
    assert ended.returncode == 0, ended.stderr
    weights = load_file(next((tmp_path / "two" / "policy").glob("*model.safetensors")))
    assert weights.keys() == alone.weights.keys()
    assert max(float((weights[name] - alone.weights[name]).abs().max()) for name in weights) < 1e-5
    for mine, others in zip(alone.metrics, lines(tmp_path / "two" / "metrics.jsonl"), strict=True):
        same = [name for name in mine if not name.startswith("seconds")]
        assert [mine[name] for name in same] == pytest.approx([others[name] for name in same], abs=1e-4)
    strips = lines(tmp_path / "two" / "samples.jsonl")
    assert [strip["ids"] for strip in strips] == [strip["ids"] for strip in alone.strips]
    ratios = [pytest.approx(strip["ratio"], abs=1e-4) for strip in alone.strips if "ratio" in strip]
    assert [strip["ratio"] for strip in strips if "ratio" in strip] == ratios
