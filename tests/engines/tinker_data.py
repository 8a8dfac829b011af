"""Datums of the Tinker client, as the cookbook assembles them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tinker
import torch


def real_datum(ids: Sequence[int], mask: Sequence[float]) -> Any:
    data = {"target_tokens": torch.tensor(ids[1:]), "mask": torch.tensor(mask[1:])}
    data |= dict.fromkeys(("advantages", "logprobs"), torch.zeros(len(ids) - 1))
    inputs = {name: tinker.TensorData.from_torch(value) for name, value in data.items()}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(ids[:-1])), loss_fn_inputs=inputs)
