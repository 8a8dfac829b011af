"""README.md and docs/feedback.md as a reader follows them: each command, each block of Python.

Nothing is made shorter. The same path with a real model is in tests/llm.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Command, Ended
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

from blocks import FEEDBACK, README, commands_in, fenced, in_code, section
from chat_server import ChatServer, Reply, said

PAGE = README.read_text("utf-8")
FEEDBACK_PAGE = FEEDBACK.read_text("utf-8")
OWN_DATA = section(FEEDBACK_PAGE, "Your own data")
[TABLE] = fenced(OWN_DATA, "csv")
RUN = Path("runs/mine")
RIGHT_QUOTES: dict[str, tuple[list[str], list[str]]] = {
    "The": ([], ["Sydney"]),
    "7": ([], ["54"]),
    "A": (["twelve months", "seven days"], []),
}
"""What is good and poor in the responses that try a judge first (critics/canaries.jsonl), by their
first word."""


def typed(start: str) -> list[str]:
    """Return the words after `text2grad` of the one command in backticks that starts so."""
    [found] = in_code(FEEDBACK_PAGE, rf"text2grad {start}\s.*")
    return shlex.split(found)[1:]


def done(ended: Ended) -> Ended:
    assert ended.code == 0, ended.err
    return ended


def test_your_own_data(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("feedback.csv").write_text(TABLE, "utf-8")
    follow_the_block(command)
    assert "4 records, 5 spans" in done(command(*typed("feedback-report"))).err
    done(command(*typed("report")))
    assert "text2grad" in (RUN / "report.html").read_text("utf-8")
    answers = done(command(*typed('sample "When'))).out
    assert all(policy in answers for policy in ("base", "sft", "offline"))
    sample_to_mark(command)
    ask_a_chat_model(command, monkeypatch)


def follow_the_block(command: Command) -> None:
    """The commands of the first road, those that its last one says come next, and those of the
    second."""
    [block] = fenced(OWN_DATA, "bash")
    activate, *path, train_reward, train = commands_in(block)
    assert activate == ["source", ".venv/bin/activate"], "made by make; the tests run in their own environment"
    assert [words[:3] for words in path] == [
        ["text2grad", "import", "feedback.csv"],
        ["text2grad", "sft", "--config"],
        ["text2grad", "train", "--offline"],
    ]
    ended = [done(command(*words[1:])) for words in path]
    rows = list(csv.DictReader(io.StringIO(TABLE)))
    quotes = sum(bool(row[name]) for row in rows for name in ("good", "poor"))
    assert f"records: {len(rows)}\nspans: {quotes}\nunmatched: 0\n" in ended[0].err
    assert (RUN / "ppo" / "offline" / "policy").is_dir()
    [comes_next] = re.findall(r"^next: (.*)$", ended[-1].err, flags=re.MULTILINE)
    measure, ask = (shlex.split(each)[1:] for each in comes_next.split(", or "))
    assert "no held-out prompts" in command(*measure).err, "of these four rows none is held out"
    done(command(*ask))
    told = done(command(*train_reward[1:])).err
    assert "Not fit to train against" in told and "start with text2grad train --offline" in told
    refused = command(*train[1:])
    assert refused.code == 1 and f"train --offline {RUN / 'feedback.jsonl'}" in refused.err


def sample_to_mark(command: Command) -> None:
    """Answers with columns to fill in, as they come and with one marked."""
    rows = list(csv.DictReader(io.StringIO(TABLE)))
    Path("questions.jsonl").write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in rows))
    ended = done(command(*typed("sample --prompts")))
    assert "16 answers in answers.csv" in ended.err
    with Path("answers.csv").open(newline="", encoding="utf-8-sig") as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == 16 and set(csv.DictReader(io.StringIO(TABLE)).fieldnames or ()) <= set(answers[0])


def ask_a_chat_model(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command for feedback from an LLM: its price without a key, then a local server in the
    place of one."""
    options = ["--config", "human_qa", "--run.folder", str(RUN)]
    words = [each for word in typed("annotate") for each in (options if word == "..." else [word])]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "requests: 4" in done(command(*words, "--plan")).err
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    server = ChatServer(judge)
    try:
        ended = done(command(*words, "--critic.prompted.base_url", server.url))
    finally:
        server.close()
    assert "ok: 4" in ended.err and server.keys == {"Bearer sk-test"}
    kept = (RUN / "feedback.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["source"]["kind"] for line in kept] == ["human"] * 4 + ["llm"] * 4


def judge(name: str, turn: int, body: object) -> Reply:
    good, poor = RIGHT_QUOTES.get(name, ([], []))
    return said(
        json.dumps({"critique": "So.", "good_spans": good, "poor_spans": poor, "omissions": [], "score": -1})
    )


def test_from_python(tokenizer: PreTrainedTokenizerFast) -> None:
    below = section(PAGE, "From Python")
    text, quote = re.findall(r'For "(.*)" this gives −1 for each token of "(.*)", −1 on the last token', below)[0]
    encoded = tokenizer(text, return_offsets_mapping=True)
    space: dict[str, object] = {"tokenizer": tokenizer, "ids": encoded["input_ids"], "response": text}
    [block] = fenced(below, "python")
    exec(compile(block, "README.md", "exec"), space)
    start, end = text.index(quote), text.index(quote) + len(quote)
    expected = [-1.0 if left < end and right > start else 0.0 for left, right in encoded["offset_mapping"]]
    assert 2 <= expected.count(-1.0) < len(expected) - 1 and expected[-1] == 0.0
    assert np.array_equal(space["rewards"], [*expected[:-1], -1.0])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_in_your_trainer(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    [block] = fenced(section(PAGE, "In your trainer"), "python")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"per_device_train_batch_size": 2, "num_generations": 2, "max_steps": 1, "max_completion_length": 4}
    quiet = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no"}
    args = GRPOConfig(output_dir=str(tmp_path), **sizes, **quiet)
    space: dict[str, Any] = {
        "tokenizer": tokenizer,
        "model": LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape)),
        "args": args,
        "dataset": Dataset.from_list([{"prompt": "When is it due?"}] * 2),
    }
    exec(compile(block, "README.md", "exec"), space)
    space["trainer"].train()
    assert space["trainer"].state.global_step == 1
