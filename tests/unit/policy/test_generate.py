"""Sampling: our loop against Hugging Face's `generate`, on caches of several kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    cache_utils,
)

from text2grad.chat import Completion
from text2grad.feedback import Message
from text2grad.policy import generate as generating
from text2grad.policy import local_chat
from text2grad.policy.encode import stop_ids
from text2grad.policy.forward import cache as caching
from text2grad.policy.forward.cache import GrowingLayer, can_drop_rows, make_cache
from text2grad.policy.generate import generate
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "initializer_range": 0.6,  # large weights: an untrained model does not repeat itself
}
MODELS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "full attention": (LlamaConfig, LlamaForCausalLM, {}),
    "sliding window": (MistralConfig, MistralForCausalLM, {"sliding_window": 8}),
    "convolution and attention": (Lfm2Config, Lfm2ForCausalLM, {"layer_types": ["conv", "full_attention"]}),
}
LONG = 40
GREEDY = GenerationSettings(max_new_tokens=LONG, temperature=0.0, batch_size=16)
PROMPTS = [[5 + (row * 7 + place) % 200 for place in range(1 + row % 6)] for row in range(12)]

Make = Callable[[str], Policy]


@pytest.fixture(scope="module")
def make(tokenizer: PreTrainedTokenizerFast) -> Make:
    """A random model that ends its answers at all lengths, a third of them never."""

    def made(kind: str) -> Policy:
        config_class, model_class, more = MODELS[kind]
        config = config_class(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZES, **more)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = model_class(config).eval()
        with torch.no_grad():
            model.lm_head.weight[stop_ids(tokenizer)[0]].mul_(2.5)
        return Policy(model, tokenizer)

    return made


def hugging_face(policy: Policy, prompt: list[int]) -> list[int]:
    """The oracle: one prompt at a time, no padding."""
    stops = stop_ids(policy.tokenizer)
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=LONG, do_sample=False, eos_token_id=stops, pad_token_id=policy.tokenizer.pad_token_id
    )
    with torch.no_grad():
        whole = policy.model.generate(input_ids=torch.tensor([prompt]), generation_config=config)
    return [int(token) for token in whole[0, len(prompt) :]]


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_answers_are_those_of_hugging_face(make: Make, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "SPARE", 8)
    policy = make(kind)
    told: list[int] = []
    in_batches = GREEDY.model_copy(update={"batch_size": 5})
    ours = [sample.ids for sample in generate(policy, PROMPTS, in_batches, progress=told.append)]
    assert told == [5, 10, 12]
    assert ours == [hugging_face(policy, prompt) for prompt in PROMPTS]
    lengths = {len(ids) for ids in ours}
    assert len(lengths) > 3, "answers of many lengths, so that rows leave the batch"
    assert max(lengths) > 24, "and some for which the cache grows more than once"


def test_only_layers_of_full_attention_are_ours_and_rows_of_a_state_stay(make: Make) -> None:
    caches = {kind: make_cache(make(kind).model) for kind in MODELS}
    ours = {kind: [isinstance(layer, GrowingLayer) for layer in cache.layers] for kind, cache in caches.items()}
    assert ours["full attention"] == [True, True] and ours["sliding window"] == [False, False]
    assert ours["convolution and attention"][1]
    assert [kind for kind, cache in caches.items() if not can_drop_rows(cache)] == ["convolution and attention"]
    both = caches["full attention"]
    both.layers = [cache_utils.LinearAttentionAndFullAttentionLayer()]
    assert not can_drop_rows(both), "it selects rows of the keys alone"


def test_sampled_tokens_have_the_probabilities_they_are_scored_with(make: Make) -> None:
    policy = make("full attention")
    settings = GenerationSettings(max_new_tokens=1, temperature=0.7, batch_size=4000)
    torch.manual_seed(0)
    drawn = torch.tensor([sample.ids[0] for sample in generate(policy, [PROMPTS[3]] * 4000, settings)])
    with torch.no_grad():
        expected = (policy.model(torch.tensor([PROMPTS[3]])).logits[0, -1] / 0.7).softmax(dim=-1)
    found = torch.bincount(drawn, minlength=len(expected)) / 4000
    noise = 4 * (expected * (1 - expected) / 4000).sqrt() + 1e-3
    assert bool(((found - expected).abs() < noise).all())


def test_greedy_answers_to_equal_questions_are_generated_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counting(policy: Policy, prompts: Any, *rest: Any, **named: Any) -> Any:
        asked.append(len(prompts))
        return generate(policy, prompts, *rest, **named)

    monkeypatch.setattr(local_chat, "generate", counting)
    talks = [(Message(role="user", content=text),) for text in ("one", "two", "one", "one")]
    for temperature in (0.0, 1.0):
        settings = GenerationSettings(max_new_tokens=8, temperature=temperature)
        answers = LocalChat(make("full attention"), settings, "judge").complete(talks)
        assert all(isinstance(answer, Completion) for answer in answers)
        assert (answers[0] == answers[2] == answers[3]) is (temperature == 0) and answers[0] != answers[1]
    assert asked == [2, 4]


def test_a_batch_that_takes_long_says_how_far_it_is(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "REPORT_SECONDS", -1.0)
    told: list[float] = []
    settings = GREEDY.model_copy(update={"batch_size": 8, "max_new_tokens": 4})
    generate(make("full attention"), PROMPTS, settings, progress=told.append)
    assert told == sorted(told) and told[-1] == len(PROMPTS)
    assert any(0 < count < 8 for count in told), "before the first batch has an answer that is whole"
