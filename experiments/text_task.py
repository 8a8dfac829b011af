"""Real text: one-line summaries of functions (task `docstrings`) by SFT, scalar PPO and text2grad.

Both PPO runs of a seed start from the same SFT policy and see the same prompts, rollouts, steps and critic (the
program that compares with the person's line; its score is ROUGE-L). They differ in the credit scheme, in gamma as
in the demo, and in what was best for each in as many tries on two validation seeds (`--tune`, 100 and 101; mean of
greedy and sampled ROUGE-L), which are none of the seeds shown: for scalar PPO the advantages of a group. What
stands in --out/results.jsonl, and was made with the same settings, is not run again.

    python experiments/text_task.py [--seeds 0 1 2] [--tune] [--lrs 1e-3 3e-4 1e-4]
        [--arms scalar_ppo+group text2grad]

A method may have parts of sample_efficiency.py laid over it: `scalar_ppo+returns+kl_0.2`. The last line of stdout
is one JSON object: for `sft` and each method the mean over the seeds and the `spread` (largest minus
smallest) of every measure, greedy and sampled; `ahead`: text2grad minus scalar PPO in ROUGE-L, seed by seed. With
--tune: the ROUGE-L of every rate.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from recipe import recipe_of, refuse_other_recipe
from sample_efficiency import PARTS
from text2grad.config import Config, find_config, load_config
from text2grad.stages.evaluate import run_evaluate
from text2grad.stages.ppo import run_train
from text2grad.stages.supervised import run_sft

ARMS = ("scalar_ppo", "text2grad")
GRID = (1e-3, 3e-4, 1e-4)
TRIED_BEST = ("scalar_ppo+group", "text2grad")
CHOSEN = {"scalar_ppo": 3e-4, "text2grad": 3e-4}
VALIDATION = [100, 101]
MEASURES = ("rouge1", "rouge2", "rouge_l", "bleu", "verdict", "answer_reward", "length")
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tune", action="store_true", help="every rate of the grid on the validation seeds")
    parser.add_argument("--arms", nargs="+", type=method, default=TRIED_BEST, metavar="ARM")
    parser.add_argument("--lrs", nargs="+", type=float, default=GRID, help="the grid of --tune")
    parser.add_argument("--out", type=Path, default=Path("runs/text_task"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    seeds = VALIDATION if chosen.tune else chosen.seeds
    runs = [(arm, rate) for arm in chosen.arms for rate in (chosen.lrs if chosen.tune else (rate_of(arm),))]
    rows = [row for seed in seeds for row in rows_of(seed, runs, chosen.out)]
    print(json.dumps(tuned(rows) if chosen.tune else summary(rows, chosen.arms)))


def method(name: str) -> str:
    """A method's name, if all of its parts are known."""
    base, *parts = name.split("+")
    if base not in ARMS or set(parts) - PARTS.keys():
        raise argparse.ArgumentTypeError(f"no method {name}: {' or '.join(ARMS)}, + parts of {', '.join(PARTS)}")
    return name


def rate_of(arm: str) -> float:
    """The rate that was chosen for a method, its parts aside."""
    return CHOSEN[arm.partition("+")[0]]


def rows_of(seed: int, runs: Sequence[tuple[str, float]], out: Path) -> Iterator[Row]:
    """The figures of SFT and of every (arm, rate) on one seed; those that are there are read."""
    results = out / "results.jsonl"
    config = preset(out / f"seed-{seed}", seed)
    refuse_other_recipe(config)
    for arm, rate in [("sft", 0.0), *runs]:
        recipe = recipe_of(of_arm(arm, rate, config))
        key = {"seed": seed, "arm": arm, "lr": rate, "recipe": recipe}
        found = [row for row in read(results) if key.items() <= row.items()]
        if not found:
            found = [key | measured(arm, rate, config)]
            with results.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(found[0]) + "\n")
            print(json.dumps(found[0]), file=sys.stderr, flush=True)
        yield found[0]


def preset(folder: Path, seed: int, changes: Mapping[str, object] = MappingProxyType({})) -> Config:
    words = {"run.folder": folder, "run.seed": seed, "task.seed": seed, **changes}
    return load_config(find_config("docstrings"), [f"--{key}={value}" for key, value in words.items()])


def measured(arm: str, rate: float, config: Config) -> Row:
    """Train one arm and measure it on held-out packages; CPU seconds of the whole."""
    before = sum(os.times()[:4])
    name = "sft" if arm == "sft" else f"{arm}_{rate:g}"
    if arm == "sft" and not (config.run.folder / "sft" / "policy").is_dir():
        run_sft(config)
    elif arm != "sft":
        run_train(of_arm(arm, rate, config), name, "restart")
    figures = run_evaluate(config, name).figures
    steps = read(config.run.folder / "ppo" / name / "metrics.jsonl")
    kept = {f"{way}_{each}": figures[f"{way}_{each}"] for way in ("greedy", "sampled") for each in MEASURES}
    return {**kept, "kl": steps[-1]["kl"] if steps else 0.0, "cpu_seconds": round(sum(os.times()[:4]) - before, 1)}


def of_arm(arm: str, rate: float, config: Config) -> Config:
    if arm == "sft":
        return config
    base, *parts = arm.split("+")
    # Not the recipe of scalar PPO: the KL stays the preset's.
    changes: dict[str, object] = {"credit.scheme": "last_token", "ppo.gamma": 1.0} if base == "scalar_ppo" else {}
    for part in parts:
        changes |= PARTS[part]
    return preset(config.run.folder, config.run.seed, {"ppo.lr": rate, **changes})


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def tuned(rows: Sequence[Row]) -> Row:
    """ROUGE-L of every rate, mean over the validation seeds, and what the rate is chosen by."""
    ways = ("greedy_rouge_l", "sampled_rouge_l")
    found: Row = {}
    for arm, rate in dict.fromkeys((row["arm"], row["lr"]) for row in rows):
        mine = [row for row in rows if (row["arm"], row["lr"]) == (arm, rate)]
        means = {way: round(fmean(row[way] for row in mine), 4) for way in ways}
        found[f"{arm}_{rate:g}"] = {**means, "chosen_by": round(fmean(means.values()), 4)}
    return found


def summary(rows: Sequence[Row], arms: Sequence[str]) -> Row:
    """Means and spreads over the seeds, and how far text2grad is ahead on each."""
    figures: Row = {arm: of_seeds([row for row in rows if row["arm"] == arm]) for arm in ("sft", *arms)}
    seeds = sorted({row["seed"] for row in rows})
    by_arm = {(row["seed"], row["arm"]): row for row in rows}
    ours, theirs = (
        next((arm for arm in arms if arm.startswith(each)), None) for each in ("text2grad", "scalar_ppo")
    )
    if ours and theirs:
        figures["ahead"] = {
            way: [round(by_arm[s, ours][way] - by_arm[s, theirs][way], 4) for s in seeds]
            for way in ("greedy_rouge_l", "sampled_rouge_l")
        }
    return {**figures, "seeds": seeds}


def of_seeds(rows: Sequence[Row]) -> Row:
    names = [name for name in rows[0] if name.startswith(("greedy", "sampled"))]
    found = {name: [row[name] for row in rows] for name in (*names, "kl", "cpu_seconds")}
    return {n: {"mean": round(fmean(v), 4), "spread": round(max(v) - min(v), 4)} for n, v in found.items()}


if __name__ == "__main__":
    main()
