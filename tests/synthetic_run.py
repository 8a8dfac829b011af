"""Make a believable run folder for the report's tests: `write_run(folder)`; same seed, same bytes.

Also a script: `python tests/synthetic_run.py FOLDER` makes one to look at.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]

SOLUTION = "def total(items):\n    result = 0\n    for x in items:\n        result += x * 2\n    return result\n"
MISTAKES = (("result += x * 2", "result += x + 2"), ("result = 0", "result = 1"), ("return result", "return x"))
CONFIG = "policy: {model: tiny}\nppo:\n  steps: 40\n  credit: {scheme: spans, weighting: token}\n"
RATES = {
    **{"good_precision": 0.81, "good_recall": 0.77, "poor_precision": 0.69, "poor_recall": 0.72, "poor_f1": 0.7},
    **{"wrong_sign_rate": 0.06, "unmatched": 0.012, "unreadable": 0.004},
}
"""The figures of a reward model."""
QUESTION = "Write `total(items)`: the sum of twice each item.\nIt is given a list of whole numbers."


def write_run(folder: Path, steps: int = 40, every: int = 5, seed: int = 0) -> Path:
    """Write a whole run of one seed into `folder` and return it."""
    chance = random.Random(seed)
    _write(folder / "config.yaml", CONFIG)
    _write_lines(folder / "feedback.jsonl", [_feedback(i, chance) for i in range(24)])
    for stage, start in (("sft", 4.0), ("reward_model", 3.0)):
        _write_lines(folder / stage / "metrics.jsonl", [_losses(start, step, 60, chance) for step in range(60)])
    for method, gain in (("text2grad", 0.34), ("scalar_ppo", 0.17)):
        metrics = [_metrics(step, gain * (1 - math.exp(-step / 15)), chance) for step in range(steps)]
        _write_lines(folder / "ppo" / method / "metrics.jsonl", metrics)
        rows = [sample(method, step, i, chance) for step in range(0, steps + 1, every) for i in range(8)]
        _write_lines(folder / "ppo" / method / "samples.jsonl", rows)
    _write_lines(folder / "before_after.jsonl", [_before_after(i, chance) for i in range(6)])
    _write_lines(folder / "evaluation" / "reward_model.json", [RATES])
    for name, value in (("sft", 0.33), ("scalar_ppo", 0.5), ("text2grad", 0.66)):
        figures = {"prompts": 6, "greedy_pass": value + 0.04, "sampled_pass": value, "tier": "landlock"}
        _write_lines(folder / "evaluation" / "demo" / f"{name}.json", [figures])
        _write(folder / "evaluation" / "demo" / f"{name}.answers.json", '[{"id": "heldout-0"}]')
    return folder


def sample(method: str, step: int, index: int, chance: random.Random) -> Row:
    """One row of samples.jsonl whose numbers obey reward = delta - beta * kl and credit from the
    spans."""
    response, spans = _answer(chance, good=chance.random() < 0.3 + step / 100)
    failed = chance.random() < 0.06
    score = None if failed else (-1.0 if any(span["label"] < 0 for span in spans) else 1.0)
    tokens, starts, ends = _tokens(response)
    delta = _delta(method, [] if failed else spans, starts, ends, score)
    kl = [round(abs(chance.gauss(0, 0.01 + step / 2000)), 5) for _ in tokens]
    reward = [d - 0.05 * k for d, k in zip(delta, kl, strict=True)]
    value = [0.0 if step == 0 else round(chance.gauss(0.2, 0.05), 4) for _ in tokens]
    failure = {"kind": "truncated", "message": "the answer stops inside the JSON"} if failed else None
    return {
        "step": step,
        "id": f"problem-{step:03d}-{index}",
        "prompt": [{"role": "user", "content": QUESTION}],
        "response": response,
        "critique": "" if failed else _critique(spans),
        "spans": [] if failed else spans,
        "score": score,
        "failure": failure,
        "tokens": tokens,
        "starts": starts,
        "ends": ends,
        "delta": delta,
        "kl": kl,
        "value": value,
        "advantage": _advantages(reward, value),
        "reward": reward,
        "logp": [round(-abs(chance.gauss(0, 0.8)), 4) for _ in tokens],
    }


def _answer(chance: random.Random, good: bool) -> tuple[str, list[Row]]:
    right, wrong = chance.choice(MISTAKES)
    if good:
        return SOLUTION, [_span(SOLUTION, "return result", 1, "gives back the sum")]
    response = SOLUTION.replace(right, wrong)
    return response, [
        _span(response, "for x in items:", 1, "visits every item"),
        _span(response, wrong, -1, f"should be `{right}`: total([1, 2]) must be 6"),
    ]


def _span(response: str, quote: str, label: int, reason: str) -> Row:
    start = response.index(quote)
    return {"start": start, "end": start + len(quote), "label": label, "text": quote, "reason": reason}


def _tokens(response: str) -> tuple[list[str], list[int], list[int]]:
    found = list(re.finditer(r"\n? *\w+|\s+|[^\w\s]+", response))
    starts, ends = ([getattr(match, edge)() for match in found] for edge in ("start", "end"))
    return [*(match.group() for match in found), "<|end|>"], [*starts, len(response)], [*ends, len(response)]


def _delta(method: str, spans: list[Row], starts: list[int], ends: list[int], score: float | None) -> list[float]:
    delta = [0.0] * len(starts)
    for span in spans if method == "text2grad" else []:
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if start < span["end"] and end > span["start"]:
                delta[i] = 0.1 * span["label"]
    delta[-1] += score or 0.0
    return delta


def _advantages(reward: list[float], value: list[float], lam: float = 0.95) -> list[float]:
    result, running = [], 0.0
    following = [*value[1:], 0.0]
    for r, v, after in reversed(list(zip(reward, value, following, strict=True))):
        running = r + after - v + lam * running
        result.append(running)
    return result[::-1]


def _critique(spans: list[Row]) -> str:
    wrong = [span for span in spans if span["label"] < 0]
    return f"The loop is right. But {wrong[0]['reason']}." if wrong else "All tests pass."


def _feedback(index: int, chance: random.Random) -> Row:
    response, spans = _answer(chance, good=index % 3 == 0)
    row: Row = {
        "id": f"train-{index}",
        "prompt": [{"role": "user", "content": QUESTION}],
        "response": response,
        "source": {"kind": "program", "model": "tests"},
        "meta": {"unmatched": 1} if index == 5 else {"ambiguous": 2} if index == 7 else {},
    }
    if index % 11 == 10:
        return {**row, "error": {"kind": "invalid", "message": "not a JSON object"}}
    score = -1.0 if any(span["label"] < 0 for span in spans) else 1.0
    return {**row, "critique": _critique(spans), "spans": spans, "score": score}


def _losses(start: float, step: int, steps: int, chance: random.Random) -> Row:
    return {
        "step": step,
        "loss": start * math.exp(-step / 15) + 0.3 + chance.gauss(0, 0.04),
        "lr": 1e-3 * (1 - step / steps),
        "grad_norm": 1.0 + abs(chance.gauss(0, 0.2)),
    }


def _metrics(step: int, progress: float, chance: random.Random) -> Row:
    noise = chance.gauss
    row = {
        "step": step,
        "score": -0.3 + 2 * progress + noise(0, 0.08),
        "delta_sum": -0.5 + 4 * progress + noise(0, 0.1),
        "kl": progress * 6 + abs(noise(0, 0.1)),
        "wrong_sign_rate": 0.3 - progress / 2 + noise(0, 0.03),
        "explained_variance": 1 - math.exp(-step / 6) - 0.3 + noise(0, 0.05),
        "critic_failed": max(0.0, 0.05 + noise(0, 0.02)),
        "response_length": 42 + noise(0, 1.5),
        "entropy": 1.4 - progress + noise(0, 0.04),
        "policy_loss": noise(0, 0.02),
        "value_loss": 0.8 * math.exp(-step / 8) + 0.1,
        "clip_fraction": abs(noise(0.08, 0.02)),
        "truncated": 0.0,
        "kl_coefficient": 0.05 * 1.01**step,
    }
    return {**row, "heldout_pass@1": 0.33 + progress + noise(0, 0.02)} if step % 5 == 0 else row


def _before_after(index: int, chance: random.Random) -> Row:
    before, _ = _answer(chance, good=False)
    middle, _ = _answer(chance, good=index % 2 == 0)
    answers = [
        {"name": name, "response": text, "scores": {"pass": float(text == SOLUTION)}}
        for name, text in (("SFT", before), ("scalar PPO", middle), ("text2grad", SOLUTION))
    ]
    prompt = [{"role": "user", "content": QUESTION}]
    return {"id": f"heldout-{index}", "prompt": prompt, "reference": SOLUTION, "answers": answers}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_lines(path: Path, rows: list[Row]) -> None:
    _write(path, "".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    write_run(Path(sys.argv[1]))
