"""A second adapter on a policy's base weights, so that one model is policy and reward model.

A model has one active adapter. The second one is active only within the `evaluating` context of its
policy.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from peft import PeftModel

from text2grad.errors import UserError, first_line
from text2grad.policy.files.manifest import refuse_damaged
from text2grad.policy.files.save import hash_weights
from text2grad.policy.load import ADAPTER_CONFIG, ADAPTER_FILE, load_heads
from text2grad.policy.model import Policy

BASE_DIGEST = "base.sha256"


def load_second_adapter(policy: Policy, folder: Path, name: str) -> Policy:
    """Load the adapter in `folder` as a second policy on the base weights of `policy`.

    `name` is the second adapter's name in the model.

    Raises:
        UserError: `policy` has no adapter, or the adapter in `folder` is missing, damaged or was
            trained on another base model.
    """
    if not isinstance(policy.model, PeftModel):
        raise UserError("a policy that trains its base weights cannot share them", "set policy.lora")
    refuse_damaged(folder)
    _refuse_other_base(policy, folder)
    try:
        policy.model.load_adapter(str(folder), name, is_trainable=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"the adapter in {folder} does not fit: {first_line(error)}", "train it again") from error
    policy.model.eval()
    view = copy.copy(policy)  # shares the modules
    view._modules = dict(policy._modules)  # except the heads
    view.adapter = name
    load_heads(view, folder)
    return view


def _refuse_other_base(policy: Policy, folder: Path) -> None:
    """Refuse an adapter that was not trained on the base weights of `policy`."""
    missing = [name for name in (ADAPTER_CONFIG, ADAPTER_FILE) if not (folder / name).is_file()]
    if missing:
        cure = "train it with reward_model.shared true, or set that to false"
        raise UserError(f"no adapter in {folder}: {missing[0]} is missing", cure)
    digest_file = folder / BASE_DIGEST
    digest = digest_file.read_text(encoding="utf-8").strip() if digest_file.is_file() else ""
    if digest != hash_base_weights(policy.model):
        base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise UserError(
            f"the adapter in {folder} was trained on another base model ({base})",
            "text2grad train-reward --restart, or reward_model.shared false",
        )


def hash_base_weights(model: Any) -> str:
    """Return the SHA-256 of a model's weights without its adapters."""
    named = model.named_parameters()
    return hash_weights((name.replace(".base_layer", ""), p) for name, p in named if "lora_" not in name)
