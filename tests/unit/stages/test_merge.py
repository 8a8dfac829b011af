"""`merge`: a folder that others load, and a card that says where it comes from."""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import HfApi
from peft import PeftModel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from text2grad.config import Config, load_config
from text2grad.durable.run import save_policy
from text2grad.errors import UserError
from text2grad.policy.files.smollm2 import HUB_NAME
from text2grad.policy.load import add_head, load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.stages.merge import MergeForm, generation_config, run_merge
from text2grad.stages.reward_model.gate import gate_file
from text2grad.stages.run_folder import RunFolder

IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture
def config(tmp_path: Path, model_folder: Path) -> Config:
    """A run whose policy is an adapter on a base model, and whose reward model was measured."""
    base = PolicySettings(model=str(model_folder), lora=LoraSettings(r=4))
    policy = load_policy(base)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path / "run"
    for name in ("ppo/text2grad", "reward_model"):
        save_policy(policy, folder / name / "policy")
    (folder / "evaluation").mkdir()
    figures = {"good_precision": 0.93, "good": {"precision": 0.93}}
    (folder / "evaluation" / "reward_model.json").write_text(json.dumps(figures))
    words = ["--run.folder", str(folder), "--policy.model", str(model_folder), "--task.data", "mine.jsonl"]
    return load_config(None, ["--task.name", "qa", *words])


def logits(model: object) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits  # type: ignore[operator]
    return found


def adapted(config: Config) -> Policy:
    return load_policy(PolicySettings(model=str(config.run.folder / "ppo" / "text2grad" / "policy")))


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_weights_may_be_read_by_whoever_may_read_the_rest(config: Config, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        run_merge(config, "text2grad", tmp_path / "merged", "mit", None)
        save_policy(load_policy(PolicySettings(model=str(tmp_path / "merged"))), tmp_path / "policy")
    finally:
        os.umask(before)
    for folder in (tmp_path / "merged", tmp_path / "policy"):
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}
        assert any(path.suffix == ".safetensors" for path in files)


