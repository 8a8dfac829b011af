"""`policy.model: x.gguf` in every stage: where a run says what its weights are, and adapters stay
adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import TOY, Command
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from gguf_files import write_gguf

SAID = "tiny.gguf, Q4_1-dequantised"


def test_every_stage_takes_a_gguf_file(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_llama: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, run = tmp_path / "tiny.gguf", tmp_path / "run"
    write_gguf(file, tiny_llama, tokenizer, "Q4_1")
    adapters = ("--policy.lora.r", "2", "--policy.lora.dropout", "0", "--reward_model.shared", "true")
    short = ("--sft.epochs", "1", "--ppo.steps", "1", "--reward_model.training.epochs", "1")
    settings = ("--run.folder", run, "--policy.model", file, *TOY, *adapters, *short)
    stages = (["annotate"], ["train-reward"], ["train"], ["evaluate", file], ["evaluate"], ["sft"])
    offline = ["train", "--offline", run / "feedback.jsonl"]
    for words in (
        *stages,
        ["evaluate", "sft"],
        offline,
        ["report", run],
        ["merge", "sft", "--out", tmp_path / "merged"],
    ):
        ended = command(*words, *(() if words[0] == "report" else settings))
        assert ended.code == 0, (words, ended.err)
    assert json.loads((run / "model.json").read_text())["text"] == SAID
    assert f"<dt>base model</dt><dd>{SAID}</dd>" in (run / "report.html").read_text()
    assert f"| base model | {file} ({SAID}) |" in (tmp_path / "merged" / "README.md").read_text()
    assert (run / "evaluation" / "toy_task_ToyTask" / "tiny.gguf.json").is_file()
    for place in ("sft", "reward_model", "ppo/text2grad", "ppo/offline"):
        weights = {path.name for path in (run / place / "policy").rglob("*.safetensors")}
        assert {"adapter_model.safetensors"} <= weights <= {"adapter_model.safetensors", "value_head.safetensors"}
    assert (tmp_path / "merged" / "model.safetensors").is_file()


def test_a_run_of_another_model_says_nothing_of_it(command: Command, run: Path) -> None:
    (run / "model.json").write_text('{"text": "of an earlier run"}')
    assert command("sft", "--restart", "--run.folder", run, *TOY, "--sft.epochs", "1").code == 0
    assert not (run / "model.json").exists()
