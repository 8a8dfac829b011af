"""Models that do not see their past through the cache are refused before they are sampled from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_halves import MODELS, SHAPE, make
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    PreTrainedTokenizerFast,
    RwkvConfig,
)

from text2grad.errors import UserError
from text2grad.policy.forward import trial as cached
from text2grad.policy.forward.trial import refuse_uncached
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings

SMALL: dict[str, Any] = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
CONFIGS = {
    "mamba": MambaConfig(**SMALL, state_size=8),
    "rwkv": RwkvConfig(**SMALL, attention_hidden_size=32),
}
TYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_that_ignores_the_cache_is_refused_by_its_type(
    name: str, dtype: torch.dtype, tokenizer: PreTrainedTokenizerFast
) -> None:
    torch.manual_seed(0)
    policy = Policy(AutoModelForCausalLM.from_config(CONFIGS[name]).to(dtype), tokenizer)
    with pytest.raises(UserError, match=rf"'{name}' ignores the cache.*\(take a model with attention"):
        refuse_uncached(policy)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_sees_its_past_is_not(
    name: str, dtype: torch.dtype, tokenizer: PreTrainedTokenizerFast
) -> None:
    policy = Policy(make(name).to(dtype), tokenizer).train()
    state = torch.get_rng_state()
    refuse_uncached(policy)
    assert policy.training and torch.equal(state, torch.get_rng_state())


class Odd(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama with one mistake in how it reads behind a cache."""

    mistake = ""

    def forward(self, **inputs: Any) -> Any:
        if self.mistake == "refuses" and "past_key_values" in inputs:
            raise TypeError("forward() got an unexpected keyword argument 'past_key_values'\nand more")
        if self.mistake in inputs:
            inputs[self.mistake] = None
        return super().forward(**inputs)


@pytest.mark.parametrize("dtype", TYPES)
def test_attention_without_its_cache_is_found(dtype: torch.dtype, tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    model = Odd(LlamaConfig(vocab_size=300, **SHAPE, initializer_range=0.3)).to(dtype)
    policy = Policy(model, tokenizer)
    refuse_uncached(policy)
    model.mistake = "past_key_values"
    with pytest.raises(UserError, match="'llama' ignores the cache"):
        refuse_uncached(policy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*MODELS, *CONFIGS])
def test_what_half_precision_is_too_coarse_for_is_tried_in_float32(
    name: str, dtype: torch.dtype, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No distance is allowed in half precision: as if every number of the model were rounded too much."""
    torch.manual_seed(0)
    model = make(name) if name in MODELS else AutoModelForCausalLM.from_config(CONFIGS[name])
    policy = Policy(model.to(dtype), tokenizer)
    before = {key: weight.clone() for key, weight in policy.state_dict().items()}
    compared: list[float] = []
    agree = cached._agree

    def too_coarse(policy: Policy, trial: cached.Trial, eps: float) -> bool:
        compared.append(eps)
        return eps < 1e-6 and agree(policy, trial, eps)

    monkeypatch.setattr(cached, "_agree", too_coarse)
    if name in MODELS:
        refuse_uncached(policy)
    else:
        with pytest.raises(UserError, match="ignores the cache"):
            refuse_uncached(policy)
    assert compared == [torch.finfo(dtype).eps, torch.finfo(torch.float32).eps]
    after = policy.state_dict()
    assert all(
        torch.equal(weight, after[key]) and weight.dtype == after[key].dtype for key, weight in before.items()
    )


def test_a_model_without_a_cache_is_one_line(tokenizer: PreTrainedTokenizerFast) -> None:
    model = Odd(LlamaConfig(vocab_size=300, **SHAPE))
    policy = Policy(model, tokenizer)
    model.mistake = "refuses"
    with pytest.raises(
        UserError, match=r"cannot be sampled with a cache: forward\(\) got .*'past_key_values' \(take"
    ):
        refuse_uncached(policy)


def test_weights_that_are_not_finite_are_not_the_caches_fault(tokenizer: PreTrainedTokenizerFast) -> None:
    policy = Policy(make("llama"), tokenizer)
    policy.model.lm_head.weight.data.fill_(torch.nan)
    refuse_uncached(policy)


def test_such_a_model_is_refused_when_it_is_loaded(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(MambaConfig(**{**SMALL, "vocab_size": len(tokenizer)})).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'mamba' ignores the cache"):
        load_policy(PolicySettings(model=str(tmp_path)))