def test_others_load_it_and_it_says_the_same(config: Config, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    summary = run_merge(config, "text2grad", out, "other", None)
    assert summary["serve"] == (f"vllm serve {out}", f"transformers serve {out}")
    assert summary["out"] == str(out) and "kept" not in summary and "float32" in summary["written"]
    assert not (out / "adapter_config.json").exists() and not (out / "value_head.safetensors").exists()
    plain = AutoModelForCausalLM.from_pretrained(out)
    torch.testing.assert_close(logits(plain), logits(adapted(config).model))
    base = AutoModelForCausalLM.from_pretrained(config.policy.model)
    assert (logits(plain) - logits(base)).abs().max() > 0.01, "the adapter changed something"
    assert AutoTokenizer.from_pretrained(out).chat_template
    assert load_config(out / "text2grad.yaml") == config


def test_a_server_lets_it_answer_as_it_does_here(config: Config) -> None:
    policy = adapted(config)
    policy.model.generation_config = GenerationConfig(repetition_penalty=1.3, temperature=0.7, do_sample=True)
    sampled, greedy = (
        generation_config(policy.model, policy.tokenizer, target) for target in ("text2grad", "reward_model")
    )
    assert sampled.eos_token_id == greedy.eos_token_id == policy.stop_ids
    assert (sampled.repetition_penalty, sampled.temperature, sampled.do_sample) == (1.3, 0.7, True)
    assert not greedy.do_sample and (greedy.repetition_penalty or 1.0) == 1.0


def test_a_temperature_without_do_sample_can_be_saved(config: Config, tmp_path: Path) -> None:
    """As some base models have it, for servers that always sample."""
    policy = adapted(config)
    policy.model.generation_config = GenerationConfig(temperature=0.7)
    merged = generation_config(policy.model, policy.tokenizer, "text2grad")
    merged.save_pretrained(tmp_path)
    assert (merged.temperature, merged.do_sample) == (0.7, True)


def test_in_half_precision_the_merge_is_one_rounding_and_says_what_it_keeps(config: Config, tmp_path: Path) -> None:
    run_merge(config, "text2grad", tmp_path / "whole", "other", None)
    found = run_merge(config, "text2grad", tmp_path / "half", "other", None, MergeForm(dtype="bfloat16"))
    whole, half, base = (
        AutoModelForCausalLM.from_pretrained(place, dtype="auto").state_dict()
        for place in (tmp_path / "whole", tmp_path / "half", config.policy.model)
    )
    assert {tensor.dtype for tensor in whole.values()} == {torch.float32}
    assert all(torch.equal(tensor.bfloat16(), half[name]) for name, tensor in whole.items())
    changed = [name for name, tensor in whole.items() if not torch.equal(tensor, base[name])]
    assert len(changed) == 14, "the seven linear maps of two layers"
    trained = torch.cat([(whole[name] - base[name]).flatten() for name in changed])
    kept = torch.cat([(half[name].float() - base[name].bfloat16().float()).flatten() for name in changed])
    assert found["kept"] == pytest.approx(
        float(torch.nn.functional.cosine_similarity(trained, kept, dim=0)), abs=1e-5
    )
    assert 0.9 < found["kept"] < 1


def test_a_small_change_is_lost_in_bfloat16_and_a_whole_model_is_written_as_it_was_saved(
    config: Config, tmp_path: Path
) -> None:
    policy = load_policy(PolicySettings(model=config.policy.model, lora=LoraSettings(r=4)))
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(torch.randn_like(parameter) * 1e-4)
    save_policy(policy, config.run.folder / "ppo" / "small" / "policy")
    lost = run_merge(config, "small", tmp_path / "half", "other", None, MergeForm(dtype="bfloat16"))
    assert lost["kept"] < 0.8
    assert run_merge(config, "small", tmp_path / "whole", "other", None).get("kept") is None
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(logits(again), logits(policy.model), rtol=1e-5, atol=1e-6)
    save_policy(
        load_policy(PolicySettings(model=config.policy.model, dtype="bfloat16")),
        config.run.folder / "ppo" / "full" / "policy",
    )
    assert run_merge(config, "full", tmp_path / "out", "other", None).get("kept") is None
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_the_card_names_data_command_figures_versions_and_licence(config: Config, tmp_path: Path) -> None:
    run_merge(config, "reward_model", tmp_path / "merged", "apache-2.0", None)
    _, front, body = (tmp_path / "merged" / "README.md").read_text().split("---\n", 2)
    head = yaml.safe_load(front)
    assert head["license"] == "apache-2.0" and head["base_model"] == config.policy.model
    assert head["pipeline_tag"] == "text-generation" and "reward-model" in head["tags"]
    for words in ("mine.jsonl", "text2grad train-reward", "| good_precision | 0.930 |", version("torch")):
        assert words in body


def test_the_card_of_a_model_folder_names_no_command(config: Config, tmp_path: Path) -> None:
    folder = config.run.folder / "ppo" / "text2grad" / "policy"
    run_merge(config, str(folder), tmp_path / "merged", "mit", None)
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "# " in card and ": policy\n" in card and "made by" not in card


ADAPTER = MergeForm(adapter=True)


def rename_base(config: Config, base: str) -> None:
    """Have the adapter of the run name another base model."""
    folder = config.run.folder / "ppo" / "text2grad" / "policy"
    (folder / "manifest.json").unlink(missing_ok=True)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": base}))


def test_peft_adds_the_adapter_alone_to_its_base(config: Config, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    summary = run_merge(config, "text2grad", out, "mit", None, ADAPTER)
    base = AutoModelForCausalLM.from_pretrained(config.policy.model)
    before = logits(base)
    adapted_by_peft = PeftModel.from_pretrained(base, str(out))
    ours = load_frozen(PolicySettings(model=str(config.run.folder / "ppo" / "text2grad" / "policy")))
    assert torch.equal(logits(adapted_by_peft), logits(ours.model))
    assert (logits(adapted_by_peft) - before).abs().max() > 0.01
    tokenizer, original = (AutoTokenizer.from_pretrained(place) for place in (out, config.policy.model))
    assert tokenizer.get_vocab() == original.get_vocab() and tokenizer.chat_template == original.chat_template
    assert not list(out.glob("model*")) and not list(out.glob("*head*")) and not list(out.glob("*.sha256"))
    [command] = summary["serve"]
    base_name = json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert command == f"vllm serve {base_name} --enable-lora --lora-modules adapter={out}"
    head = yaml.safe_load((out / "README.md").read_text().split("---\n", 2)[1])
    assert head["library_name"] == "peft" and head["base_model"] == base_name


CACHED = "/home/me/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/0123abcd"


@pytest.mark.parametrize(
    ("base", "named", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B", "", "Qwen/Qwen2.5-0.5B"),
        (CACHED, "", "Qwen/Qwen2.5-0.5B"),
        ("smollm2", "", HUB_NAME),
        ("/data/model.gguf", "me/model", "me/model"),
    ],
)
def test_an_adapter_names_its_base_as_others_do(
    base: str, named: str, expected: str, config: Config, tmp_path: Path
) -> None:
    rename_base(config, base)
    run_merge(config, "text2grad", tmp_path / "out", "mit", None, MergeForm(adapter=True, base=named))
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == expected


def test_adapters_that_others_cannot_add(config: Config, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rename_base(config, "/data/model.gguf")
    with pytest.raises(UserError, match=r"/data/model.gguf.*--base"):
        run_merge(config, "text2grad", out, "mit", None, ADAPTER)
    save_policy(
        load_policy(PolicySettings(model=config.policy.model)), config.run.folder / "ppo" / "full" / "policy"
    )
    with pytest.raises(UserError, match="without --adapter"):
        run_merge(config, "full", out, "mit", None, ADAPTER)
    assert not out.exists()


def greedy(model: Any) -> list[int]:
    tokens: list[int] = model.generate(IDS, max_new_tokens=24, do_sample=False)[0].tolist()
    return tokens


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_gguf_file_answers_as_the_folder_does(
    dtype: Any, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "mine"
    summary = run_merge(config, "text2grad", out, "mit", None, MergeForm(gguf=True, dtype=dtype))
    assert summary["serve"][-1] == f"llama-server -m {out / 'mine.gguf'}"
    merged = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    others = AutoModelForCausalLM.from_pretrained(out, gguf_file="mine.gguf", dtype=torch.float32)
    ours = load_policy(PolicySettings(model=str(out / "mine.gguf")))
    for model in (others, ours.model):
        assert torch.equal(logits(model), logits(merged)) and greedy(model) == greedy(merged)
    base = AutoModelForCausalLM.from_pretrained(config.policy.model)
    assert greedy(merged) != greedy(base)
    assert ours.tokenizer.chat_template == AutoTokenizer.from_pretrained(out).chat_template


def test_what_cannot_be_written_exactly_is_left_to_llama_cpp(config: Config, tmp_path: Path) -> None:
    policy = load_policy(PolicySettings(model=config.policy.model))
    policy.tokenizer.backend_tokenizer.pre_tokenizer = Whitespace()
    save_policy(policy, config.run.folder / "ppo" / "split" / "policy")
    out = tmp_path / "mine"
    command = f"convert_hf_to_gguf.py {out} --outfile {out / 'mine.gguf'}"
    with pytest.raises(UserError, match=re.escape(command)):
        run_merge(config, "split", out, "mit", None, MergeForm(gguf=True))
    assert not (out / "mine.gguf").exists()
    assert AutoModelForCausalLM.from_pretrained(out) and (out / "README.md").is_file()


def test_the_head_of_a_reward_model_goes_with_it_and_no_other_server_is_named(
    config: Config, tmp_path: Path
) -> None:
    folder = config.run.folder / "reward_model" / "policy"
    model = load_frozen(PolicySettings(model=str(folder)))
    torch.nn.init.normal_(add_head(model, "span_head").map.weight)
    save_policy(model, folder)
    for form in (MergeForm(gguf=True), MergeForm(adapter=True)):
        with pytest.raises(UserError, match="span_head"):
            run_merge(config, "reward_model", tmp_path / "critic", "mit", None, form)
    out = tmp_path / "critic"
    (command,) = run_merge(config, "reward_model", out, "mit", None)["serve"]
    assert command.startswith(f"text2grad serve {config.run.folder} ") and command.endswith(str(out))
    merged = load_frozen(PolicySettings(model=str(out))).span_head
    assert merged is not None and model.span_head is not None
    assert torch.equal(merged.map.weight, model.span_head.map.weight)


def test_a_folder_with_something_in_it_is_left_alone(config: Config, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(UserError, match=r"not empty.*new folder"):
        run_merge(config, "text2grad", tmp_path, "other", None)
    assert (tmp_path / "kept.txt").read_text() == "mine"
    with pytest.raises(UserError, match="no policy 'nothing'"):
        run_merge(config, "nothing", tmp_path / "merged", "other", None)


def test_it_is_pushed_only_when_asked_and_stays_when_the_hub_refuses(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[str, Path]] = []
    monkeypatch.setattr(HfApi, "create_repo", lambda self, name, exist_ok: None)
    monkeypatch.setattr(
        HfApi, "upload_folder", lambda self, repo_id, folder_path: pushed.append((repo_id, folder_path))
    )
    run_merge(config, "text2grad", tmp_path / "one", "other", None)
    assert pushed == []
    run_merge(config, "text2grad", tmp_path / "two", "other", "me/model")
    assert pushed == [("me/model", tmp_path / "two")]

    def refuse(*_: object, **__: object) -> None:
        raise OSError("401: no such user")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    with pytest.raises(UserError, match=r"three is complete, but was not pushed .*: 401.*hf auth login"):
        run_merge(config, "text2grad", tmp_path / "three", "other", "me/model")
    assert (tmp_path / "three" / "model.safetensors").is_file()


def test_the_verdict_on_a_reward_model_is_merged_with_it(config: Config, tmp_path: Path) -> None:
    verdict = config.run.folder / "reward_model" / "gate.json"
    verdict.write_text("{}", encoding="utf-8")
    run_merge(config, "reward_model", tmp_path / "merged", "mit", None)
    words = ("--task.name", "qa", "--policy.model", "tiny", "--critic.reward_model.folder")
    merged = load_config(None, [*words, str(tmp_path / "merged")])
    assert gate_file(RunFolder.of(merged)) == tmp_path / "merged" / "gate.json"
    assert gate_file(RunFolder.of(config)) == verdict
