"""Load policies from a hub name or a folder: safetensors and JSON only.

An adapter is kept separate from its base weights: a merged half-precision weight loses most of the
training (three quarters at a learning rate of 1e-5). It is merged only in `text2grad merge` and to
train all weights, and then in float32, one layer at a time, on the CPU.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from text2grad.errors import UserError, first_line
from text2grad.policy.files.gguf import is_gguf, local_model
from text2grad.policy.files.manifest import refuse_damaged
from text2grad.policy.files.save import VALUE_FILE, VALUE_TRUNK, head_files
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.files.weights import load_complete, load_head, refuse_not_finite, refuse_other_vocabulary
from text2grad.policy.heads.head import LABEL, SCORE, STEP, Head
from text2grad.policy.model import POLICY_ADAPTER, Policy
from text2grad.policy.settings import LoraSettings, PolicySettings

ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
BASE = "base_model_name_or_path"

_TOKEN_MATRICES = re.compile(r"(embed_tokens|lm_head|wte|embed_out)\.(?!.*lora_).*weight$")
"""Names of matrices with one row per token, in adapters that contain all of their weights."""


def load_policy(settings: PolicySettings) -> Policy:
    """Load a policy to train.

    The model is a hub name, or a folder written by `write_policy` or `save_pretrained`. With
    `settings.lora` a plain model gets a new adapter, and a loaded adapter is trained further, with
    a frozen copy as reference. Without it all weights are trained, and a loaded adapter is merged
    into them.

    Args:
        settings: the model, its adapter, dtype and device.

    Returns:
        The policy, ready for `train_supervised` and `train_ppo`.

    Raises:
        UserError: the model or its tokenizer is missing, its adapter differs from `settings.lora`,
            or the device does not exist.
    """
    device, folder = choose_device(settings.device), Path(settings.model)
    settings = settings.model_copy(update={"dtype": choose_dtype(settings.dtype, device)})
    tokenizer = load_tokenizer(settings.model, settings.chat_template)
    model, exact = _model_to_train("model", settings.model, settings)
    refuse_other_vocabulary(settings.model, tokenizer, model)
    trunk = None
    if settings.value_head == "separate" and (folder / VALUE_TRUNK).is_dir():
        trunk, exact_trunk = _model_to_train("value_trunk", str(folder / VALUE_TRUNK), settings)
        trunk, exact = trunk.to(device), exact | exact_trunk
    continued = settings.lora is not None and is_adapter(settings.model)
    policy = Policy(model.to(device), tokenizer, settings.value_head, trunk, continued)
    policy.exact = exact
    if (folder / VALUE_FILE).is_file():
        load_head(policy.value_head, folder / VALUE_FILE)
    return policy.eval()


def load_frozen(settings: PolicySettings) -> Policy:
    """Load a policy for inference, with its score or span head if it has one.

    The settings `lora` and `value_head` are ignored.

    Args:
        settings: the model and the device.

    Returns:
        The policy; its weights take no gradients.

    Raises:
        UserError: the model or its tokenizer is missing, or the device does not exist.
    """
    device = choose_device(settings.device)
    tokenizer = load_tokenizer(settings.model, settings.chat_template)
    model = load_model(settings.model, choose_dtype(settings.dtype, device))
    refuse_other_vocabulary(settings.model, tokenizer, model)
    policy = Policy(model.to(device), tokenizer)
    load_heads(policy, Path(settings.model))
    return policy.requires_grad_(False).eval()


def load_heads(policy: Policy, folder: Path) -> None:
    """Add the heads saved in a folder to a policy, frozen."""
    for name, file in head_files(folder).items():
        head = add_head(policy, name)
        load_head(head, file)
        head.requires_grad_(False)


def add_head(policy: Policy, name: Literal["score_head", "span_head", "label_head"], step: float = STEP) -> Head:
    """Add a head that scores answers or labels tokens, before the weights are sharded."""
    head = Head(policy.hidden_size, SCORE if name == "score_head" else LABEL, step).to(policy.device)
    setattr(policy, name, head)
    return head


def _model_to_train(part: str, name: str, settings: PolicySettings) -> tuple[Any, dict[str, Tensor]]:
    """Load a trainable model, and the float32 values of merged weights that were rounded.

    `part` is the policy's attribute for the model, which prefixes the names of the weights.
    """
    if not is_adapter(name):
        model = load_model(name, settings.dtype)
        return add_lora(model, settings.lora, base_model_name(name)) if settings.lora else model, {}
    if settings.lora:
        _refuse_other_shape(Path(name), settings.lora)
        return load_model(name, settings.dtype, settings.lora), {}
    model = load_model(name, "auto")
    dtype = getattr(torch, settings.dtype)
    exact = {}
    for layer_name, layer, _ in merge_layers(model):
        if dtype != torch.float32:
            exact[f"{part}.{layer_name}.weight"] = layer.weight.detach()
        layer.to(dtype)
    return cast_weights(model.unload(), dtype).requires_grad_(True), exact


def cast_weights(model: Any, dtype: torch.dtype) -> Any:
    """Cast the weights of a model in place; return it.

    `model.to(dtype)` would also round what is computed from its configuration, such as rotary
    frequencies, which transformers keeps in float32.
    """
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def is_adapter(name: str) -> bool:
    """Return True if a name is a folder with an adapter without its base weights."""
    return (Path(name) / ADAPTER_CONFIG).is_file()


def base_model_name(name: str) -> str:
    """Return the base model of an adapter, or the model itself.

    A converted GGUF model has the name in `policy.model`, not that of its folder in the cache.
    """
    if is_adapter(name):
        name = str(_adapter_config(Path(name))[BASE])
    fetched = is_gguf(name) and not Path(name).is_file()
    return str(Path(name).resolve()) if Path(name).exists() and not fetched else name


def _adapter_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if not config[BASE].strip():  # a folder of that name would be the current one
            raise ValueError("empty")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        cure = "put the model's name or folder there"
        raise UserError(f"{folder / ADAPTER_CONFIG} names no {BASE}", cure) from error
    return config


def load_model(name: str, dtype: str, lora: LoraSettings | None = None) -> Any:
    """Load the model of a folder or hub name; pickled weights are refused, as they can run code.

    `dtype` is a type of torch, or auto for that of the saved weights. With `lora` an adapter is
    trained, with its dropout; without, an adapter is frozen.

    Raises:
        UserError: the model is missing or damaged, or its adapter does not fit its base.
    """
    name = local_model(name)
    folder = Path(name)
    refuse_damaged(folder)
    weights = ADAPTER_FILE if is_adapter(name) else "model.safetensors"
    if folder.is_dir() and any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise UserError(f"the weights in {name!r} are pickled, not {weights}", "convert them to safetensors")
    try:
        if is_adapter(name):
            return _adapted_model(folder, dtype, lora)
        return load_complete(name, dtype)
    except SafetensorError as error:
        cure = "download it again; if a file has only a few lines, it is a Git LFS pointer: git lfs pull"
        raise UserError(f"no model in {name!r}: its weights are damaged: {first_line(error)}", cure) from error
    except (OSError, ValueError) as error:
        cure = "give a model folder or a hub name"
        raise UserError(f"no model in {name!r}: {first_line(error)}", cure) from error


def _adapted_model(folder: Path, dtype: str, lora: LoraSettings | None) -> Any:
    """Load an adapter on its base model."""
    if not (folder / ADAPTER_FILE).is_file():  # peft would look for a pickle instead
        raise OSError(f"no file named {ADAPTER_FILE}")
    base = base_model_name(str(folder))
    if Path(base).is_absolute() and not Path(base).exists():
        raise _wrong_base(folder, base, "the folder does not exist")
    model = load_model(base, dtype)
    _refuse_added_tokens(folder, base, model.get_input_embeddings().weight.shape[0])
    config = None
    if lora:
        config = LoraConfig.from_pretrained(str(folder))
        config.lora_dropout = lora.dropout  # not part of the weights, so it may change
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")  # peft would initialise them at random
        try:
            adapted = PeftModel.from_pretrained(
                model, str(folder), adapter_name=POLICY_ADAPTER, is_trainable=lora is not None, config=config
            )
        except (RuntimeError, UserWarning) as error:
            raise _wrong_base(folder, base, first_line(error)) from error
    with safe_open(str(folder / ADAPTER_FILE), "pt") as file:  # peft ignores weights unknown to the base
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    refuse_not_finite(str(folder / ADAPTER_FILE), saved.items())
    loaded = get_peft_model_state_dict(adapted, adapter_name=POLICY_ADAPTER, save_embedding_layers=False)
    if unused := sorted(saved.keys() - loaded.keys()):
        raise _wrong_base(folder, base, f"{len(unused)} of its weights do not exist there, such as {unused[0]}")
    return adapted


def _refuse_added_tokens(folder: Path, base: str, tokens: int) -> None:
    """Refuse an adapter that was trained with another vocabulary size than its base has."""
    with safe_open(str(folder / ADAPTER_FILE), "pt") as file:
        named = [name for name in file.keys() if _TOKEN_MATRICES.search(name)]  # noqa: SIM118
        sizes = {file.get_slice(name).get_shape()[0] for name in named}
    if others := sorted(sizes - {tokens}):
        problem = f"the adapter in {folder} was trained with {others[0]} tokens, but its base {base} has {tokens}"
        raise UserError(problem, "resize the base to that number, merge the adapter, and use the merged folder")


def _wrong_base(folder: Path, base: str, reason: str) -> UserError:
    cure = f"name the model it was trained on as {BASE} in {folder / ADAPTER_CONFIG}"
    return UserError(f"the adapter in {folder} does not fit its base {base}: {reason[:200]}", cure)


def _refuse_other_shape(folder: Path, lora: LoraSettings) -> None:
    """Refuse settings whose rank or layers differ from those of the adapter to continue."""
    config = _adapter_config(folder)
    if config.get("peft_type") != "LORA":
        problem = f"the adapter in {folder} is of type {config.get('peft_type')}; only LORA can be trained further"
        raise UserError(problem, f"text2grad merge {folder} --out NEW, and start from NEW")
    modules = config["target_modules"]
    targets = [modules] if isinstance(modules, str) else modules
    shapes = (config["r"], targets), (lora.r, targets if lora.targets is None else lora.targets)
    saved, requested = (f"r {r}, targets {' '.join(sorted(names))}" for r, names in shapes)
    if saved != requested:
        raise UserError(
            f"the adapter in {folder} has {saved}; the lora settings ask for {requested}",
            f"set lora to the adapter's values, or text2grad merge {folder} --out NEW, and start from NEW",
        )


def merge_layers(model: Any) -> Iterator[tuple[str, Any, Tensor]]:
    """Merge an adapter into its base weights, layer by layer, in float32.

    Yields the name of each layer, the merged layer in float32, and its previous weight. Afterwards
    `model.unload()` removes the adapter.

    Raises:
        UserError: the adapter changes weights that two layers share.
    """
    inner = model.get_base_model()
    shared = inner.config.get_text_config().tie_word_embeddings
    ends = (inner.get_input_embeddings(), inner.get_output_embeddings())
    if shared and any(isinstance(end, BaseTunerLayer) for end in ends):
        problem = "the adapter cannot be merged: it changes the output layer or embeddings, which share weights"
        raise UserError(problem, "leave them out of policy.lora.targets")
    for name, module in list(inner.named_modules()):
        if isinstance(module, BaseTunerLayer):
            layer: Any = module.get_base_layer().float()
            before = layer.weight.detach().clone()
            module.merge()
            yield name, layer, before


def add_lora(model: Any, settings: LoraSettings, base: str) -> Any:
    """Wrap a model, in place, in trainable low-rank adapters; the base weights are frozen.

    `base` is the name of the base model in the adapter's configuration.

    Raises:
        UserError: a target module is not in the model.
    """
    config = LoraConfig(
        r=settings.r,
        lora_alpha=2 * settings.r,
        lora_dropout=settings.dropout,
        target_modules=linear_layers(model) if settings.targets is None else list(settings.targets),
        task_type="CAUSAL_LM",
    )
    try:
        adapted = get_peft_model(model, config, adapter_name=POLICY_ADAPTER)
    except ValueError as error:
        cure = "set policy.lora.targets to modules of this model"
        raise UserError(f"cannot add adapters: {error}", cure) from error
    config.base_model_name_or_path = base
    return adapted


def linear_layers(model: Any) -> list[str]:
    """Return the distinct names of all linear layers except the output layer."""
    last = model.get_output_embeddings()
    layers = ((name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear | Conv1D))
    return sorted({name.rpartition(".")[2] for name, part in layers if part is not last})


def choose_device(name: str) -> torch.device:
    """Return a device; `auto` is this process's CUDA device if available, else the CPU.

    Raises:
        UserError: the device does not exist.
    """
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


def choose_dtype(name: str, device: torch.device) -> str:
    """Return a type of weights; `auto` is bfloat16 if the device computes in it, else float32.

    A CPU without instructions for bfloat16 emulates it, ten times as slowly as float32.
    """
    if name != "auto":
        return name
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_mkldnn = device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        native = has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if native else "float32"
