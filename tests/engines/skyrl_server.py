"""SkyRL's own Tinker server on a CPU, and one step over the protocol for each datum that the
plug-in pays.

    .venv-plugins/skyrl/bin/python tests/engines/skyrl_server.py

prints the share of paid tokens whose log-probability its step moves with their sign
(`benchmarks/plugins.py`). The model has random weights, JAX computes. The server starts its engine
with `uv run`; a stand-in for uv starts it with this Python. Server and engine are one process
group, which is ended at the end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tinker
import torch
from tinker_data import real_datum
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.align.rewards import TokenCredit
from text2grad.plugins.landing import GROUP, LandingCritic, landing_cases
from text2grad.plugins.tinker import with_credit

LIMIT = 240
"""Seconds that the server may take to start, and each of its answers to come; JAX compiles in some
of them."""
LOSSES = ("importance_sampling", "ppo")
UV = """#!{python}
import os, subprocess, sys, time
parent, child = os.getppid(), subprocess.Popen([sys.executable, *sys.argv[sys.argv.index("-m"):]])
while child.poll() is None:
    time.sleep(0.2)
    if os.getppid() != parent:
        os.killpg(0, 9)
sys.exit(child.returncode)
"""
"""Who started the server may be killed, too; then it ends its process group."""


class Step(NamedTuple):
    """One datum's step, a number for each target: its advantage, its loss, its log-probability
    before and after."""

    advantages: Any
    losses: Any
    before: Any
    after: Any

    def moved(self, shift: int = 0) -> list[bool]:
        """Of each paid target, whether its log-probability went where it was paid to go; or its
        neighbour was."""
        gains = (self.after - self.before) * np.roll(self.advantages, shift)
        return list(gains[self.advantages != 0] > 0)


def make_model(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """A small Llama with random weights; its output layer is wider than the vocabulary."""
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer) + 8, tie_word_embeddings=False, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[tinker.ServiceClient]:
    """The server of a model, and a client of it; what the server said last is a note of what fails
    meanwhile."""
    uv = folder / "uv"
    uv.write_text(UV.format(python=sys.executable), "utf-8")
    uv.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {"database-url": f"sqlite:///{folder / 'tinker.db'}", "checkpoints-base": str(folder / "checkpoints")}
    options = {"base-model": str(model), "backend": "jax", "host": "127.0.0.1", "port": str(port), **kept}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}
    log = folder / "server.log"
    with log.open("wb") as out:
        command = [str(uv), "run", "--", "python", "-m", "skyrl.tinker.api", *words]
        server = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        wait_for(server, f"http://127.0.0.1:{port}/api/v1/healthz")
        client = tinker.ServiceClient(base_url=f"http://127.0.0.1:{port}", api_key="tml-none")
        yield client
        with suppress(tinker.NotFoundError):  # the server does not know how this client says goodbye
            client.close("success").result(LIMIT)
    except BaseException as error:
        error.add_note("the server's last lines:\n" + "\n".join(log.read_text("utf-8").splitlines()[-30:]))
        raise
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for(server: subprocess.Popen[bytes], address: str) -> None:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(
        f"no server at {address}: " + (f"it ended with {server.poll()}" if server.poll() else "late")
    )


def steps(client: tinker.ServiceClient, model: Path, tokenizer: PreTrainedTokenizerFast) -> list[Step]:
    """Of the datums of `landing_cases` that were judged, each from the same weights, with both
    losses in turn."""
    from test_tinker import datum_of, places

    cases = landing_cases(tokenizer)
    examples = [cases[at].trajectory.example for at in (0, GROUP)]
    credit = TokenCredit(LandingCritic(), tokenizer)
    made = [datum_of(case, real_datum) for case in cases]
    data, _ = with_credit(
        made, places(cases), credit, examples, words_weight=2.0
    )  # some are blamed in what is praised
    return [step(client, model, each, loss) for each, loss in zip(data, cycle(LOSSES))]


def step(client: tinker.ServiceClient, model: Path, datum: Any, loss: str) -> Step:
    policy = client.create_lora_training_client(str(model), seed=0).result(LIMIT)

    def sent(fields: dict[str, Any], backward: bool) -> dict[str, Any]:
        each = replace(datum, loss_fn_inputs=fields)
        send = policy.forward_backward if backward else policy.forward
        (found,) = send([each], loss).result(LIMIT).loss_fn_outputs
        return {name: np.asarray(value.tolist()) for name, value in found.items()}

    fields = {name: value for name, value in datum.loss_fn_inputs.items() if name != "mask"}
    before = sent(fields, backward=False)["logprobs"]
    sampled = tinker.TensorData.from_torch(torch.tensor(before, dtype=torch.float32))
    losses = sent({**fields, "logprobs": sampled}, backward=True)["elementwise_loss"]
    policy.optim_step(tinker.AdamParams(learning_rate=1e-3)).result(LIMIT)
    after = sent(fields, backward=False)["logprobs"]
    return Step(np.asarray(fields["advantages"].tolist()), losses, before, after)


def main() -> None:
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "plugins")]
    from made_tokenizers import byte_level_tokenizer

    tokenizer = byte_level_tokenizer()
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model"
        make_model(model, tokenizer)
        with serving(model, Path(place)) as client:
            moved = [each for found in steps(client, model, tokenizer) for each in found.moved()]
    print(round(sum(moved) / len(moved), 4))


if __name__ == "__main__":
    main()
