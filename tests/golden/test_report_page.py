"""The page of a tiny, hostile run, without its script and style; `make golden` rewrites it."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from text2grad.page.report import build_report

PAGE = Path(__file__).with_name("report.html")
LOST = {"lost": ["return <y>"], "unmatched": 2, "ambiguous": 1}
CODE = "def f(x):\n\treturn x <b>\u202e\n"


def test_the_page_of_a_tiny_run(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "tiny")
    for file in run.rglob("*.json*"):
        os.utime(file, (0, 0))
    now = without_assets(build_report(run).read_text(encoding="utf-8"))
    if os.environ.get("WRITE_GOLDEN"):
        PAGE.write_text(now, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == now, "make golden, and read the diff"


def without_assets(page: str) -> str:
    page = re.sub(r"sha256-[A-Za-z0-9+/=]+", "sha256-…", page)
    return re.sub(r"(<(style|script)>).*?(</\2>)", r"\1…\3", page, flags=re.DOTALL)


def tiny_run(folder: Path) -> Path:
    """Two steps, one sample, one comparison, two feedback records."""
    prompt = [{"role": "user", "content": "Write <f>."}]
    span = {"start": 20, "end": 23, "label": -1, "text": "<b>", "reason": "no & such name"}
    judged = {"prompt": prompt, "response": CODE, "spans": [span], "score": -1.0}
    judged["critique"] = "It is <b>wrong</b>."
    source = {"kind": "program", "model": "tests"}
    failed = {"error": {"kind": "refused", "message": "<i>no</i>"}, "source": source}
    answers = [
        {"name": "SFT", "response": CODE, "scores": {"pass": 0.0}},
        {"name": "text2grad", "response": "def f(x):\n\treturn x\n", "scores": {"pass": 1.0, "tokens": 7.5}},
    ]
    for name, value in (("sft", 0.2), ("text2grad", 0.5)):
        figures = {"greedy_pass": 0.25, "sampled_pass": value, "tier": "<none>"}
        _write(folder / "evaluation" / "tiny" / f"{name}.json", [figures])
    _write(folder / "sft/metrics.jsonl", [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}])
    _write(folder / "ppo/text2grad/metrics.jsonl", [{"step": 0, "kl": 0.0, "lr": 0.1}, {"step": 1, "kl": 0.5}])
    _write(folder / "ppo/text2grad/samples.jsonl", [{"step": 1, "id": "s</script>", **judged, **LOST, **_strip()}])
    pair = {"id": "h-1", "prompt": prompt, "reference": CODE, "answers": answers}
    _write(folder / "before_after.jsonl", [pair])
    record = {"id": "a", **judged, "source": source, "meta": LOST}
    _write(folder / "feedback.jsonl", [record, {"id": "b", "prompt": prompt, "response": "", **failed}])
    return folder


def _strip() -> dict[str, Any]:
    numbers = {
        "delta": [0.0, 0.0, -1.0, 0.0, -1.0],
        "kl": [0.0, 0.1, 0.2, 0.0, 0.1],
        "reward": [0.0, -0.01, -1.02, 0.0, -1.01],
        "value": [0.1] * 5,
        "advantage": [-0.5, -0.5, 0.25, -0.125, -1.0],
        "logp": [-0.1] * 5,
    }
    cuts = [0, 10, 20, 23, len(CODE), len(CODE)]
    tokens = [CODE[a:b] or "</s>" for a, b in pairwise(cuts)]
    return {"tokens": tokens, "starts": cuts[:-1], "ends": cuts[1:], **numbers}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
