"""Measure the CPU cost of a PPO step by phase, for both kinds of feedback and for growing loads.

The first table has CPU seconds by phase, with a reward model that writes critiques (text2grad) and
with one that scores the response (scalar PPO); the two alternate. Then batch, response length,
vocabulary and model grow, one at a time, and an exponent is fitted to the seconds of each phase
(least squares of log seconds on log size): 1 means proportional cost.

    python benchmarks/step_cost.py [--runs 3] [--tokens 64] [--critique 64]
        [--grow responses tokens vocabulary hidden]

One thread. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from steps import FEEDBACK, PHASES, Load, Shape, Stepper, random_policy

SHAPE = Shape(hidden=128, layers=4, heads=4, feed_forward=352, vocabulary=2048)
GROWTH = {
    "responses": (8, 16, 32, 64),
    "tokens": (32, 64, 128, 256),
    "vocabulary": (2048, 8192, 32768, 131072),
    "hidden": (64, 128, 256, 512),
}
MEASURED = ("generate", "score", "update")

Row = Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="measured steps of each kind and size, after a warm-up")
    parser.add_argument("--tokens", type=int, default=64, help="of a response")
    parser.add_argument("--critique", type=int, default=64, help="tokens of a critique")
    parser.add_argument("--grow", nargs="*", choices=GROWTH, default=list(GROWTH), help="what grows, one at a time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = Load(tokens=options.tokens, critique=options.critique)
    phases = by_feedback(load, options.runs)
    show(["feedback", *PHASES, "step"], [[name, *row.values(), sum(row.values())] for name, row in phases.items()])
    exponents = {}
    for what in options.grow:
        sizes = GROWTH[what]
        rows = [grown(what, size, options.runs) for size in sizes]
        exponents[what] = {phase: exponent(sizes, [row[phase] for row in rows]) for phase in [*MEASURED, "step"]}
        show([what, *MEASURED, "step"], [[size, *row.values()] for size, row in zip(sizes, rows, strict=True)])
        show(["exponent", *MEASURED, "step"], [["", *exponents[what].values()]])
    totals = {name: sum(row.values()) for name, row in phases.items()}
    ratio = totals["text2grad"] / totals["scalar"]
    print(json.dumps({"phases": phases, "step_ratio": round(ratio, 3), "exponents": exponents}))


def by_feedback(load: Load, runs: int) -> dict[str, dict[str, float]]:
    """Return median CPU seconds of each phase for each kind of feedback."""
    stepper = Stepper(random_policy(SHAPE, load, False, torch.device("cpu")), load, cpu_seconds)
    rows_by_feedback: dict[str, list[dict[str, float]]] = {feedback: [] for feedback in FEEDBACK}
    for run in range(runs + 1):
        for feedback in FEEDBACK:
            seconds = stepper.step(feedback)
            rows_by_feedback[feedback] += [seconds] if run else []
    return {feedback: medians(rows) for feedback, rows in rows_by_feedback.items()}


def grown(what: str, size: int, runs: int) -> dict[str, float]:
    """Return median CPU seconds of the phases without critique while one size grows."""
    load, shape = Load(epochs=1, critique=1), replace(SHAPE, layers=2)
    if what in ("responses", "tokens"):
        load = replace(load, **{what: size})
    elif what == "hidden":
        shape = replace(shape, hidden=size, feed_forward=11 * size // 4)
    else:
        shape = replace(shape, vocabulary=size)
    stepper = Stepper(random_policy(shape, load, False, torch.device("cpu")), load, cpu_seconds)
    rows = [stepper.step("scalar") for _ in range(runs + 1)][1:]
    seconds = medians(rows)
    return {phase: seconds[phase] for phase in MEASURED} | {"step": sum(seconds[phase] for phase in MEASURED)}


def medians(rows: Sequence[Row]) -> dict[str, float]:
    return {phase: round(statistics.median(row[phase] for row in rows), 4) for phase in PHASES}


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds over log size."""
    slope = statistics.linear_regression(
        [math.log(n) for n in sizes], [math.log(max(s, 1e-6)) for s in seconds]
    ).slope
    return round(slope, 2)


def show(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table to stderr."""

    def cells(row: Sequence[object]) -> Iterator[str]:
        yield from (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row)

    lines = [names, ["---"] * len(names), *rows]
    print("\n".join("| " + " | ".join(cells(line)) + " |" for line in lines) + "\n", file=sys.stderr, flush=True)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
