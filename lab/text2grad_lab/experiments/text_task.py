"""Real text: one-line summaries of functions (task `docstrings`) by SFT, scalar PPO and text2grad.

The lab's `compare` does the work: both PPO runs of a seed start from the same SFT policy and see the same prompts,
rollouts, steps and critic (the program that compares with the person's line; its score is ROUGE-L). They differ in
the credit scheme, in gamma as in the demo, and in what was best for each in as many tries on two validation seeds
(100 and 101), which are none of the seeds shown: for scalar PPO the advantages of a group. Of several --lrs each
method takes the best on --tune-seeds. What has been run is not repeated.

A method may have parts of methods.py laid over it: `scalar_ppo+returns+kl_0.2`. The last line of stdout
is one JSON object: for `sft` and each method the mean over the seeds and the `spread` (largest minus
smallest) of every measure, greedy and sampled; `ahead`: text2grad minus scalar PPO in ROUGE-L, seed by seed;
`rates`: what the first of --lrs was multiplied by for each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.config import Config
from text2grad.errors import exit_on_user_error
from text2grad.stages.run_folder import measured_on
from text2grad_lab.compare import run_compare
from text2grad_lab.compare.tuning import Extent
from text2grad_lab.experiments.common.methods import PARTS, by_arm, file_name, written
from text2grad_lab.experiments.common.options import add_tuning, configured, experiment_parser

ARMS: dict[str, dict[str, object]] = {
    "scalar_ppo": {"credit.scheme": "last_token", "ppo.gamma": 1.0},  # not the recipe: the KL stays the preset's
    "text2grad": {},
}
MEASURES = ("rouge1", "rouge2", "rouge_l", "bleu", "verdict", "answer_reward", "length")
Row = dict[str, Any]


def main() -> None:
    parser = experiment_parser(__doc__, "text_task", workers=2)
    add_tuning(parser, [100, 101], [3e-4])
    parser.add_argument("--arms", nargs="+", type=method, default=["scalar_ppo+group", "text2grad"], metavar="ARM")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    config = preset(chosen.out, {"ppo.lr": chosen.lrs[0]}, chosen.set)
    factors = [lr / chosen.lrs[0] for lr in chosen.lrs]
    names = ["sft", *(method_of(arm, config, chosen.set) for arm in chosen.arms)]
    found = by_arm(run_compare(config, names, Extent(chosen.seeds, factors, chosen.tune_seeds), chosen.workers))
    figures = {
        arm: of_seeds([measured(config, seed, arm) for seed in chosen.seeds]) for arm in ("sft", *chosen.arms)
    }
    print(json.dumps({**figures, **ahead(found["methods"], chosen.arms), "rates": found["rates"]}))


def method(name: str) -> str:
    """A method's name, if all of its parts are known."""
    base, *parts = name.split("+")
    if base not in ARMS or set(parts) - PARTS.keys():
        raise argparse.ArgumentTypeError(f"no method {name}: {' or '.join(ARMS)}, + parts of {', '.join(PARTS)}")
    return name


def preset(folder: Path, changes: dict[str, object], common: Sequence[str] = ()) -> Config:
    words = [f"--{key}={value}" for key, value in {"run.folder": folder, **changes}.items()]
    return configured(["docstrings"], {}, common, words)


def method_of(arm: str, config: Config, common: Sequence[str] = ()) -> str:
    """The recipe file of a method, with all of its parts."""
    base, *parts = arm.split("+")
    changes = {"ppo.lr": config.ppo.lr, **ARMS[base]} | {k: v for part in parts for k, v in PARTS[part].items()}
    return written(arm, config.run.folder, preset(config.run.folder, changes, common))


def measured(config: Config, seed: int, arm: str) -> Row:
    """What `evaluate` found for one method of one seed."""
    place = config.run.folder / f"seed-{seed}" / "evaluation" / measured_on(config) / f"{file_name(arm)}.json"
    figures: Row = json.loads(place.read_text(encoding="utf-8"))
    return {f"{way}_{name}": figures[f"{way}_{name}"] for way in ("greedy", "sampled") for name in MEASURES}


def of_seeds(rows: Sequence[Row]) -> Row:
    """Mean and spread of every figure."""
    found = {name: [row[name] for row in rows] for name in rows[0]}
    return {n: {"mean": round(fmean(v), 4), "spread": round(max(v) - min(v), 4)} for n, v in found.items()}


def ahead(rows: Row, arms: Sequence[str]) -> Row:
    """How far text2grad is ahead of scalar PPO on each seed."""
    ours, theirs = (
        next((arm for arm in arms if arm.startswith(each)), None) for each in ("text2grad", "scalar_ppo")
    )
    if not (ours and theirs):
        return {}
    both = {"greedy": (rows[ours]["greedy"], rows[theirs]["greedy"]), "sampled": (rows[ours], rows[theirs])}
    return {
        "ahead": {
            f"{way}_rouge_l": [round(a - b, 4) for a, b in zip(one["seeds"], other["seeds"], strict=True)]
            for way, (one, other) in both.items()
        }
    }


if __name__ == "__main__":
    with exit_on_user_error():
        main()
