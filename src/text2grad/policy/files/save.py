"""Write policies to folders: safetensors and JSON only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor

from text2grad.policy.model import POLICY_ADAPTER, Policy

HEADS: tuple[Literal["score_head", "span_head"], ...] = ("score_head", "span_head")
"""Heads that are saved with the model, as NAME.safetensors."""
VALUE_FILE = "value_head.safetensors"
VALUE_TRUNK = "value_trunk"


def write_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write the model or its adapter, the tokenizer, the heads and a separate value trunk.

    `weights` are the gathered weights, if the model is sharded (FSDP2, ZeRO-3).
    """
    folder.mkdir(parents=True, exist_ok=True)
    _save_model(policy.model, folder, weights)
    if policy.value_trunk is not None:
        _save_model(policy.value_trunk, folder / VALUE_TRUNK)
    policy.tokenizer.save_pretrained(folder)
    for name in ("value_head", *HEADS):
        if (head := getattr(policy, name)) is not None:
            weights = {key: value.contiguous() for key, value in head.state_dict().items()}
            save_file(weights, str(folder / f"{name}.safetensors"))
    make_readable(folder)


def head_files(folder: Path) -> dict[Literal["score_head", "span_head"], Path]:
    """Return the files of the heads saved in a folder, by name."""
    files = {name: folder / f"{name}.safetensors" for name in HEADS}
    return {name: file for name, file in files.items() if file.is_file()}


def make_readable(folder: Path) -> None:
    """Give the weights in a folder the default file mode; safetensors makes them private."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o666 & ~mask)


def _save_model(model: Any, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model, or the policy's adapter alone if it has one."""
    if not isinstance(model, PeftModel):
        model.save_pretrained(folder, safe_serialization=True, state_dict=weights)
        return
    model.save_pretrained(
        str(folder),
        safe_serialization=True,
        selected_adapters=[POLICY_ADAPTER],
        state_dict=weights,
        save_embedding_layers=False,  # no tokens were added; peft would load the base model to check
    )
    # peft writes an adapter into a folder of its name.
    for path in (folder / POLICY_ADAPTER).iterdir():
        path.replace(folder / path.name)
    (folder / POLICY_ADAPTER).rmdir()


def hash_weights(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of the names and bytes of weights, in this order."""
    digest = hashlib.sha256()
    for name, weight in named:
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
