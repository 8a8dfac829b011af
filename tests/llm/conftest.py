"""A real language model: SmolLM2-135M-Instruct, Q4_1-dequantised, in bfloat16 where the processor
computes in it. `make test-llm` runs this folder.

Where its wheel cannot be had the tests are skipped; a wheel that is not the published one fails
them.
"""

from __future__ import annotations

import pytest
import torch

from text2grad.policy.files.gguf import local_model
from text2grad.policy.files.smollm2 import NotFetched
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings


@pytest.fixture(scope="session")
def folder() -> str:
    """The model's folder, fetched and converted on first use."""
    torch.set_num_threads(1)
    try:
        return local_model("smollm2")
    except NotFetched as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def policy(folder: str) -> Policy:
    """Shared by the tests of a process: do not train it."""
    return load_policy(PolicySettings(model=folder, dtype="auto", device="cpu"))
