"""A model in two halves gives what the whole gives, whatever it does to its logits; else it is read
whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RwkvConfig,
)

from text2grad.errors import UserError
from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.forward.cache import refuse_uncached
from text2grad.policy.forward.reader import can_split, compute_logits, hidden_states
from text2grad.policy.load import add_lora, load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.rl import advantage as adv
from tiny_runs import SHAPE as TINY
from tiny_runs import whole_logits

SHAPE = {**TINY, "bos_token_id": None, "eos_token_id": None}
MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, SHAPE),
    "qwen2": (Qwen2Config, SHAPE),
    "qwen3": (Qwen3Config, SHAPE),
    "mistral": (MistralConfig, SHAPE),
    "gemma2": (Gemma2Config, {**SHAPE, "final_logit_softcapping": 0.5}),
    "granite": (GraniteConfig, {**SHAPE, "logits_scaling": 0.125}),
    "cohere": (CohereConfig, {**SHAPE, "logit_scale": 3.0}),
    "gpt2": (GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0}),
    "lfm2": (Lfm2Config, {**SHAPE, "layer_types": ["conv", "full_attention"]}),
    "mixtral": (MixtralConfig, {**SHAPE, "num_local_experts": 2}),
}
TARGETS = {"gpt2": ("lm_head",)}


def make(name: str, **settings: Any) -> Any:
    config, shape = MODELS[name]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(vocab_size=300, **shape, **settings)).eval()


def batch() -> TokenBatch:
    return pack([[5, 6, 7, 8], [9]], [[10, 11, 12], [13]], pad=0, device="cpu")


HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("name", "dtype"), [*zip(MODELS, itertools.cycle(HALF))])
def test_a_model_splits_and_its_halves_give_the_logits_of_the_whole(name: str, dtype: torch.dtype) -> None:
    model, given = make(name), batch()
    trunk, parameters = getattr(model, model.base_model_prefix), [name for name, _ in model.named_parameters()]
    assert can_split(model.train())
    assert model.training and getattr(model, model.base_model_prefix) is trunk, "asking changes nothing"
    assert [name for name, _ in model.named_parameters()] == parameters
    refuse_uncached(model.eval())
    with torch.no_grad():
        expected = whole_logits(model, given)
        inputs = {"attention_mask": given.attention_mask, "position_ids": given.position_ids}
        states = hidden_states(model, {"input_ids": given.input_ids, **inputs})[:, -given.width - 1 : -1]
        logits = compute_logits(model, states[given.mask])
    torch.testing.assert_close(logits, expected[given.mask])
    assert can_split(model.to(dtype))


@pytest.mark.parametrize("name", MODELS)
def test_adapters_everywhere_the_head_included(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Log-probabilities, KL to the adapters switched off, and gradients: as from all logits."""
    lora = LoraSettings(r=2, dropout=0.0, targets=TARGETS.get(name, ("q_proj", "v_proj", "lm_head")))
    policy = Policy(add_lora(make(name, tie_word_embeddings=False), lora, name), tokenizer).eval()
    policy.freeze_reference()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    given = batch()
    output = policy(given, 0.7, entropy=True, kl="full")
    logits = whole_logits(policy.model, given)
    with torch.no_grad(), policy.model.disable_adapter():
        reference = whole_logits(policy.model, given)
    expected = {
        "logp": adv.token_logps(logits, given.response_ids, 0.7),
        "entropy": adv.entropy(logits, 0.7),
        "kl": adv.kl_full(logits, reference, 0.7),
    }
    assert expected["kl"][given.mask].max() > 1e-3
    for column, values in expected.items():
        found = getattr(output, column)
        torch.testing.assert_close(found, values.masked_fill(~given.mask, 0.0), rtol=1e-4, atol=1e-5)
    ours = torch.autograd.grad(output.logp.sum(), policy.policy_parameters())
    theirs = torch.autograd.grad(expected["logp"][given.mask].sum(), policy.policy_parameters())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


class Copier(LlamaForCausalLM):  # type: ignore[misc]
    """Its logits depend on the token it has just read, not on the hidden state alone."""

    def forward(self, input_ids: Any = None, logits_to_keep: int = 0, **inputs: Any) -> Any:
        output = super().forward(input_ids=input_ids, logits_to_keep=logits_to_keep, **inputs)
        if input_ids is not None:
            read = torch.nn.functional.one_hot(input_ids, self.config.vocab_size)[:, -output.logits.shape[1] :]
            output.logits = output.logits + 2.0 * read
        return output


def test_a_model_that_does_not_split_is_read_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    trunkless = make("llama")
    trunkless.base_model_prefix = "no_such_trunk"
    model = Copier(LlamaConfig(vocab_size=300, **SHAPE)).eval()
    assert not can_split(model) and not can_split(trunkless)
    policy, given = Policy(model, tokenizer).eval(), batch()
    policy.freeze_reference()
    assert policy.reference is not None
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.5)
        output = policy(given, 0.7, entropy=True, kl="k3")
        logits, reference = (whole_logits(each, given) for each in (policy.model, policy.reference.model))
    logp = adv.token_logps(logits, given.response_ids, 0.7)
    kl = adv.kl_k3(logp, adv.token_logps(reference, given.response_ids, 0.7))
    torch.testing.assert_close(output.logp, logp.masked_fill(~given.mask, 0.0))
    torch.testing.assert_close(output.kl, kl.masked_fill(~given.mask, 0.0))
    assert output.entropy is not None and output.entropy[given.mask].min() > 0


SMALL: dict[str, Any] = {"vocab_size": 600, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}


@pytest.mark.parametrize(
    "config", [MambaConfig(**SMALL, state_size=8), RwkvConfig(**SMALL, attention_hidden_size=32)]
)
def test_a_state_space_model_is_refused_when_it_is_loaded(
    config: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """It does not see its past through a cache of keys and values."""
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for load in (load_policy, load_frozen):
        with pytest.raises(UserError, match=config.model_type):
            load(PolicySettings(model=str(tmp_path)))


class Forgetful(LlamaForCausalLM):  # type: ignore[misc]
    """Does something to its logits only where it reads tokens: its halves, which read states, do
    without."""

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def forward(self, input_ids: Any = None, **inputs: Any) -> Any:
        output = super().forward(input_ids=input_ids, **inputs)
        if input_ids is not None:
            output.logits = self.finish(output.logits)
        return output


FINISHES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a soft cap": lambda logits: 30.0 * torch.tanh(logits / 30.0),  # Gemma 2's
    "a scale": lambda logits: 1.1 * logits,
    "a bias": lambda logits: logits + torch.linspace(-1, 1, logits.shape[-1], dtype=logits.dtype),
    "one logit": lambda logits: logits.index_add(-1, torch.tensor([7]), torch.ones_like(logits[..., :1])),
}


@pytest.mark.parametrize(("finish", "dtype"), [*zip(FINISHES, itertools.cycle([*HALF, torch.float32]))])
def test_halves_that_forget_what_the_head_does_are_found_out(finish: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Forgetful(LlamaConfig(vocab_size=300, **SHAPE)).eval()
    model.lm_head.weight.data.mul_(60.0)  # logits up to 20, as a trained model has them
    assert can_split(model.to(dtype))
    model.finish = FINISHES[finish]
    assert not can_split(model)
