"""Answers behind one copy of their prompt are read as they are read apart; models that cannot are
left alone."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

import tiny_runs
from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.forward.prefix import can_share, share_prefixes, share_prompts
from text2grad.policy.forward.reader import hidden_states
from text2grad.policy.generate import generate
from text2grad.policy.load import add_head
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings

SHAPE = {**tiny_runs.SHAPE, "initializer_range": 0.6}  # attention must matter
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.6}
SHARING: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, SHAPE),
    "qwen3": (Qwen3Config, SHAPE),
    "gpt2": (GPT2Config, GPT2),
}
APART: dict[str, tuple[type, dict[str, Any]]] = {
    "windows": (MistralConfig, {**SHAPE, "sliding_window": 4}),
    "gemma2": (Gemma2Config, SHAPE),
    "convolutions": (Lfm2Config, {**SHAPE, "layer_types": ["conv", "full_attention"]}),
    "alibi": (BloomConfig, {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.6}),
}
"""Models that read answers behind one copy of their prompt as they read them apart, and models that
do not."""
LONG, SHORT = [5, 6, 7, 8, 9, 10, 11, 12, 13], [14, 15, 16, 17, 18]
PROMPTS = [LONG, SHORT, LONG, LONG, SHORT]
ANSWERS = [[20, 21, 22], [23, 24], [25], [26, 27, 28, 29], [23, 30]]


def batch() -> TokenBatch:
    return pack(PROMPTS, ANSWERS, pad=0, device="cpu")


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    torch.manual_seed(0)
    model = copy.deepcopy(tiny_llama)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else None
    made = Policy(model, tokenizer)
    torch.nn.init.normal_(made.value_head.outer.weight)
    return made


def answered(policy: Policy) -> list[Tensor]:
    """Log-probabilities, values, last values, and the gradient of all in one row."""
    given = batch()
    output = policy(given)
    values = output.values.masked_fill(~given.mask, 0)
    weights = torch.randn(given.mask.shape, generator=torch.Generator().manual_seed(0))
    loss = ((output.logp + values) * weights).sum() + output.last_value.sum()
    gradients = torch.autograd.grad(loss, [*policy.trainable_parameters().values()])
    outputs = [column.detach() for column in (output.logp, values, output.last_value)]
    return [*outputs, torch.cat([gradient.flatten() for gradient in gradients])]


def test_shared_prompts_give_what_prompts_apart_give(policy: Policy) -> None:
    assert policy.reader.shares_prompts
    shared = answered(policy)
    policy.reader.shares_prompts = False
    apart = answered(policy)
    for found, expected in zip(shared, apart, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert float(torch.cosine_similarity(shared[3], apart[3], dim=0)) >= 0.9999


def test_a_prompt_is_read_once_and_answers_do_not_see_each_other() -> None:
    packed = share_prompts(batch(), torch.float32)
    assert packed is not None
    ids, mask = packed.inputs["input_ids"], packed.inputs["attention_mask"]
    assert ids[0].tolist() == [*LONG, 20, 21, 22, 25, 26, 27, 28, 29]
    assert ids[1, :9].tolist() == [*SHORT, 23, 24, 23, 30]
    assert packed.inputs["position_ids"][0].tolist() == [*range(9), 9, 10, 11, 9, 9, 10, 11, 12]
    assert (mask[0, 0, 14] == 0).nonzero().flatten().tolist() == [*range(9), 13, 14]
    assert packed.state_indices[:, 0].tolist() == [8, 17 + 4, 8, 8, 17 + 4]


def test_nothing_is_rearranged_where_that_saves_nothing_or_a_row_would_be_empty() -> None:
    assert share_prompts(pack([LONG, SHORT], [[20], [21]], pad=0, device="cpu"), torch.float32) is None
    alike = [(*LONG, last) for last in range(20, 30)]
    assert share_prefixes(alike) is not None
    one = (1, 2, 3, 4)
    for prompts in ([(1,), (2,)], [one], [one, (5, 6, 7, 8)], [(9,), (9, 1)], [(9,), *alike]):
        assert share_prefixes(prompts) is None, prompts


@pytest.mark.parametrize("name", [*SHARING, *APART])
def test_a_model_is_asked_whether_it_can_share(name: str) -> None:
    config, shape = (SHARING | APART)[name]
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config(vocab_size=300, **shape), dtype=dtype).eval()
        assert can_share(model, partial(hidden_states, model)) == (name in SHARING)


@pytest.mark.parametrize("ignored", ["position_ids", "attention_mask"])
def test_a_model_that_overlooks_positions_or_mask_is_refused(ignored: str, policy: Policy) -> None:
    def states(inputs: dict[str, Tensor]) -> Tensor:
        return hidden_states(policy.model, {name: x for name, x in inputs.items() if name != ignored})

    assert can_share(policy.model, partial(hidden_states, policy.model))
    assert not can_share(policy.model, states)


SAMPLED = GenerationSettings(max_new_tokens=6, temperature=1.0, batch_size=8)


def random_numbers(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, SAMPLED.max_new_tokens, generator=generator, dtype=torch.float64)


ALIKE = [
    [*LONG, 20],
    [*SHORT, 21, 22, 23, 24, 25],
    [*LONG, 23, 24, 25],
    LONG,
    [*LONG, 20],
    [*SHORT, 23],
    [*SHORT, 21],
]


def reads(policy: Policy) -> list[tuple[int, ...]]:
    """The shapes of all inputs of the policy's model from now on."""
    shapes: list[tuple[int, ...]] = []
    policy.model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    return shapes


@pytest.mark.parametrize("name", SHARING)
def test_sampling_reads_equal_prompts_and_common_beginnings_once(
    name: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    """A prompt that is the beginning of others, equal ones, rests of several lengths."""
    config, shape = SHARING[name]
    torch.manual_seed(0)
    policy = Policy(AutoModelForCausalLM.from_config(config(vocab_size=len(tokenizer), **shape)).eval(), tokenizer)
    torch.nn.init.normal_(add_head(policy, "score_head").map.weight, std=0.1)
    draws = random_numbers(7)
    apart = [
        generate(policy, [prompt], SAMPLED, draws=row[None])[0] for prompt, row in zip(ALIKE, draws, strict=True)
    ]
    assert len({round(each.verdict or 0.0, 3) for each in apart}) == 6
    shapes = reads(policy)
    shared = generate(policy, ALIKE, SAMPLED, draws=draws)
    assert shapes[:3] == [(2, len(LONG) - 1), (6, 5), (7, 1)]
    shapes.clear()
    policy.reader.shares_prompts = False
    assert [each.ids for each in generate(policy, ALIKE, SAMPLED, draws=draws)] == [each.ids for each in apart]
    assert shapes[:2] == [(6, len(ALIKE[2])), (7, 1)]
    assert [each.ids for each in shared] == [each.ids for each in apart]
    assert [each.verdict for each in shared] == pytest.approx([each.verdict for each in apart], abs=1e-4)
    assert len({tuple(each.ids) for each in generate(policy, [LONG] * 5, SAMPLED)}) == 5
