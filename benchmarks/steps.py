"""Time one PPO step on a random policy by phase, for benchmarks/step_cost.py and gpu_train.py.

There are two kinds of feedback, both from a reward model of the policy's size (with the policy's
weights, since only the cost counts). `text2grad` writes a critique after prompt and response, and
spans become token rewards; `scalar` reads prompt and response once. Judgements are random, so that
a random model can be trained on them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from responses import code, prose
from text2grad.align import Aligned, Credit
from text2grad.feedback import Critique, Example, Message
from text2grad.policy.batch import pack
from text2grad.policy.encode import stop_ids
from text2grad.policy.generate import Sample, generate
from text2grad.policy.load import add_lora
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings
from text2grad.policy.tiny import make_tokenizer
from text2grad.train.optimizers import Optimizers, make_optimizers
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import Responses, build_rollout, measure_policy
from text2grad.train.update import update

PHASES = ("generate", "critique", "score", "update")
FEEDBACK = ("scalar", "text2grad")
KL_COEFFICIENT = 0.05

Clock = Callable[[], float]
"""Seconds since some moment, with everything done that was asked for before."""


@dataclass(frozen=True)
class Shape:
    """A Llama."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    key_value_heads: int = 0

    def config(self, context: int) -> LlamaConfig:
        """Return the transformers configuration with room for `context` tokens."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.feed_forward,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads or self.heads,
            max_position_embeddings=context,
            bos_token_id=None,
            eos_token_id=3,
            pad_token_id=0,
        )


@dataclass(frozen=True)
class Load:
    """A step: the number and length of responses and critiques, epochs, and rows per pass."""

    responses: int = 16
    prompt: int = 32
    tokens: int = 64
    critique: int = 64
    epochs: int = 4
    rows: int = 16

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that is read."""
        return self.prompt + self.tokens + self.critique


def random_policy(shape: Shape, load: Load, lora: bool, device: torch.device) -> Policy:
    """Return a random policy in bfloat16 on a GPU, float32 on a CPU, with a small tokenizer."""
    tokenizer = make_tokenizer([*prose(20), *code(20)], vocabulary=500)
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(shape.config(load.context))
    model = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    if lora:
        model = add_lora(model, LoraSettings(), base="random")
    policy = Policy(model.to(device), tokenizer).eval()
    policy.freeze_reference()
    return policy


class Stepper:
    """Steps of one policy under one load."""

    def __init__(self, policy: Policy, load: Load, clock: Clock) -> None:
        self.policy, self.load, self.clock = policy, load, clock
        self.settings = PPOSettings(
            advantage="gae",
            rollouts=load.responses,
            epochs=load.epochs,
            micro_batch_size=load.rows,
            lr=1e-6,
            value_warmup=0,
        )
        self.optimizers: Optimizers = make_optimizers(policy, self.settings)
        self.draw = np.random.default_rng(0)
        self.stops = torch.tensor(stop_ids(policy.tokenizer), device=policy.device)

    def step(self, feedback: str) -> dict[str, float]:
        """Return seconds of each phase of one step with this feedback."""
        times = [self.clock()]
        prompts = self.draw.integers(300, 500, (self.load.responses, self.load.prompt)).tolist()
        samples = self._write(prompts, self.load.tokens)
        times.append(self.clock())
        sequences = [prompt + sample.ids for prompt, sample in zip(prompts, samples, strict=True)]
        if feedback == "text2grad":
            self._write(sequences, self.load.critique)
        else:
            self._forward(sequences)
        responses = self._make_responses(samples, feedback)
        times.append(self.clock())
        batch = pack(prompts, [sample.ids for sample in samples], 0, self.policy.device)
        measured = measure_policy(self.policy, batch, self.settings, 1.0)
        rollout = build_rollout(batch, responses, measured, self.settings, KL_COEFFICIENT)
        times.append(self.clock())
        update(self.policy, rollout, self.optimizers, self.settings, 1.0, warming=False)
        times.append(self.clock())
        spans = (after - before for before, after in itertools.pairwise(times))
        return dict(zip(PHASES, spans, strict=True))

    def _write(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Sample]:
        """Write `tokens` tokens after each prompt; no answer ends early."""
        settings = GenerationSettings(max_new_tokens=tokens, batch_size=self.load.responses)

        def never_ends(rows: Sequence[int], last: Sequence[int], scores: Tensor) -> Tensor:
            return scores.index_fill(1, self.stops, float("-inf"))

        return generate(self.policy, prompts, settings, never_ends)

    def _forward(self, sequences: Sequence[list[int]]) -> Tensor:
        batch = pack([ids[:-1] for ids in sequences], [ids[-1:] for ids in sequences], 0, self.policy.device)
        with self.policy.evaluating():
            return torch.cat(
                [
                    self.policy(batch.rows(slice(n, n + self.load.rows))).last_value
                    for n in range(0, len(sequences), self.load.rows)
                ]
            )

    def _make_responses(self, samples: list[Sample], feedback: str) -> Responses:
        example = Example(id="-", prompt=(Message(role="user", content="-"),))
        none = np.zeros(self.load.tokens, dtype=np.int64)
        aligned = Aligned("", none, none, none, none)
        credits = []
        for _ in samples:
            delta = self.draw.integers(-1, 2, self.load.tokens).astype(np.float32)
            if feedback == "scalar":
                delta[:-1] = 0
            credits.append(Credit(delta))
        count = len(samples)
        critiques = [Critique(text="", score=0.0)] * count
        labels = [np.zeros(self.load.tokens, dtype=np.int8)] * count
        return Responses([example] * count, samples, [aligned] * count, critiques, credits, labels)
