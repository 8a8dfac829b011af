"""A folder that does not hold its whole model, or holds another's parts, is one line that names
what is wrong."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from made_tokenizers import byte_level_tokenizer
from text2grad.durable.run import save_policy
from text2grad.errors import NotFinite, UserError
from text2grad.policy.files.manifest import MANIFEST
from text2grad.policy.files.save import write_policy
from text2grad.policy.generate import generate
from text2grad.policy.load import add_head, load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings

TOKENIZER = byte_level_tokenizer()
DOWN = "model.layers.1.mlp.down_proj.weight"
WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
LORA = LoraSettings(r=4, dropout=0.0, targets=("q_proj", "v_proj"))


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
    "a weight missing": (lambda f: change(f, lambda w: w.pop(DOWN)), DOWN),
    "the head missing": (lambda f: change(f, lambda w: w.pop("lm_head.weight")), "lm_head.weight"),
    "all missing": (lambda f: change(f, rename), "20 weights"),
    "fewer layers in the files": (lambda f: configure(f, num_hidden_layers=3), r"9 weights \(model\.layers\.2"),
    "more layers in the files": (lambda f: configure(f, num_hidden_layers=1), r"9 weights \(model\.layers\.1"),
    "another shape": (
        lambda f: change(f, lambda w: w.update({DOWN: w[DOWN][:, :40].clone()})),
        r"down_proj.weight is \(32, 40\), not \(32, 48\)",
    ),
    "no size of the vocabulary": (lambda f: configure(f, vocab_size=None), r"not \(32000, 32\)"),
    "not a number": (lambda f: change(f, lambda w: w[DOWN].view(-1)[3:4].fill_(torch.nan)), DOWN),
    "infinite": (lambda f: change(f, lambda w: w["model.norm.weight"][:1].fill_(torch.inf)), "model.norm.weight"),
    "cut short": (cut, "damaged"),
    "a pointer": (pointer, "git lfs pull"),
    "quantised": (lambda f: configure(f, quantization_config={"quant_method": "fp8"}), "fp8"),
    "heads that do not fit": (lambda f: configure(f, num_attention_heads=3), "config.json"),
    "no configuration": (lambda f: (f / "config.json").write_text("[]"), "config.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_is_not_whole_is_refused(fault: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    spoil, name = FAULTS[fault]
    spoil(folder)
    for load in (load_frozen, load_policy):
        with pytest.raises(UserError, match=name) as caught:
            load(PolicySettings(model=str(folder)))
        assert str(folder) in str(caught.value)


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_byte_that_changed_in_a_saved_policy_is_named(lora: LoraSettings | None, tmp_path: Path) -> None:
    base = str(write_model(tmp_path / "base"))
    policy = load_policy(PolicySettings(model=base, lora=lora, value_head="separate"))
    add_head(policy, "score_head")
    saved = tmp_path / "policy"
    save_policy(policy, saved)
    loads = load_frozen, load_policy
    settings = PolicySettings(model=str(saved), lora=lora, value_head="separate")
    for load in loads:
        load(settings)
    files = [path for path in sorted(saved.rglob("*")) if path.is_file()]
    assert {WEIGHTS if lora is None else ADAPTER, "value_head.safetensors", "score_head.safetensors"} <= {
        path.name for path in files
    }
    for path in files:
        content = path.read_bytes()
        for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[: len(content) // 2], None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            for load in loads:
                with nullcontext() if path.name == MANIFEST and damaged is None else pytest.raises(UserError):
                    load(settings)
        path.write_bytes(content)


def test_a_head_of_which_half_is_there_is_refused_without_a_manifest_too(tmp_path: Path) -> None:
    policy = load_policy(PolicySettings(model=str(write_model(tmp_path / "base"))))
    write_policy(policy, tmp_path / "policy")
    head = tmp_path / "policy" / "value_head.safetensors"
    for damaged in (head.read_bytes()[:-3], b"\xff" * 8 + head.read_bytes()[8:], b""):
        head.write_bytes(damaged)
        with pytest.raises(UserError, match=re.escape(str(head))):
            load_policy(PolicySettings(model=str(tmp_path / "policy")))


def test_shared_weights_and_our_heads_are_neither_missing_nor_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(PolicySettings(model=str(write_model(tmp_path / "a", tie_word_embeddings=True))))
    assert "lm_head.weight" not in load_file(tmp_path / "a" / WEIGHTS)
    add_head(policy, "score_head")
    write_policy(policy, tmp_path / "b")
    capsys.readouterr()
    load_frozen(PolicySettings(model=str(tmp_path / "b")))
    assert "weight" not in re.sub(r"Loading weights.*", "", capsys.readouterr().err)
    change(tmp_path / "b", lambda w: w.update({"extra.weight": torch.ones(2, 2)}))
    load_frozen(PolicySettings(model=str(tmp_path / "b")))
    assert "extra.weight" in capsys.readouterr().err


OTHER_BASES: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 64}, ""),
    ({"num_hidden_layers": 3}, "4 of its weights"),
    ({"num_hidden_layers": 1}, "missing adapter keys"),
]


@pytest.mark.parametrize(("settings", "problem"), OTHER_BASES)
def test_an_adapter_of_another_base_is_refused(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", write_model(tmp_path / "base"), **settings)
    for load, lora in ((load_frozen, None), (load_policy, LORA), (load_policy, None)):
        with pytest.raises(UserError, match=rf"{problem}.*base_model_name_or_path"):
            load(PolicySettings(model=str(folder), lora=lora))


def test_an_adapter_without_its_base_or_with_numbers_that_are_none(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", tmp_path / "base")
    settings = PolicySettings(model=str(folder))
    with pytest.raises(UserError, match=r"does not fit its base .*base: the folder does not exist"):
        load_frozen(settings)
    write_model(tmp_path / "base")
    load_frozen(settings)
    change(folder, lambda weights: next(iter(weights.values())).fill_(torch.nan), ADAPTER)
    with pytest.raises(UserError, match=rf"{ADAPTER}: 1 weight \(.*lora_A.weight\) is not finite"):
        load_frozen(settings)


@pytest.mark.parametrize("kind", ["a word", "never written", "in the template"])
def test_a_token_without_an_embedding_is_refused_if_it_can_be_written(kind: str, tmp_path: Path) -> None:
    longer = copy.deepcopy(TOKENIZER)
    longer.add_tokens(["zebra"], special_tokens=kind != "a word")
    longer.chat_template = str(longer.chat_template) + ("zebra" if kind == "in the template" else "")
    longer.save_pretrained(write_model(tmp_path))
    with nullcontext() if kind == "never written" else pytest.raises(UserError, match="'zebra'"):
        load_frozen(PolicySettings(model=str(tmp_path)))


def test_nothing_is_sampled_from_probabilities_that_are_not_finite() -> None:
    policy = Policy(llama().eval(), TOKENIZER)
    policy.model.lm_head.weight.data[7] = torch.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(NotFinite, match=r"--policy\.dtype float32") as caught:
            generate(policy, [[5, 6]], GenerationSettings(max_new_tokens=2, temperature=temperature))
        assert isinstance(caught.value, UserError) and isinstance(caught.value, FloatingPointError)
