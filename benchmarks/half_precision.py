"""What bfloat16 does to the two smallest numbers of a step: the ratio at unchanged weights, and a small KL.

A model samples answers; nothing is trained. `ratio_change` is the mean of |exp(logp - old_logp) - 1|, and `beyond`
the share of tokens where it exceeds .2, between the passes that score a batch (in order of length) and those of an
update with four mini-batches; `equal_passes` is the same between two runs of the update's passes. Then the adapters
are moved at random, and `kl` is the mean KL to the reference, nats a token: `true` with every weight in float32,
`read` in bfloat16, and `k1_sd` the standard deviation over tokens of the error of the estimator k1. Each as it is,
and with a float32 head on the bfloat16 hidden states.

    python benchmarks/half_precision.py --model FOLDER [--answers 16] [--tokens 32] [--scale 0.012]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from text2grad.feedback import Message
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import generate
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.rl.vocabulary import KLKind

ASKED = (
    "What is the capital of France?",
    "Explain in one sentence what a stack is.",
    "Write a haiku about rain.",
    "Why is the sky blue?",
)
ROWS, MINI_BATCHES = 8, 4

Passes = Sequence[Tensor]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", required=True)
    options.add_argument("--answers", type=int, default=16)
    options.add_argument("--tokens", type=int, default=32)
    options.add_argument("--scale", type=float, default=0.012, help="standard deviation of the moved adapters")
    chosen = options.parse_args()
    policy, exact = adapted(chosen.model, "bfloat16"), adapted(chosen.model, "float32")
    turns = [(Message(role="user", content=ASKED[n % len(ASKED)]),) for n in range(chosen.answers)]
    prompts = [encode_prompt(policy.tokenizer, turn) for turn in turns]
    torch.manual_seed(0)
    settings = GenerationSettings(max_new_tokens=chosen.tokens, batch_size=chosen.answers)
    batch = policy.pack(prompts, [sample.ids for sample in generate(policy, prompts, settings)])
    scoring, updating = passes(batch)
    found: dict[str, Any] = {}
    for name, float_head in (("as_it_is", False), ("float32_head", True)):
        with head(policy, float_head):
            old, new = read(policy, batch, scoring), read(policy, batch, updating)
            again = read(policy, batch, updating)
        found[name] = {**between(old, new), "equal_passes": between(new, again)["ratio_change"]}
        print(name, found[name], flush=True)
    move(policy, exact, chosen.scale)
    true, sampled = read(exact, batch, scoring, "full"), read(exact, batch, scoring, "k1")
    found["kl"] = {"true": float(true.mean())}
    for name, float_head in (("as_it_is", False), ("float32_head", True)):
        with head(policy, float_head):
            full, k1 = read(policy, batch, scoring, "full"), read(policy, batch, scoring, "k1")
        error = k1 - sampled
        found["kl"][name] = {
            "read": float(full.mean()),
            "k1_error": float(error.mean()),
            "k1_sd": float(error.std()),
        }
    print(json.dumps({**found, "tokens": len(true)}))


def adapted(model: str, dtype: Any) -> Policy:
    policy = load_policy(PolicySettings(model=model, dtype=dtype, device="cpu", lora=LoraSettings(dropout=0.0)))
    policy.freeze_reference()
    return policy.eval()


def passes(batch: TokenBatch) -> tuple[Passes, Passes]:
    """The rows of each pass: of scoring, and of an update's shuffled mini-batches."""
    rows = torch.arange(len(batch.mask))
    shuffled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    parts = [batch.passes(index, len(index))[0] for index in shuffled.tensor_split(MINI_BATCHES)]
    return batch.passes(rows, ROWS), [rows for part in parts for rows in part.split(ROWS)]


def read(policy: Policy, batch: TokenBatch, groups: Passes, kl: KLKind | None = None) -> Tensor:
    """(N,) log-probabilities of the response tokens, or their KL."""
    found = torch.zeros(batch.mask.shape)
    with policy.evaluating():
        for rows in groups:
            part = batch.rows(rows).trimmed()
            output = policy(part, kl=kl, valued=False)
            column = output.kl if kl else output.logp
            assert column is not None
            found[rows, : part.width] = column
    return found[batch.mask]


def between(old: Tensor, new: Tensor) -> dict[str, float]:
    change = ((new - old).exp() - 1).abs()
    return {"ratio_change": float(change.mean()), "beyond": float((change > 0.2).float().mean())}


@contextmanager
def head(policy: Policy, in_float32: bool) -> Iterator[None]:
    """The output layer multiplies in float32 what the trunk wrote in bfloat16."""
    layer = policy.model.get_output_embeddings()
    weight = layer.weight.detach().float()
    if in_float32:
        layer.forward = lambda states: linear(states.float(), weight)
    try:
        yield
    finally:
        vars(layer).pop("forward", None)


def move(policy: Policy, exact: Policy, scale: float) -> None:
    """Random adapters, and in `exact` every weight as `policy` has it."""
    torch.manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, scale)
    own = dict(policy.model.named_parameters())
    for name, parameter in exact.model.named_parameters():
        parameter.data.copy_(own[name].data)


if __name__ == "__main__":
    main()
