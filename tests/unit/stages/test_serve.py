"""`text2grad serve`, started as a user starts it, and the critic that it holds in `annotate`,
`train` and TRL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from serving import served
from text2grad.align.rewards import TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.cli import main
from text2grad.config import find_config, load_config
from text2grad.critics import served as client_side
from text2grad.critics.reference import ReferenceCritic
from text2grad.critics.served import ServedCritic
from text2grad.errors import CritiquesFailed, UsageError, UserError
from text2grad.feedback import Critique, Example, Feedback, Message, Source
from text2grad.jsonl import read_jsonl
from text2grad.stages.annotate import run_annotate
from text2grad.stages.critics import critic_inputs
from text2grad.stages.serve import run_serve

SLOW = """
import time
import text2grad as t2g

class Slow:
    source = t2g.Source(kind="program", model="slow")

    def critique(self, examples, responses):
        time.sleep(0.0 if responses[0] == "quick" else 1.5)
        return [t2g.Critique(text=response) for response in responses]
"""


def example(id: str = "a") -> Example:
    return Example(id=id, prompt=(Message(role="user", content="Why?"),), reference="Because of rain.")


@contextmanager
def started(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of `text2grad serve`, and the address that it printed."""
    (folder / "slow.py").write_text(SLOW, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "text2grad.cli", "serve", "--port", "0", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            address = process.stdout.readline().strip()
            assert address, process.stderr.read()
            yield process, address
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_when_what_was_asked_is_answered(
    tmp_path: Path, number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_side, "RETRY_DELAYS", ())
    words = ("--config", "demo", "--run.folder", str(tmp_path / "run"), "--critic.kind", "slow:Slow")
    with started(tmp_path, *words) as (process, address), ThreadPoolExecutor(2) as pool:
        client = ServedCritic(address)
        assert client.source.model == "slow" and client.critique([example()], ["quick"]) == [Critique(text="quick")]
        asked = [pool.submit(client.critique, [example()], [response]) for response in ("one", "two")]
        time.sleep(0.6)  # the critic is at work
        process.send_signal(number)
        assert [answer.result() for answer in asked] == [[Critique(text="one")], [Critique(text="two")]]
        assert process.wait(20) == code
        (late,) = client.critique([example()], ["late"])
        assert late.kind == "exhausted"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["--host", "0.0.0.0", "--critic.kind", "reference"], 2, "TEXT2GRAD_TOKEN"),
        (["--critic.kind", "http://127.0.0.1:9"], 2, "127.0.0.1:9"),
        (["--critic.kind", "http://127.0.0.1:9/path"], 2, "http://HOST:PORT"),
        (["--critic.kind", "reward_model"], 1, "train-reward"),
        (["nowhere"], 1, "nowhere"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    words: list[str], code: int, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "--port", "0", "--run.folder", str(tmp_path / "run"), *words])
    lines = capsys.readouterr().err.splitlines()
    assert left.value.code == code and named in lines[-1] and lines[-1].startswith("error:")


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    config = load_config(find_config("demo"), ["--critic.kind", "reference", "--run.folder", str(tmp_path / "run")])
    with closing(socket.create_server(("127.0.0.1", 0))) as taken, pytest.raises(UserError, match="--port"):
        run_serve(config, "127.0.0.1", taken.getsockname()[1])


def test_annotate_writes_what_a_critic_of_this_process_says(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    rows = [{"id": "a", "prompt": "Why?", "response": "Because of snow.", "reference": "Because of rain."}]
    rows += [{"id": "b", "prompt": "Why?", "response": "So."}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def records(kind: str) -> list[Feedback]:
        config = load_config(
            find_config("demo"), ["--annotate.critic", kind, "--run.folder", str(tmp_path / "run")]
        )
        run_annotate(config, file, tmp_path / "out.jsonl")
        return list(read_jsonl(tmp_path / "out.jsonl", Feedback))

    here = records("reference")
    with served(ReferenceCritic()) as address:
        assert records(address) == here and here[0].spans and here[1].error


def test_a_critic_that_is_not_there_ends_a_run_before_anything_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_side, "RETRY_DELAYS", (0.01,))
    config = load_config(
        find_config("demo"), ["--critic.kind", "http://127.0.0.1:9", "--run.folder", str(tmp_path / "run")]
    )
    with pytest.raises(UserError, match="text2grad serve FOLDER"):
        run_annotate(config.model_copy(update={"annotate": config.annotate.model_copy(update={"critic": None})}))
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        load_config(find_config("demo"), ["--critic.kind", "http://"])


def test_rollouts_earn_what_the_critic_itself_pays(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_side, "RETRY_DELAYS", (0.01,))
    texts = [f"Because of {word}." for word in ["rain", "snow", "wind", "hail"] * 5]
    batch = [Trajectory(example(str(n)), tokenizer(text)["input_ids"]) for n, text in enumerate(texts)]
    here = [outcome.rewards for outcome in TokenCredit(ReferenceCritic(), tokenizer).score_batch(batch)]
    with served(ReferenceCritic()) as address:
        credit = TokenCredit(ServedCritic(address), tokenizer)
        there = [outcome.rewards for outcome in credit.score_batch(batch)]
        late = [outcome.rewards for outcome in asyncio.run(credit.score(batch))]
    assert all(map(np.array_equal, there, here)) and all(map(np.array_equal, late, here))
    with pytest.raises(CritiquesFailed, match=f"no answer from {address}"):
        credit.score_batch(batch)


def test_inputs_of_a_run_include_the_source_of_a_served_critic(tmp_path: Path) -> None:
    config = load_config(
        find_config("demo"), ["--critic.kind", "http://127.0.0.1:9", "--run.folder", str(tmp_path / "run")]
    )
    other = ReferenceCritic()
    other.source = Source(kind="llm", model="another")
    inputs = [critic_inputs(config, critic) for critic in (ReferenceCritic(), other)]
    changed = {name for name in inputs[1] if inputs[0][name] != inputs[1][name]}
    assert changed == {"critic.source.kind", "critic.source.model", "critic.source.prompt_version"}
