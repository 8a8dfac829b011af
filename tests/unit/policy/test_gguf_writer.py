"""GGUF files that are written: every weight, and a tokenizer that splits text by a name that llama.cpp knows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from made_tokenizers import byte_level_tokenizer
from text2grad.policy.files.gguf_writer import SPLITS, why_not, write_gguf

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def splitting(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer that splits as those do that llama.cpp calls by this name, as their files say it."""
    tokenizer = byte_level_tokenizer()
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    steps = [{**step, "trim_offsets": True} if step["type"] == "ByteLevel" else step for step in SPLITS[name]]
    core["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    core["model"]["ignore_merges"] = name == "llama-bpe"
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(core))
    return tokenizer


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write a model as it is and as a GGUF file; return the file."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    read, its_tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    write_gguf(read, its_tokenizer, folder, folder / "x.gguf")
    return folder / "x.gguf"


def field(file: Path, name: str) -> Any:
    return gguf.GGUFReader(file).fields[name].contents()


def test_a_qwen_with_biases_and_more_rows_than_tokens(tmp_path: Path) -> None:
    tokenizer = splitting("qwen2")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer) + 3, **SHAPE))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    file = saved(model, tokenizer, tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).state_dict()
    assert read.keys() == model.state_dict().keys()
    assert all(torch.equal(weight, read[name]) for name, weight in model.state_dict().items())
    assert field(file, "tokenizer.ggml.pre") == "qwen2"
    tokens, kinds = field(file, "tokenizer.ggml.tokens"), field(file, "tokenizer.ggml.token_type")
    kind = gguf.TokenType
    expected = {"<|im_end|>": kind.CONTROL, "<think>": kind.USER_DEFINED, "a": kind.NORMAL}
    assert {token: kinds[tokens.index(token)] for token in expected} == expected
    unused = [token for token, its_kind in zip(tokens, kinds, strict=True) if its_kind == kind.UNUSED]
    assert unused == [f"[PAD{len(tokenizer) + n}]" for n in (1, 2)], "transformers adds one token to a Qwen's"
    assert len(set(tokens)) == len(tokens) == len(tokenizer) + 3
    assert field(file, "tokenizer.ggml.eos_token_id") == tokenizer.eos_token_id
    assert field(file, "tokenizer.ggml.add_bos_token") is False


def test_the_positions_of_llama_3_are_slowed_as_llama_cpp_does(tmp_path: Path) -> None:
    tokenizer = splitting("llama-bpe")
    config = LlamaConfig(vocab_size=len(tokenizer), **SHAPE, rope_parameters=LLAMA3)
    file = saved(LlamaForCausalLM(config), tokenizer, tmp_path)
    [slowed] = [tensor.data for tensor in gguf.GGUFReader(file).tensors if tensor.name == "rope_freqs.weight"]
    waves = (
        2 * np.pi * 10000.0 ** (np.arange(4) / 4)
    )  # llama.cpp, conversion of Llama: short as they are, long by 8
    share = np.clip((64 / waves - 1.0) / (4.0 - 1.0), 0, 1)
    np.testing.assert_allclose(slowed, 1 / ((1 - share) / 8 + share), rtol=1e-5)


def test_each_split_has_its_name(tmp_path: Path, tiny_llama: LlamaForCausalLM) -> None:
    for name in SPLITS:
        assert field(saved(tiny_llama, splitting(name), tmp_path / name), "tokenizer.ggml.pre") == name


def other(model: Any, **changed: Any) -> Any:
    return SimpleNamespace(config=type(model.config)(**{**model.config.to_dict(), **changed}))


def test_what_is_not_exact_is_named(
    tiny_llama: LlamaForCausalLM,
    sentencepiece_tokenizer: PreTrainedTokenizerFast,
    word_piece: PreTrainedTokenizerFast,
) -> None:
    usual = splitting("gpt-2")
    assert why_not(tiny_llama, usual) is None
    scaled = other(tiny_llama, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})
    assert "linear" in str(why_not(scaled, usual))
    assert "gemma" in str(why_not(SimpleNamespace(config=SimpleNamespace(model_type="gemma")), usual))
    window = SimpleNamespace(config=Qwen2Config(use_sliding_window=True))
    assert "window" in str(why_not(window, usual))
    merging = splitting("llama-bpe")
    core = json.loads(merging.backend_tokenizer.to_str())
    core["model"]["ignore_merges"] = False
    merging._tokenizer = Tokenizer.from_str(json.dumps(core))
    for tokenizer in (sentencepiece_tokenizer, word_piece, merging):
        assert "tokenizer" in str(why_not(tiny_llama, tokenizer))
