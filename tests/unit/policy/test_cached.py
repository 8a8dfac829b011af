"""Models that do not see their past through a cache of keys and values are refused when they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_halves import MODELS, make
from transformers import AutoModelForCausalLM, MambaConfig, PreTrainedTokenizerFast, RwkvConfig

from text2grad.errors import UserError
from text2grad.policy.forward.cache import refuse_uncached
from text2grad.policy.load import add_lora, load_frozen, load_policy
from text2grad.policy.settings import LoraSettings, PolicySettings

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}


def test_models_with_attention_are_accepted() -> None:
    for name in MODELS:
        refuse_uncached(make(name))
    refuse_uncached(add_lora(make("llama"), LoraSettings(r=2)))


@pytest.mark.parametrize("load", [load_policy, load_frozen])
@pytest.mark.parametrize(
    "config", [MambaConfig(**SMALL, state_size=8), RwkvConfig(**SMALL, attention_hidden_size=32)]
)
def test_a_state_space_model_is_refused_when_it_is_loaded(
    load: Any, config: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    torch.manual_seed(0)
    config.vocab_size = len(tokenizer)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=config.model_type):
        load(PolicySettings(model=str(tmp_path)))
