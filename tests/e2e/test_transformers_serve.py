"""A real server: `transformers serve` with tiny models, one too small to judge and one that was
taught z."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import Command
from transformers import GenerationConfig
from transformers.utils.import_utils import is_serve_available

from text2grad.config import RewardModelSettings
from text2grad.durable.run import RunOptions
from text2grad.feedback import Feedback, LabelledPlace, Message, Source, spans_at
from text2grad.jsonl import read_jsonl
from text2grad.policy.load import load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.reward_model.data import reward_pair
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import train_supervised

pytestmark = pytest.mark.skipif(not is_serve_available(), reason="transformers serve needs fastapi and uvicorn")


@contextmanager
def serving(model_folder: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a server that has loaded a model."""
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


@pytest.fixture
def server(model_folder: Path, tmp_path: Path) -> Iterator[str]:
    with serving(model_folder, tmp_path) as url:
        yield url


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


QUESTION = "the cat sat on the mat?"
POOR = {"the cat sat on the mat": "mat", "the dog sat on it": "dog sat", "mat on mat": "on"}
"""Responses, and the words of them that are poor."""


def teach(model_folder: Path, place: Path) -> None:
    """Write a reward model that has learned the critiques of `POOR` by heart.

    Its base model has habits that published ones have: it samples, avoids repetition, and ends at
    another token.
    """
    records = [
        Feedback(
            id="1",
            prompt=(Message(role="user", content=QUESTION),),
            response=response,
            critique="So.",
            spans=spans_at([LabelledPlace(response.index(poor), response.index(poor) + len(poor), -1)], response),
            score=-0.5,
            source=Source(kind="llm"),
        )
        for response, poor in POOR.items()
    ]
    pairs = [pair for record in records if (pair := reward_pair(record, RewardModelSettings()))]
    settings = SupervisedSettings(epochs=150, batch_size=3, micro_batch_size=3, lr=1e-2)
    policy = load_policy(PolicySettings(model=str(model_folder)))
    policy.model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.7, top_p=0.8, repetition_penalty=1.5, eos_token_id=1
    )
    train_supervised(policy, pairs, settings, RunOptions(place, "reward model", 1))


def test_a_served_reward_model_says_what_it_says_in_this_process(
    model_folder: Path, command: Command, tmp_path: Path
) -> None:
    teach(model_folder, tmp_path / "run" / "reward_model")
    merged = tmp_path / "critic"
    assert command("merge", "reward_model", "--run.folder", tmp_path / "run", "--out", merged).code == 0
    file = tmp_path / "r.jsonl"
    asked = [(QUESTION, response) for response in POOR]
    asked += [(QUESTION, "on the dog mat sat cat"), ("the mat on it " * 60 + "?", "mat on mat")]
    rows = [{"id": str(n), "prompt": question, "response": text} for n, (question, text) in enumerate(asked)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def records(out: Path, *words: str) -> list[Feedback]:
        ended = command(
            *("annotate", "--responses", file, "--out", out, "--critic.kind", "reward_model"),
            *("--reward_model.grounded", "off", "--reward_model.max_new_tokens", "200"),
            *("--run.folder", tmp_path / "run", *words),
        )
        assert ended.code in (0, 3), ended.err
        return list(read_jsonl(out, Feedback))

    local = records(tmp_path / "local.jsonl")
    with serving(merged, tmp_path) as url:
        words = ("--critic.reward_model.folder", merged, "--critic.reward_model.base_url", url)
        served = records(tmp_path / "served.jsonl", *words)
    assert [[span.text for span in record.spans] for record in local[:3]] == [[poor] for poor in POOR.values()]
    sources = {record.source.model for record in served}
    assert sources == {str(merged)}
    assert [record.model_copy(update={"source": local[0].source}) for record in served] == local
