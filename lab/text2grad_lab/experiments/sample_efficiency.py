"""How many rollouts does a method need: text2grad, scalar PPO and their variants on the embedded code task.

The lab's `compare` does the work: of every seed SFT, annotation and one reward model, shared by all methods; each
method with the same prompts, rollouts, epochs and optimizer steps, measured on held-out problems by their tests
while it trains. The learning rate of each is chosen on --tune-seeds over one grid for all (of one rate there is
nothing to choose); the figures come from --seeds. What has been run is not repeated.

Ten times the size, on a GPU: --out runs/tenfold --workers 1 --set policy.device=cuda
task.name=module:Class, a subclass of DemoTask with tiny_model = TinyShape(320, 6, 5, 880).

A method is the demo's recipe with parts laid over it, joined by +: `text2grad` and `scalar` alone, or
`scalar+values`, `poor_half+kl_0.05` (`methods.PARTS`).

Leaves compare.md, tuning.json and curves.svg in --out. Last line of stdout, one JSON object: `text2grad_final` and
`scalar_final` (held-out pass@1 of sampled answers, mean over the seeds), `rollout_ratio` (rollouts text2grad
needs for scalar PPO's final rate / scalar PPO's rollouts, mean over the seeds; null if one never reaches it),
`seeds` (of each the final rates and the ratio), `collapsed` (runs that ended below the SFT policy), `arms`.
Wanted: rollout_ratio at most .5, text2grad_final at least .10 above scalar_final, nothing collapsed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from text2grad.config import Config
from text2grad.errors import exit_on_user_error
from text2grad.page.curves import Line
from text2grad_lab.compare import run_compare
from text2grad_lab.compare.tuning import Extent
from text2grad_lab.experiments.common.figure import svg
from text2grad_lab.experiments.common.methods import by_arm, method, method_of
from text2grad_lab.experiments.common.options import add_tuning, configured, experiment_parser

OWN_NAMES = ("text2grad", "scalar")
Point = Mapping[str, float]


def main() -> None:
    chosen = options()
    config = preset(chosen)
    names = ["sft", *(method_of(arm, chosen.out, partial(preset, chosen)) for arm in chosen.arms)]
    factors = [lr / config.ppo.lr for lr in chosen.lrs]
    found = by_arm(run_compare(config, names, Extent(chosen.seeds, factors, chosen.tune_seeds), chosen.workers))
    drawn = svg(list(lines(found, chosen.arms)), "held-out pass@1, sampled", "rollouts")
    (chosen.out / "curves.svg").write_text(drawn, encoding="utf-8")
    print(json.dumps(figures(found, chosen.arms, chosen.seeds)))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "sample_efficiency", workers=2)
    add_tuning(parser, [100, 101], [2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4])
    parser.add_argument("--arms", nargs="+", type=method, default=["text2grad", "scalar"], metavar="ARM")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=3, help="steps between measurements; tuning looks at the end")
    parser.add_argument("--samples", type=int, default=8, help="answers per held-out problem")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


def preset(chosen: argparse.Namespace, layers: Sequence[str] = (), words: Sequence[str] = ()) -> Config:
    sizes = {
        "run.folder": chosen.out,
        "ppo.steps": chosen.steps,
        "ppo.heldout_every": chosen.every,
        "evaluate.samples": chosen.samples,
    }
    return configured(["demo", *layers], sizes, chosen.set, words)


def figures(found: Mapping[str, Any], arms: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """What the experiment says in numbers, from the figures of the comparison."""
    rows, curves = found["methods"], found["curves"]
    result: dict[str, Any] = {
        "arms": {arm: round(rows[arm]["metric"], 4) for arm in arms},
        "collapsed": found["collapsed"],
    }
    if {"text2grad", "scalar"} <= set(arms):
        each = {
            seed: compared(rows["sft"]["seeds"][n], curves["text2grad"][n], curves["scalar"][n])
            for n, seed in enumerate(seeds)
        }
        result["text2grad_final"], result["scalar_final"] = (result["arms"][name] for name in OWN_NAMES)
        ratios = [ratio for one in each.values() if (ratio := one["rollout_ratio"]) is not None]
        result["rollout_ratio"] = round(fmean(ratios), 4) if len(ratios) == len(each) else None
        result["seeds"] = each
    return result


def compared(start: float, ours: Sequence[Point], scalar: Sequence[Point]) -> dict[str, float | None]:
    """One seed: where SFT, text2grad and scalar PPO end, and the share of the rollouts."""
    reached = rollouts_to(start, ours, scalar[-1]["sampled"])
    ratio = None if reached is None else round(reached / scalar[-1]["rollouts"], 4)
    ends = {"text2grad": ours[-1]["sampled"], "scalar": scalar[-1]["sampled"]}
    return {"sft": start, **ends, "rollout_ratio": ratio}


def rollouts_to(start: float, curve: Sequence[Point], rate: float) -> float | None:
    """Rollouts after which the curve first reaches `rate`, straight lines between measurements; None: never."""
    points = [(0.0, start), *((point["rollouts"], point["sampled"]) for point in curve)]
    if start >= rate:
        return 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= rate:
            return x0 + (x1 - x0) * (rate - y0) / (y1 - y0)
    return None


def lines(found: Mapping[str, Any], arms: Sequence[str]) -> Iterator[Line]:
    """Of each method the seeds, thin, and their mean."""
    starts = found["methods"]["sft"]["seeds"]
    for arm in arms:
        own = [
            Line(arm, ((0.0, start), *((point["rollouts"], point["sampled"]) for point in curve)), thin=True)
            for start, curve in zip(starts, found["curves"][arm], strict=True)
        ]
        yield from own
        yield mean_line(arm, own)


def mean_line(name: str, lines: Sequence[Line]) -> Line:
    """Average over seeds at every step that all of them reached."""
    values = [dict(line.points) for line in lines]
    shared = sorted(set(values[0]).intersection(*values[1:]))
    return Line(name, tuple((step, fmean(value[step] for value in values)) for step in shared))


if __name__ == "__main__":
    with exit_on_user_error():
        main()
