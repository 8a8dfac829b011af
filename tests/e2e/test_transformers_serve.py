"""A real server: `transformers serve` with a model too small to judge. What it writes is kept, and typed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command
from transformers.utils.import_utils import is_serve_available

pytestmark = pytest.mark.skipif(not is_serve_available(), reason="transformers serve needs fastapi and uvicorn")


@pytest.fixture
def server(model_folder: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a server that has loaded the tiny model."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = f"transformers serve {model_folder} --host 127.0.0.1 --port {port} --device cpu".split()
    program = f"import sys; sys.argv = {words!r}; from transformers.cli.transformers import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=log, stderr=log, env=environment)
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, tmp_path / "server.log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"no server after two minutes: {log.read_text()}")


def test_a_real_server(server: str, model_folder: Path, command: Command, tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "prompt": "Why?", "response": f"Because of {n}."} for n in range(3)]
    file, out = tmp_path / "r.jsonl", tmp_path / "feedback.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    short = tmp_path / "short.txt"
    short.write_text("Judge: {{response}}")
    words = ["annotate", "--responses", file, "--out", out, "--critic.kind", "prompted"]
    words += ["--critic.prompted.base_url", server, "--critic.prompted.model", model_folder]
    words += ["--critic.prompted.prompt", short, "--critic.prompted.max_tokens", "12"]
    words += ["--critic.prompted.concurrency", "2"]
    words += ["--no-canaries", "--json"]  # a model of random weights judges nothing right
    ended = command(*words)
    summary = json.loads(ended.out.splitlines()[-1])
    counts = [summary[name] for name in ("requested", "ok", "refused", "invalid", "exhausted")]
    assert (ended.code, counts) == (3, [3, 0, 0, 3, 0]), ended.err
    lines = [json.loads(line) for line in out.with_name("feedback.jsonl.journal").read_text().splitlines()]
    answers = [line for line in lines if line["is"] == "answer"]
    assert len(answers) == 6 and all(line["usage"]["completion_tokens"] > 0 for line in answers)
    assert set(summary["left_out"]) <= {"json_schema", "json_object"} and summary["usd"] is None
    again = command(*words)
    assert again.code == 3 and json.loads(again.out.splitlines()[-1])["sent"] == 0
