"""Policies on disk: loading one from a hub name or a folder, and writing it. Safetensors and JSON only."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from text2grad.errors import UserError
from text2grad.policy.cpu import warn_of_slow_dtype
from text2grad.policy.encode import load_tokenizer
from text2grad.policy.gguf import local_model
from text2grad.policy.model import POLICY_ADAPTER, Policy
from text2grad.policy.settings import LoraSettings, PolicySettings

VALUE_FILE = "value_head.safetensors"
VALUE_TRUNK = "value_trunk"
ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"


def load_policy(settings: PolicySettings) -> Policy:
    """Load a policy from a hub name or a folder written by `write_policy` or `save_pretrained`.

    A folder that holds an adapter is merged into its base first, so that a new adapter starts from there and
    the reference (adapters off) is what was loaded.

    Raises:
        UserError: the folder or name has no model or tokenizer, or the device does not exist.
    """
    device = _choose_device(settings.device)
    tokenizer = load_tokenizer(settings.model, settings.chat_template)
    model = _load_model(settings.model, settings.dtype)
    warn_of_slow_dtype(model.dtype, device)
    if settings.lora is not None:
        model = add_lora(model, settings.lora)
    policy = Policy(model.to(device), tokenizer, settings.value_head)
    policy.base_is_merged = (Path(settings.model) / ADAPTER_CONFIG).is_file()
    saved, trunk = Path(settings.model) / VALUE_FILE, Path(settings.model) / VALUE_TRUNK
    if saved.is_file():
        policy.value_head.load_state_dict(load_file(str(saved)))
    if policy.value_trunk is not None and trunk.is_dir():
        own = _load_model(str(trunk), settings.dtype)
        policy.value_trunk = (add_lora(own, settings.lora) if settings.lora else own).to(device)
    return policy.eval()


def _load_model(name: str, dtype: str) -> Any:
    """The model of a folder or hub name, adapters merged. Pickled weights are refused: they can run code."""
    name = local_model(name)
    folder = Path(name)
    adapted = (folder / ADAPTER_CONFIG).is_file()
    weights = ADAPTER_FILE if adapted else "model.safetensors"
    if folder.is_dir() and any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise UserError(f"the weights in {name!r} are pickled, not {weights}", "convert them to safetensors")
    try:
        if adapted:
            return _merge_adapter(folder, dtype)
        AutoConfig.from_pretrained(name, trust_remote_code=False)
        return AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(f"no model in {name!r}: {reason}", "give a model folder or a hub name") from error


def _merge_adapter(folder: Path, dtype: str) -> Any:
    if not (folder / ADAPTER_FILE).is_file():  # peft would look for a pickle instead
        raise OSError(f"no file named {ADAPTER_FILE}")
    base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    return PeftModel.from_pretrained(_load_model(base, dtype), str(folder)).merge_and_unload()


def add_lora(model: Any, settings: LoraSettings) -> Any:
    """Wrap a model in trainable low-rank adapters; the base weights are frozen.

    Raises:
        UserError: a target module is not in the model.
    """
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets),
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config, adapter_name=POLICY_ADAPTER)
    except ValueError as error:
        raise UserError(
            f"cannot add adapters: {error}", "set policy.lora.targets to modules of this model"
        ) from error


def _choose_device(name: str) -> torch.device:
    """`auto` is this process's CUDA device if there is one, else the CPU."""
    if name == "auto":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}", "policy.device is auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"no device {name!r} on this machine", "set policy.device to auto or cpu")
    return device


def write_policy(policy: Policy, folder: Path) -> None:
    """Write model or adapter, tokenizer, value head and the value function's own trunk if it has one.

    An adapter trained on top of a merged one is written merged, as a whole model; a value trunk always is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _save_model(_merged(policy.model) if policy.base_is_merged else policy.model, folder)
    if policy.value_trunk is not None:
        _merged(policy.value_trunk).save_pretrained(folder / VALUE_TRUNK, safe_serialization=True)
    policy.tokenizer.save_pretrained(folder)
    state = {name: tensor.contiguous() for name, tensor in policy.value_head.state_dict().items()}
    save_file(state, str(folder / VALUE_FILE))


def _save_model(model: Any, folder: Path) -> None:
    """A model, or the policy's adapter alone: peft writes a named one into a folder of that name."""
    if not isinstance(model, PeftModel):
        model.save_pretrained(folder, safe_serialization=True)
        return
    model.save_pretrained(
        str(folder),
        safe_serialization=True,
        selected_adapters=[POLICY_ADAPTER],
        save_embedding_layers=False,  # no tokens are added; peft would look for the base model to make sure
    )
    for path in (folder / POLICY_ADAPTER).iterdir():
        path.replace(folder / path.name)
    (folder / POLICY_ADAPTER).rmdir()


def _merged(model: Any) -> Any:
    """The model with its adapters merged into its weights; unchanged if it has none."""
    return copy.deepcopy(model).merge_and_unload() if isinstance(model, PeftModel) else model


def digest_of_weights(named: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over the names and bytes of weights, in this order."""
    digest = hashlib.sha256()
    for name, weight in named:
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
