"""Half precision's layers compute what PEFT's and torch's do: in float32, where it can be seen, to rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora.layer import Linear
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from text2grad.policy.forward import quick
from text2grad.policy.forward.quick import HalfLinear, attend, quicken
from text2grad.policy.load import add_lora
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings

TARGETS = ("q_proj", "v_proj", "down_proj")
IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])


def adapted(model: LlamaForCausalLM, dropout: float = 0.0) -> Any:
    """A model with adapters that already say something."""
    torch.manual_seed(0)
    made = add_lora(copy.deepcopy(model), LoraSettings(r=4, alpha=8, dropout=dropout, targets=TARGETS))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return made


def exchanged(model: Any) -> Any:
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = HalfLinear
    return model


def trained(model: Any) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of the trained weights in one row."""
    logits = model(IDS).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    loss = (logits.float().log_softmax(dim=-1) * weights).sum()
    gradients = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
    return logits.detach(), torch.cat([g.flatten() for g in gradients])


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double(), b.double(), dim=0))


@pytest.fixture
def every_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "HALF", (torch.float32, torch.bfloat16, torch.float16))


@pytest.mark.usefixtures("every_dtype")
def test_adapters_give_what_peft_gives(tiny_llama: LlamaForCausalLM) -> None:
    expected, gradient = trained(adapted(tiny_llama))
    found, other = trained(exchanged(adapted(tiny_llama)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other, gradient, rtol=1e-4, atol=1e-5)
    assert cosine(other, gradient) >= 0.9999


def test_in_bfloat16_the_gradient_is_as_near_to_the_true_one_as_with_peft(tiny_llama: LlamaForCausalLM) -> None:
    true = trained(adapted(tiny_llama))[1]

    def half() -> Any:
        model = adapted(tiny_llama)
        model.get_base_model().to(torch.bfloat16)
        for name, weight in model.named_parameters():
            weight.data = weight.data.float() if "lora_" in name else weight.data
        return model

    of_peft, of_ours = trained(half())[1], trained(exchanged(half()))[1]
    assert of_ours.dtype == torch.float32
    assert 1 - cosine(of_ours, true) <= 1.5 * (1 - cosine(of_peft, true)) + 1e-6


@pytest.mark.usefixtures("every_dtype")
def test_adapters_can_be_off_several_or_merged(tiny_llama: LlamaForCausalLM) -> None:
    expected, found = adapted(tiny_llama), exchanged(adapted(tiny_llama))
    with expected.disable_adapter(), found.disable_adapter():
        assert torch.equal(expected(IDS).logits, found(IDS).logits)
    for model in (expected, found):
        torch.manual_seed(3)
        config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        model.add_adapter("second", config)
        model.base_model.set_adapter(["policy", "second"])
    assert torch.equal(expected(IDS).logits, found(IDS).logits)
    for model in (expected, found):
        model.base_model.set_adapter("second")
    torch.testing.assert_close(found(IDS).logits, expected(IDS).logits)
    torch.testing.assert_close(found.merge_and_unload()(IDS).logits, expected(IDS).logits)


@pytest.mark.usefixtures("every_dtype")
def test_dropout_is_that_of_peft(tiny_llama: LlamaForCausalLM) -> None:
    answers = []
    for model in (adapted(tiny_llama, 0.5), exchanged(adapted(tiny_llama, 0.5))):
        torch.manual_seed(4)
        answers.append(model.train()(IDS).logits)
    torch.testing.assert_close(answers[1], answers[0])
    assert not torch.allclose(model.eval()(IDS).logits, answers[1])


@pytest.mark.usefixtures("every_dtype")
def test_a_copy_works_on_its_own_weights(tiny_llama: LlamaForCausalLM) -> None:
    model = exchanged(adapted(tiny_llama))
    copied, expected = copy.deepcopy(model), model(IDS).logits
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.zero_()
    assert torch.equal(copied(IDS).logits, expected)
    assert not torch.equal(model(IDS).logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_a_policy_in_half_precision_is_quickened(
    tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype
) -> None:
    model = add_lora(copy.deepcopy(tiny_llama).to(dtype), LoraSettings(targets=TARGETS))
    policy = Policy(model, tokenizer)
    assert isinstance(policy.model, PeftModel)
    half = dtype == torch.bfloat16
    assert any(type(module) is HalfLinear for module in model.modules()) == half
    assert (model.config._attn_implementation == quick.IN_FLOAT32) == half
    quicken(model)
    assert policy.reader.quick == half and policy.reader.linear == half


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_attention_is_not_left_to_cudnn(
    tiny_llama: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(LlamaForCausalLM, "device", property(lambda self: torch.device(device)))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        quicken(copy.deepcopy(tiny_llama).to(torch.bfloat16))
        assert torch.backends.cuda.cudnn_sdp_enabled() == (device == "cpu")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


MASKS = {
    "none": None,
    "boolean": torch.ones(7, 7, dtype=torch.bool).tril()[None, None] & (torch.arange(7) > 1),
    "added": torch.full((2, 1, 7, 7), -1e9).triu(1),
}


@pytest.mark.usefixtures("every_dtype")
@pytest.mark.parametrize("mask", MASKS)
def test_attention_gives_what_transformers_gives(mask: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 6, 7, 4), (2, 2, 7, 4), (2, 2, 7, 4))
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    module = torch.nn.Module()
    module.num_key_value_groups = 3  # type: ignore[assignment]
    read = slice(2, None) if mask == "boolean" else slice(None)  # what a row without any key says is not defined
    weights = torch.randn(2, 7, 6, 4, generator=generator)[:, read]

    def answered(attention: Callable[..., Any]) -> tuple[Tensor, ...]:
        found = attention(module, *inputs, MASKS[mask], scaling=0.3)[0][:, read]
        return found, *torch.autograd.grad((found * weights).sum(), inputs)

    for ours, theirs in zip(answered(attend), answered(sdpa_attention_forward), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("every_dtype")
@pytest.mark.parametrize("kind", ["none", "boolean", "added"])
def test_one_query_reads_the_keys_that_it_may(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, 1, 4, generator=generator)
    key, value = torch.randn(2, 2, 2, 5, 4, generator=generator)
    module = torch.nn.Module()
    module.num_key_value_groups = 3  # type: ignore[assignment]
    seen = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    seen[0, ..., :2] = kind == "none"
    mask = {"none": None, "boolean": seen, "added": torch.where(seen, 0, torch.finfo(torch.float32).min)}[kind]
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), attn_mask=seen, scale=0.3
    )
    torch.testing.assert_close(attend(module, query, key, value, mask, scaling=0.3)[0], expected.transpose(1, 2))


@pytest.mark.usefixtures("every_dtype")
def test_answers_behind_a_prompt_are_read_one_by_one_and_say_what_the_mask_says() -> None:
    """Forward and backward; one answer is empty, one row has padding, which nobody reads."""
    blocks = [[4, 3, 0, 5, 0], [2, 6, 1, 3]]
    owner = torch.tensor([[n for n, length in enumerate(row) for _ in range(length)] for row in blocks])
    seen = torch.ones(12, 12, dtype=torch.bool).tril() & (
        (owner[:, None] == 0) | (owner[:, None] == owner[:, :, None])
    )
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 6, 12, 4), (2, 2, 12, 4), (2, 2, 12, 4))
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    weights = torch.randn(2, 12, 6, 4, generator=generator)
    weights[1, 9:] = 0

    def answered(mask: torch.Tensor, **how: Any) -> tuple[torch.Tensor, ...]:
        found = attend(torch.nn.Module(), *inputs, mask, scaling=0.3, **how)[0]
        return found[0], found[1, :9], *torch.autograd.grad((found * weights).sum(), inputs)

    by_mask = answered(seen[:, None])
    for ours, theirs in zip(answered(torch.ones_like(seen[:, None]), blocks=blocks), by_mask, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
