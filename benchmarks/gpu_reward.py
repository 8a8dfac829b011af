"""Measure training and decoding of a reward model at scale, on random Llamas without downloads.

LoRA (the paper's Table 9) on `--batch` pairs of `--prompt` + `--target` tokens: tokens per second,
their share of the card's bf16 peak (at 4 FLOPs per weight and token: frozen weights get no
gradient), and peak memory. Then `--new` tokens of `--rows` critiques, plain and grounded.

    python benchmarks/gpu_reward.py [--sizes 1b 8b] [--peak 989e12]

Without `--sizes`: 1B and 8B on a GPU; on a CPU a model of the demo's size with fewer and shorter
pairs, as a check of the script that takes about a minute. The last line of stdout is one JSON
object with a part for each size.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from responses import code, prose
from text2grad.feedback import Message
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import Sample, generate
from text2grad.policy.grounded import GroundedAnswers, Vocabulary
from text2grad.policy.load import add_lora
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings
from text2grad.policy.tiny import make_tokenizer
from text2grad.train.pairs import EncodedPair
from text2grad.train.passes import PassSize
from text2grad.train.supervised import accumulate_gradient

SHAPES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}
KEY_VALUE_HEADS = {"tiny": 4, "1b": 8, "8b": 8}
VOCABULARY = {"tiny": 2_000, "1b": 128_256, "8b": 128_256}
ON_GPU = {"sizes": ["1b", "8b"], "batch": 8, "prompt": 384, "target": 128, "steps": 5, "rows": 32, "new": 128}
ON_CPU = {"sizes": ["tiny"], "batch": 4, "prompt": 96, "target": 32, "steps": 3, "rows": 8, "new": 32}


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES))
    parser.add_argument("--batch", type=int, help="pairs in one optimizer step")
    parser.add_argument("--prompt", type=int, help="tokens of a pair's prompt")
    parser.add_argument("--target", type=int, help="tokens of a pair's answer")
    parser.add_argument("--steps", type=int, help="optimizer steps that are measured")
    parser.add_argument("--rows", type=int, help="critiques written at a time")
    parser.add_argument("--new", type=int, help="tokens of a critique")
    parser.add_argument("--peak", type=float, default=989e12, help="bf16 FLOP/s of the card (H100: 989e12)")
    parser.set_defaults(**(ON_GPU if on_gpu else ON_CPU))
    options = parser.parse_args()
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name() if on_gpu else "cpu"}
    for size in options.sizes:
        began = time.perf_counter()
        policy = random_policy(size)
        trained = train(policy, options.batch, options.prompt, options.target, options.steps, options.peak)
        figures[size] = {**trained, **decode(policy, options.rows, options.new)}
        figures[size]["seconds"] = round(time.perf_counter() - began, 1)
        print(f"{size}: {figures[size]}", file=sys.stderr, flush=True)
        del policy
    print(json.dumps(figures))


def random_policy(size: str) -> Policy:
    """Return a Llama with adapters, in bfloat16 (float32 on a CPU), and a smaller tokenizer."""
    tokenizer = make_tokenizer([*prose(200), *code(200)], vocabulary=2_000)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = LlamaConfig(
        vocab_size=max(VOCABULARY[size], len(tokenizer)),
        num_key_value_heads=KEY_VALUE_HEADS[size],
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SHAPES[size],
    )
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    return Policy(add_lora(model, LoraSettings(), base="random").to(device), tokenizer)


def train(policy: Policy, batch: int, prompt: int, target: int, steps: int, peak: float) -> dict[str, float]:
    """Measure optimizer steps on random tokens after one warm-up."""
    rng = torch.Generator().manual_seed(0)
    limit = len(policy.tokenizer)

    def ids(length: int) -> list[int]:
        return torch.randint(10, limit, (length,), generator=rng).tolist()

    pairs = [EncodedPair(ids(prompt), ids(target), [1.0] * target) for _ in range(batch)]
    optimizer = torch.optim.AdamW(policy.policy_parameters(), lr=1e-5)
    policy.train()
    reset_memory()

    def step() -> None:
        accumulate_gradient(policy, pairs, PassSize(batch))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    seconds = timed(lambda: [step() for _ in range(steps)]) / steps
    tokens = batch * (prompt + target)
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    rate = tokens / seconds
    share = {"share_of_peak": round(4 * weights * rate / peak, 4)} if policy.device.type == "cuda" else {}
    return {
        "parameters": weights,
        "train_tokens_per_second": round(rate, 1),
        **share,
        "train_memory_gb": round(peak_memory(), 2),
    }


def decode(policy: Policy, rows: int, new: int) -> dict[str, float]:
    """Measure greedy decoding of critiques, plain and grounded."""
    texts = [*prose(rows // 2), *code(rows - rows // 2)]
    prompts = [encode_prompt(policy.tokenizer, [Message(role="user", content=text)]) for text in texts]
    settings = GenerationSettings(max_new_tokens=new, temperature=0.0, batch_size=rows)
    vocabulary = Vocabulary(policy.tokenizer, int(policy.model.config.vocab_size))
    reset_memory()
    rates = {}
    for name, masked in (("warm_up", False), ("plain", False), ("grounded", True)):
        constraint = GroundedAnswers(vocabulary, texts, settings) if masked else None
        samples: list[Sample] = []
        seconds = timed(lambda: samples.extend(generate(policy, prompts, settings, constraint)))  # noqa: B023
        rates[name] = rows * max(len(sample.ids) for sample in samples) / seconds
    return {
        "tokens_per_second_plain": round(rates["plain"], 1),
        "tokens_per_second_grounded": round(rates["grounded"], 1),
        "ratio": round(rates["grounded"] / rates["plain"], 3),
        "decode_memory_gb": round(peak_memory(), 2),
    }


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of `work` until the device is done."""
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> float:
    """Return the peak GB on the device since the last reset; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


if __name__ == "__main__":
    main()
