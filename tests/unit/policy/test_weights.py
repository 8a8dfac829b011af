"""A folder that does not hold its whole model, or holds another's parts, is one line that names what is wrong."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from made_tokenizers import byte_level_tokenizer
from text2grad.cli import main
from text2grad.errors import NotFinite, UserError
from text2grad.policy.files.save import write_policy
from text2grad.policy.generate import generate
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings

TOKENIZER = byte_level_tokenizer()
DOWN = "model.layers.1.mlp.down_proj.weight"
WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
LORA = LoraSettings(r=4, alpha=8, dropout=0.0, targets=("q_proj", "v_proj"))


def llama(**settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**{**shape, "num_attention_heads": 2, **settings}))


def write_model(folder: Path, **settings: Any) -> Path:
    llama(**settings).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def write_adapter(folder: Path, base: Path, **settings: Any) -> Path:
    made: Any = get_peft_model(
        llama(**settings), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    )
    made.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    configure(folder, "adapter_config.json", base_model_name_or_path=str(base), task_type="CAUSAL_LM")
    return folder


def configure(folder: Path, file: str = "config.json", **values: Any) -> None:
    content = {**json.loads((folder / file).read_text()), **values}
    (folder / file).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change(folder: Path, changed: Callable[[dict[str, torch.Tensor]], Any], file: str = WEIGHTS) -> None:
    weights = load_file(folder / file)
    changed(weights)
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / file, {"format": "pt"})


def rename(weights: dict[str, torch.Tensor]) -> None:
    for key in list(weights):
        weights[key.replace("model.", "transformer.")] = weights.pop(key)


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:5000])


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 538090408\n")


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a weight missing": (
        lambda f: change(f, lambda w: w.pop(DOWN)),
        rf"1 weight \({DOWN}\) is missing in its files",
    ),
    "the head missing": (
        lambda f: change(f, lambda w: w.pop("lm_head.weight")),
        r'1 weight \(lm_head.weight\) is missing in its files \(set "tie_word_embeddings": true',
    ),
    "all missing": (
        lambda f: change(f, rename),
        r"20 weights \(model.embed_tokens.weight, .*, \.\.\.\) are missing",
    ),
    "fewer layers in the files": (
        lambda f: configure(f, num_hidden_layers=3),
        r"9 weights \(model\.layers\.2\..* are missing",
    ),
    "more layers in the files": (
        lambda f: configure(f, num_hidden_layers=1),
        r"9 weights \(model\.layers\.1\..* are of layers that config.json does not have",
    ),
    "another shape": (
        lambda f: change(f, lambda w: w.update({DOWN: w[DOWN][:, :40].clone()})),
        r"another shape than config.json says: model.*down_proj.weight is \(32, 40\), not \(32, 48\)",
    ),
    "no size of the vocabulary": (lambda f: configure(f, vocab_size=None), r"another shape .* not \(32000, 32\)"),
    "not a number": (
        lambda f: change(f, lambda w: w[DOWN].view(-1)[3:4].fill_(torch.nan)),
        rf"1 weight \({DOWN}\) is not finite .*an earlier checkpoint",
    ),
    "infinite": (
        lambda f: change(f, lambda w: w["model.norm.weight"][:1].fill_(torch.inf)),
        r"1 weight \(model.norm.weight\) is not finite",
    ),
    "cut short": (cut, r"its weights are damaged: .*download it again whole"),
    "a pointer": (pointer, r"its weights are damaged: .*git lfs pull"),
    "bitsandbytes": (
        lambda f: configure(f, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        r"are quantised \(bitsandbytes\), .*take the model that it was made of",
    ),
    "fp8": (
        lambda f: configure(f, quantization_config={"quant_method": "fp8"}),
        r"are quantised \(fp8\), .*a GGUF file of it",
    ),
    "heads that do not fit": (
        lambda f: configure(f, num_attention_heads=3),
        r"config.json of .* is wrong: .*not a multiple .*get the model's own config.json",
    ),
    "no configuration": (lambda f: (f / "config.json").write_text("[]"), r"get the model's own config.json"),
}


@pytest.mark.parametrize("load", [load_frozen, load_policy])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_is_not_whole_is_refused(
    fault: str, load: Callable[[PolicySettings], Policy], tmp_path: Path
) -> None:
    folder = write_model(tmp_path)
    spoil, said = FAULTS[fault]
    spoil(folder)
    with pytest.raises(UserError, match=said) as caught:
        load(PolicySettings(model=str(folder)))
    assert str(folder) in str(caught.value)


def test_weights_that_are_shared_are_not_missing(tmp_path: Path) -> None:
    load_frozen(PolicySettings(model=str(write_model(tmp_path, tie_word_embeddings=True))))
    assert "lm_head.weight" not in load_file(tmp_path / WEIGHTS)


def test_heads_of_ours_are_no_weights_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load_policy(PolicySettings(model=str(write_model(tmp_path / "a"))))
    policy.add_head("score_head")
    write_policy(policy, tmp_path / "b")
    capsys.readouterr()
    load_frozen(PolicySettings(model=str(tmp_path / "b")))
    assert "weight" not in re.sub(r"Loading weights.*", "", capsys.readouterr().err)


SAID: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "of no such model": (
        lambda w: w.update({"extra.weight": torch.ones(2, 2)}),
        "1 weight (extra.weight) is not part of such a model, and not used",
    ),
    "all zero": (lambda w: w[DOWN].zero_(), f"1 weight ({DOWN}) is all zero"),
}


@pytest.mark.parametrize("kind", SAID)
def test_what_may_be_meant_is_said_and_taken(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed, said = SAID[kind]
    change(write_model(tmp_path), changed)
    load_frozen(PolicySettings(model=str(tmp_path)))
    assert said in capsys.readouterr().err


ADAPTERS: dict[str, tuple[dict[str, Any], str]] = {
    "a wider base": ({"hidden_size": 64}, "does not fit its base"),
    "a deeper base": ({"num_hidden_layers": 3}, "does not fit its base .*: 4 of its weights have no place there"),
    "a shallower base": ({"num_hidden_layers": 1}, "does not fit its base .*missing adapter keys"),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_of_another_base_is_refused(kind: str, tmp_path: Path) -> None:
    settings, said = ADAPTERS[kind]
    folder = write_adapter(tmp_path / "adapter", write_model(tmp_path / "base"), **settings)
    for load, lora in ((load_frozen, None), (load_policy, LORA), (load_policy, None)):
        with pytest.raises(
            UserError, match=rf"{said}.*name the model it was trained on as base_model_name_or_path"
        ):
            load(PolicySettings(model=str(folder), lora=lora))


def test_an_adapter_without_its_base_or_with_numbers_that_are_none(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", tmp_path / "base")
    with pytest.raises(UserError, match=r"does not fit its base .*base: there is no such folder"):
        load_frozen(PolicySettings(model=str(folder)))
    write_model(tmp_path / "base")
    load_frozen(PolicySettings(model=str(folder)))
    change(folder, lambda weights: next(iter(weights.values())).fill_(torch.nan), ADAPTER)
    with pytest.raises(UserError, match=rf"{ADAPTER}: 1 weight \(.*lora_A.weight\) is not finite"):
        load_frozen(PolicySettings(model=str(folder)))


def test_a_tokenizer_longer_than_the_embedding_and_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    longer = copy.deepcopy(TOKENIZER)
    longer.add_tokens(["zebra", "giraffe"])
    longer.save_pretrained(write_model(tmp_path / "old"))
    size = len(longer)
    with pytest.raises(
        UserError, match=rf"has {size} tokens, the model embeds {size - 2}: none of 'zebra', "
    ) as caught:
        load_frozen(PolicySettings(model=str(tmp_path / "old")))
    command = shlex.split(re.search(r"(python -c \".*\")\)$", str(caught.value))[1])  # type: ignore[index]
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True)
    load_frozen(PolicySettings(model=str(tmp_path / "NEW")))


@pytest.mark.parametrize("template", [False, True])
def test_a_special_token_without_an_embedding_may_be_one_that_nobody_writes(template: bool, tmp_path: Path) -> None:
    longer = copy.deepcopy(TOKENIZER)
    longer.add_special_tokens({"additional_special_tokens": ["<|extra|>"]})
    if template:
        longer.chat_template = str(longer.chat_template) + "<|extra|>"
    longer.save_pretrained(write_model(tmp_path))
    if template:
        with pytest.raises(UserError, match=r"none of '<\|extra\|>'"):
            load_frozen(PolicySettings(model=str(tmp_path)))
    else:
        load_frozen(PolicySettings(model=str(tmp_path)))


def test_a_tokenizer_of_a_far_smaller_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_frozen(PolicySettings(model=str(write_model(tmp_path, vocab_size=4000))))
    assert "the model embeds 4000: is it the model's own?" in capsys.readouterr().err


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_sampled_from_probabilities_that_are_none(temperature: float) -> None:
    policy = Policy(llama().eval(), TOKENIZER)
    policy.model.lm_head.weight.data[7] = torch.nan
    with pytest.raises(NotFinite, match=r"probabilities are not finite .*--policy\.dtype float32") as caught:
        generate(policy, [[5, 6]], GenerationSettings(max_new_tokens=2, temperature=temperature))
    assert isinstance(caught.value, UserError) and isinstance(caught.value, FloatingPointError)


@pytest.mark.parametrize("words", [["sample", "When?"], ["try"]])
def test_a_command_ends_in_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change(write_model(tmp_path / "m"), lambda w: w[DOWN].fill_(torch.nan))
    with pytest.raises(SystemExit) as ended:
        main([*words, "--with", "m"])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert ended.value.code == 1 and len(said) == 1 and DOWN in said[0]
