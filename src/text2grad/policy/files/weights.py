"""Refuse files that do not hold the model: weights that are missing, left over, of another shape or
not finite.

Hugging Face initialises missing weights at random and drops those left over, with a table that is
lost in a log.
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

AGAIN = "get the whole model again, or correct config.json: the two do not belong together"
SHOWN = 3
"""Weights that a line names."""


def read_config(name: str) -> Any:
    """Return the configuration of a model.

    Raises:
        UserError: it is not one, or contradicts itself.
        OSError, ValueError: as of `from_pretrained`.
    """
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (StrictDataclassError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[-200:]
        raise UserError(f"config.json of {name!r} is wrong: {reason}", "get the model's own config.json") from error


def load_whole(name: str, dtype: str) -> Any:
    """Load the model of a folder or hub name; all its weights come from its files.

    Raises:
        UserError: its configuration is wrong, it is quantised, takes no cache, or a weight is
            missing, of another shape, not finite, or of a layer that the configuration does not
            have.
        OSError, ValueError, SafetensorError: as of `from_pretrained`.
    """
    _refuse_quantised(name, read_config(name))
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=dtype,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused here, by name
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
        f"the weights of {name!r} are quantised ({getattr(kind, 'value', kind)}), and are neither trained nor read",
        "take the model that it was made of, in bfloat16 or float32; or a GGUF file of it",
    )


def _refuse_parts(name: str, model: Any, info: Mapping[str, Any]) -> None:
    shapes = {key: (tuple(file), tuple(expected)) for key, file, expected in info["mismatched_keys"]}
    if shapes:
        key, (file, expected) = min(shapes.items())
        problem = f"of another shape than config.json says: {key} is {file}, not {expected}"
        raise UserError(f"{name}: {_listed(shapes)} {problem}", AGAIN)
    if missing := info["missing_keys"]:
        raise UserError(f"{name}: {_listed(missing)} missing in its files", AGAIN)
    unexpected = info["unexpected_keys"]
    shared_names = {_without_numbers(key) for key, _ in model.named_parameters()}
    if layers := [key for key in unexpected if _without_numbers(key) in shared_names]:
        raise UserError(f"{name}: {_listed(layers)} of layers that config.json does not have", AGAIN)
    if unexpected:
        warn_once(f"{name}: {_listed(unexpected)} not part of such a model, and not used")


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    shown = ", ".join(every[:SHOWN]) + ", ..." * (len(every) > SHOWN)
    return f"{len(every)} weight{'s' * (len(every) > 1)} ({shown}) {'are' if len(every) > 1 else 'is'}"


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def refuse_not_finite(name: str, named: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse weights with numbers that are not finite.

    Raises:
        UserError: names the model and the weights.
    """
    read = ((key, w.detach()) for key, w in named if w.numel() and w.is_floating_point() and not w.is_meta)
    wrong = [key for key, weight in read if not all(edge.isfinite() for edge in torch.aminmax(weight))]
    if wrong:
        cure = "the training that wrote it diverged, or the file is damaged: an earlier checkpoint, or get it again"
        raise UserError(f"{name}: {_listed(wrong)} not finite", cure)


def refuse_other_vocabulary(name: str, tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer with tokens that the model does not embed.

    A special token that the template never writes and that ends no turn does no harm. (transformers
    gives the tokenizer of a GGUF file such a one.)

    Raises:
        UserError: names tokens without an embedding.
    """
    known = model.get_input_embeddings().weight.shape[0]
    special = set(tokenizer.all_special_ids) | {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    written = str(tokenizer.chat_template)
    begins = {tokenizer.bos_token_id} if "bos_token" in written else set()
    needed = {tokenizer.eos_token_id, tokenizer.pad_token_id} | begins
    lost = [
        token
        for token, index in tokenizer.get_vocab().items()
        if index >= known and (index not in special or index in needed or token in written)
    ]
    if lost:
        shown = ", ".join(map(repr, sorted(lost)))[:80]
        problem = f"{name}: the tokenizer has {len(tokenizer)} tokens, the model embeds {known}: none of {shown}"
        raise UserError(problem, "take the model's own tokenizer files, or call model.resize_token_embeddings")


def load_head(head: nn.Module, file: Path) -> None:
    """Fill a head of ours from its file.

    Raises:
        UserError: the file is damaged or of a head of another shape, or its numbers are not finite.
    """
    try:
        weights = load_file(str(file))
    except SafetensorError as error:
        raise UserError(f"{file} is damaged: {first_line(error)}", "take it from the run again") from error
    refuse_not_finite(str(file), weights.items())
    try:
        head.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{file} does not fit the model beside it", "take the two from one run") from error
