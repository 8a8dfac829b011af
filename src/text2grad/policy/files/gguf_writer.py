"""Write GGUF files for llama.cpp, with every weight and token of a model exact.

llama.cpp identifies by name how a tokenizer splits text. `SPLITS` has the names and their steps.
For other tokenizers and architectures use llama.cpp's converter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from text2grad.errors import optional_packages

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROTATIONS = ("default", "llama3")

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
UNSPLIT = {**BYTES, "use_regex": False}
PIECES = {"type": "Split", "behavior": "Isolated", "invert": False}
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, BYTES],
    "llama-bpe": [{**PIECES, "pattern": {"Regex": rf"{LETTERS}|\p{{N}}{{1,3}}|{OTHERS}"}}, UNSPLIT],
    "qwen2": [{**PIECES, "pattern": {"Regex": rf"{LETTERS}|\p{{N}}|{OTHERS}"}}, UNSPLIT],
}
"""The steps that split text, by `tokenizer.ggml.pre` (llama.cpp, llama-vocab.cpp)."""


def find_obstacle(model: Any, tokenizer: Any) -> str | None:
    """Return the reason why a model cannot be written exactly, or None if it can."""
    config = model.config
    if config.model_type not in ARCHITECTURES:
        return f"its architecture is {config.model_type}, not one of {', '.join(ARCHITECTURES)}"
    if (kind := config.rope_parameters["rope_type"]) not in ROTATIONS:
        return f"its rotary positions are scaled by {kind!r}"
    if getattr(config, "use_sliding_window", False):
        return "its attention has a sliding window"
    if _find_split(tokenizer) is None:
        return "its tokenizer splits text in a way that has no known name in llama.cpp"
    return None


def _find_split(tokenizer: Any) -> str | None:
    """Return llama.cpp's name for the way a byte-level BPE splits text, or None if unknown."""
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    model, split = core["model"], core["pre_tokenizer"] or {}
    steps = split.get("pretokenizers", [split])
    for step in steps:
        step.pop("trim_offsets", None)  # changes the offsets of tokens, not the tokens
    name = next((name for name, split_steps in SPLITS.items() if split_steps == steps), None)
    is_plain_bpe = model["type"] == "BPE" and not model.get("byte_fallback")
    is_normal = core["normalizer"] in (None, {"type": "NFC"} if name == "qwen2" else None)
    ignores_merges = model.get("ignore_merges", False)
    return name if is_plain_bpe and is_normal and ignores_merges == (name == "llama-bpe") else None


def write_gguf(model: Any, tokenizer: Any, folder: Path, file: Path) -> None:
    """Write a model and the tokenizer saved in `folder` to one GGUF file, in the weights' type.

    Raises:
        MissingPackageError: the package gguf is not installed.
    """
    with optional_packages():
        import gguf
    config = model.config
    writer = gguf.GGUFWriter(file, config.model_type)
    kind = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[model.dtype]
    writer.add_name(file.stem)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])
    _write_shape(writer, config)
    _write_tokenizer(writer, tokenizer, folder, config.vocab_size)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    gguf_names = gguf.get_tensor_name_map(numbers[config.model_type], config.num_hidden_layers)
    for name, weight in model.named_parameters():  # tied weights once
        array = _interleave_rotary(name, weight.detach().cpu(), config).float().contiguous().numpy()
        tensor_type = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
        gguf_name: Any = gguf_names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(gguf_name, gguf.quantize(array, tensor_type), raw_dtype=tensor_type)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_divisors(config, model.model.rotary_emb.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: Any, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for add in (writer.add_rope_dimension_count, writer.add_key_length, writer.add_value_length):
        add(size)


def _write_tokenizer(writer: Any, tokenizer: Any, folder: Path, size: int) -> None:
    import gguf

    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    kinds = {index: "CONTROL" if token.special else "USER_DEFINED" for index, token in added.items()}
    kinds |= {index: "UNUSED" for index in range(size) if index not in tokens}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_find_split(tokenizer))
    writer.add_token_list([tokens.get(index, f"[PAD{index}]") for index in range(size)])
    writer.add_token_types([gguf.TokenType[kinds.get(index, "NORMAL")] for index in range(size)])
    special = gguf.SpecialVocab(folder, load_merges=True, n_vocab=size)
    special.add_special_token.setdefault("bos", False)
    special.add_to_gguf(writer, quiet=True)


def _rope_divisors(config: Any, frequencies: Tensor) -> Tensor:
    """Return the divisors by which Llama 3 scales its rotary frequencies."""
    exponents = torch.arange(len(frequencies), dtype=torch.float64) / len(frequencies)
    unscaled: Tensor = config.rope_parameters["rope_theta"] ** -exponents
    return (unscaled / frequencies.double().cpu()).float()


def _interleave_rotary(name: str, weight: Tensor, config: Any) -> Tensor:
    """Reorder the rows of a Llama's queries and keys: llama.cpp rotates pairs instead of halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if config.model_type != "llama" or count is None:
        return weight
    return weight.reshape(count, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
