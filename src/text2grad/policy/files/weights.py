"""Load weights, and refuse missing, unexpected, misshapen or non-finite ones.

Hugging Face initialises missing weights at random and ignores unexpected ones, with only a table in
the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from text2grad.errors import UserError, first_line, warn_once
from text2grad.policy.forward.cache import refuse_uncached

MISMATCH_CURE = "download the model again, or correct config.json: the weights do not fit it"
LISTED = 3
"""Number of weights that a message names."""


def read_config(name: str) -> Any:
    """Return the configuration of a model.

    Raises:
        UserError: the configuration is invalid.
        OSError, ValueError: from `from_pretrained`.
    """
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (StrictDataclassError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[-200:]
        cure = "download the model's config.json again"
        raise UserError(f"config.json of {name!r} is wrong: {reason}", cure) from error


def load_complete(name: str, dtype: str) -> Any:
    """Load the model of a folder or hub name, with all weights from its files.

    Raises:
        UserError: the configuration is invalid, the model is quantised or takes no cache, or a
            weight is missing, misshapen, not finite or of an unknown layer.
        OSError, ValueError, SafetensorError: from `from_pretrained`.
    """
    _refuse_quantised(name, read_config(name))
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=dtype,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # `_refuse_parts` refuses them by name
    )
    model, info = loaded
    _refuse_parts(name, model, info)
    refuse_not_finite(name, model.named_parameters())
    refuse_uncached(model)
    return model


def _refuse_quantised(name: str, config: Any) -> None:
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return
    kind = settings.get("quant_method") if isinstance(settings, Mapping) else getattr(settings, "quant_method", "")
    raise UserError(
        f"the weights of {name!r} are quantised ({getattr(kind, 'value', kind)}), which is not supported",
        "use the original model in bfloat16 or float32, or a GGUF file of it",
    )


def _refuse_parts(name: str, model: Any, info: Mapping[str, Any]) -> None:
    shapes = {key: (tuple(file), tuple(expected)) for key, file, expected in info["mismatched_keys"]}
    if shapes:
        key, (file, expected) = min(shapes.items())
        problem = f"of another shape than in config.json: {key} is {file}, not {expected}"
        raise UserError(f"{name}: {_list_weights(shapes)} {problem}", MISMATCH_CURE)
    if missing := info["missing_keys"]:
        raise UserError(f"{name}: {_list_weights(missing)} missing from its files", MISMATCH_CURE)
    unexpected = info["unexpected_keys"]
    shared_names = {_without_numbers(key) for key, _ in model.named_parameters()}
    if layers := [key for key in unexpected if _without_numbers(key) in shared_names]:
        raise UserError(f"{name}: {_list_weights(layers)} of layers that config.json does not have", MISMATCH_CURE)
    if unexpected:
        warn_once(f"{name}: {_list_weights(unexpected)} unknown to this type of model and ignored")


def _list_weights(names: Iterable[str]) -> str:
    ordered = sorted(names)
    listing = ", ".join(ordered[:LISTED]) + ", ..." * (len(ordered) > LISTED)
    return f"{len(ordered)} weight{'s' * (len(ordered) > 1)} ({listing}) {'are' if len(ordered) > 1 else 'is'}"


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def refuse_not_finite(name: str, named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise a `UserError` that names the non-finite weights, if any."""
    weights = ((key, w.detach()) for key, w in named if w.numel() and w.is_floating_point() and not w.is_meta)
    wrong = [key for key, weight in weights if not all(edge.isfinite() for edge in torch.aminmax(weight))]
    if wrong:
        cure = "training diverged or the file is damaged: use an earlier checkpoint, or download it again"
        raise UserError(f"{name}: {_list_weights(wrong)} not finite", cure)


def refuse_other_vocabulary(name: str, tokenizer: Any, model: Any) -> None:
    """Raise a `UserError` if the tokenizer has tokens that the model does not embed.

    A special token is harmless if the template never writes it and it ends no turn. (transformers
    adds such a token to the tokenizers of GGUF files.)
    """
    size = model.get_input_embeddings().weight.shape[0]
    special = set(tokenizer.all_special_ids) | {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    template = str(tokenizer.chat_template)
    start = {tokenizer.bos_token_id} if "bos_token" in template else set()
    needed = {tokenizer.eos_token_id, tokenizer.pad_token_id} | start
    unknown = [
        token
        for token, index in tokenizer.get_vocab().items()
        if index >= size and (index not in special or index in needed or token in template)
    ]
    if unknown:
        listing = ", ".join(map(repr, sorted(unknown)))[:80]
        problem = f"{name}: the model embeds {size} of the tokenizer's {len(tokenizer)} tokens, without {listing}"
        raise UserError(problem, "use the model's own tokenizer files, or call model.resize_token_embeddings")


def load_head(head: nn.Module, file: Path) -> None:
    """Load a head's weights from its file.

    Raises:
        UserError: the file is damaged, of another shape or not finite.
    """
    try:
        weights = load_file(str(file))
    except SafetensorError as error:
        raise UserError(f"{file} is damaged: {first_line(error)}", "copy it from the run again") from error
    refuse_not_finite(str(file), weights.items())
    try:
        head.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{file} does not fit its model", "use the model and the head of the same run") from error
