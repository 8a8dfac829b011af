"""A second adapter on a policy's base weights: one model is policy, reference and reward model.

The active adapter is a state of the model, so the two take turns: the second is active only while
its view is `evaluating`.
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


def beside(policy: Policy, folder: Path, name: str) -> Policy:
    """The adapter in `folder` as a policy of its own on the base weights of `policy`, which stays
    as it is.

    Raises:
        UserError: `policy` has no adapter, or `folder` has no adapter of this base model, or a
            damaged one.
    """
    if not isinstance(policy.model, PeftModel):
        raise UserError("nothing can share the base weights of a policy that trains them", "set policy.lora")
    refuse_damaged(folder)
    _refuse_other_base(policy, folder)
    try:
        policy.model.load_adapter(str(folder), name, is_trainable=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"the adapter in {folder} does not fit: {first_line(error)}", "train it again") from error
    policy.model.eval()
    view = copy.copy(policy)  # shares the modules
    view._modules = dict(policy._modules)  # but for a head of its own
    view.adapter = name
    load_heads(view, folder)
    return view


def _refuse_other_base(policy: Policy, folder: Path) -> None:
    """The adapter must have been trained on the very weights that it is to be used on."""
    missing = [name for name in (ADAPTER_CONFIG, ADAPTER_FILE) if not (folder / name).is_file()]
    if missing:
        cure = "train it with reward_model.shared true, or set that to false"
        raise UserError(f"no adapter in {folder}: it lacks {missing[0]}", cure)
    noted = folder / BASE_DIGEST
    if not noted.is_file() or noted.read_text(encoding="utf-8").strip() != digest_of_base(policy.model):
        base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise UserError(
            f"the adapter in {folder} was trained on another base model ({base})",
            "text2grad train-reward --restart, or reward_model.shared false",
        )


def digest_of_base(model: Any) -> str:
    """SHA-256 over a model's weights without its adapters."""
    named = model.named_parameters()
    return hash_weights((name.replace(".base_layer", ""), p) for name, p in named if "lora_" not in name)
