"""Written GGUF files: every weight, and a tokenizer that splits text in a way that llama.cpp knows
by a name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GemmaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from made_tokenizers import byte_level_tokenizer
from text2grad.policy.files.gguf_writer import SPLITS, find_obstacle, write_gguf
from tiny_runs import SHAPE

UNTIED: dict[str, Any] = {**SHAPE, "bos_token_id": None, "tie_word_embeddings": False}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def splitting(name: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer that splits as llama.cpp does under this name."""
    tokenizer = byte_level_tokenizer()
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    steps = [{**step, "trim_offsets": True} if step["type"] == "ByteLevel" else step for step in SPLITS[name]]
    core["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    core["model"]["ignore_merges"] = name == "llama-bpe"
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(core))
    return tokenizer


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write a folder and a GGUF file of a model; return the file."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded, its_tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    write_gguf(loaded, its_tokenizer, folder, folder / "x.gguf")
    return folder / "x.gguf"


def field(file: Path, name: str) -> Any:
    return gguf.GGUFReader(file).fields[name].contents()


def test_a_qwen_with_biases_and_more_rows_than_tokens(tmp_path: Path) -> None:
    tokenizer = splitting("qwen2")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer) + 3, **UNTIED))
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


def test_the_positions_of_llama_3_are_scaled_as_in_llama_cpp(tmp_path: Path) -> None:
    tokenizer = splitting("llama-bpe")
    config = LlamaConfig(vocab_size=len(tokenizer), **UNTIED, rope_parameters=LLAMA3)
    file = saved(LlamaForCausalLM(config), tokenizer, tmp_path)
    [divisors] = [tensor.data for tensor in gguf.GGUFReader(file).tensors if tensor.name == "rope_freqs.weight"]
    # llama.cpp's conversion of Llama: short waves keep their frequency, that of long ones is
    # divided by 8.
    waves = 2 * np.pi * 10000.0 ** (np.arange(4) / 4)
    share = np.clip((64 / waves - 1.0) / (4.0 - 1.0), 0, 1)
    np.testing.assert_allclose(divisors, 1 / ((1 - share) / 8 + share), rtol=1e-5)


def test_each_split_has_its_name(tmp_path: Path, tiny_llama: LlamaForCausalLM) -> None:
    for name in SPLITS:
        assert field(saved(tiny_llama, splitting(name), tmp_path / name), "tokenizer.ggml.pre") == name


def test_obstacles_to_an_exact_file_are_named(
    tiny_llama: LlamaForCausalLM,
    sentencepiece_tokenizer: PreTrainedTokenizerFast,
    word_piece: PreTrainedTokenizerFast,
) -> None:
    usual = splitting("gpt-2")
    assert find_obstacle(tiny_llama, usual) is None
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    for obstacle, config in {
        "linear": LlamaConfig(rope_parameters=linear),
        "gemma": GemmaConfig(),
        "sliding window": Qwen2Config(use_sliding_window=True),
    }.items():
        assert obstacle in str(find_obstacle(SimpleNamespace(config=config), usual))
    merging = splitting("llama-bpe")
    core = json.loads(merging.backend_tokenizer.to_str())
    core["model"]["ignore_merges"] = False
    merging._tokenizer = Tokenizer.from_str(json.dumps(core))
    for tokenizer in (sentencepiece_tokenizer, word_piece, merging):
        assert "tokenizer" in str(find_obstacle(tiny_llama, tokenizer))
