"""Measure a PPO step of a LoRA policy at scale, on random Llamas without downloads.

Figures are tokens per second by phase, their share of the card's bf16 peak, memory, and the ratio
of a step with a reward model that writes critiques (text2grad) to one that writes a number (scalar
PPO). FLOPs: 2 per weight and token for reading or writing, 4 for an update, since frozen weights
get no gradient; attention is not counted.

    python benchmarks/gpu_train.py --size tiny|1b|8b [--peak 989e12]

On a CPU use `tiny` to check the script. The last line of stdout is one JSON object. Critiques are
written before scoring; the gain from overlapping the two is not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

import torch

from steps import FEEDBACK, PHASES, Load, Shape, Stepper, random_policy

SHAPES = {
    "tiny": Shape(128, 4, 4, 352, 2_000),
    "1b": Shape(2048, 16, 32, 8192, 128_256, 8),
    "8b": Shape(4096, 32, 32, 14336, 128_256, 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SHAPES), default="tiny")
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=128, help="of a response")
    parser.add_argument("--critique", type=int, default=128, help="tokens of a critique")
    parser.add_argument("--rows", type=int, default=16, help="responses in a forward pass")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each kind, after one that warms up")
    parser.add_argument("--peak", type=float, default=989e12, help="bf16 FLOP/s of the card (H100: 989e12)")
    options = parser.parse_args()
    load = Load(options.responses, options.prompt, options.tokens, options.critique, rows=options.rows)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    print(json.dumps(measure(options.size, load, options.steps, options.peak, device)))


def measure(size: str, load: Load, steps: int, peak: float, device: torch.device) -> dict[str, object]:
    """The figures of one size under one load."""
    policy = random_policy(SHAPES[size], load, True, device)
    stepper = Stepper(policy, load, clock)
    for feedback in FEEDBACK:  # a warm-up of the same shapes
        Stepper(policy, replace(load, epochs=1), clock).step(feedback)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rows_by_feedback: dict[str, list[dict[str, float]]] = {feedback: [] for feedback in FEEDBACK}
    for _ in range(steps):
        for feedback in FEEDBACK:
            rows_by_feedback[feedback].append(stepper.step(feedback))
    seconds = {
        feedback: {phase: statistics.median(row[phase] for row in rows) for phase in PHASES}
        for feedback, rows in rows_by_feedback.items()
    }
    totals = {feedback: sum(phases.values()) for feedback, phases in seconds.items()}
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    figures: dict[str, object] = {
        "size": size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "parameters": weights,
        "seconds": {feedback: rounded(phases) for feedback, phases in seconds.items()},
        "step_seconds": rounded(totals),
        "overhead": round(totals["text2grad"] / totals["scalar"] - 1, 4),
        "tokens_per_second": rounded(rates(load, seconds["text2grad"])),
    }
    if device.type == "cuda":
        shares = {p: flops / seconds["text2grad"][p] / peak for p, flops in work(load, weights).items()}
        figures["share_of_peak"] = rounded(shares)
        figures["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return figures


def rates(load: Load, seconds: dict[str, float]) -> dict[str, float]:
    """Tokens a second: written (generate, critique), or read in prompts and responses (score,
    update)."""
    tokens_read = load.responses * (load.prompt + load.tokens)
    tokens = {
        "generate": load.responses * load.tokens,
        "critique": load.responses * load.critique,
        "score": tokens_read,
        "update": tokens_read * load.epochs,
    }
    return {phase: tokens[phase] / seconds[phase] for phase in PHASES}


def work(load: Load, weights: int) -> dict[str, float]:
    """FLOPs of each phase with critiques; policy and reference both score."""
    tokens_read, tokens_written = load.prompt + load.tokens, load.prompt + load.tokens + load.critique
    tokens = {
        "generate": 2 * tokens_read,
        "critique": 2 * tokens_written,
        "score": 4 * tokens_read,
        "update": 4 * tokens_read * load.epochs,
    }
    return {phase: float(weights * load.responses * count) for phase, count in tokens.items()}


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


def clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
