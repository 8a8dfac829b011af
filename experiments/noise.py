"""How much noise in the spans text2grad bears: labels flipped, spans displaced, spans dropped.

`text2grad compare` does the work, on the embedded code task, by default with the trained reward model in the loop:
text2grad at every level of noise beside scalar PPO without noise, from the same SFT policy with the same prompts,
rollouts and steps. Noise is in the spans alone; the verdict, which both have, stays. What has been run is not
repeated.

    python experiments/noise.py [--seeds 0 1 2] [--kinds flip displace drop] [--shares 0 .05 .1 .2 .4] [--steps 30]
        [--critic program] [--set evaluate.samples=8] [--workers 2] [--out runs/noise]

Leaves compare.md and noise.svg in --out. The last line of stdout is one JSON object: `text2grad` (kind -> share ->
mean held-out pass rate, and the share of spans that was `altered`), `scalar_ppo`, `sft`, each greedy and sampled,
and `gain_ends` (kind -> the first share at which the sampled rate is not above scalar PPO's; null: none that was
run).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figure import svg
from methods import written
from text2grad.compare import run_compare
from text2grad.compare.tuning import Extent
from text2grad.config import Config, find_config, load_config
from text2grad.errors import exit_on_user_error
from text2grad.report.curves import Line

KINDS, SHARES = ("flip", "displace", "drop"), (0.0, 0.05, 0.1, 0.2, 0.4)
HERE = Path(__file__).resolve().parent
"""Where the commands that `compare` starts find `noisy_critic`."""
SCALAR, SFT, CLEAN = "scalar", "sft", "text2grad"
Row = dict[str, Any]


def main() -> None:
    chosen = options()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    config = preset(chosen)
    noisy = [(kind, share) for share in sorted(set(chosen.shares) - {0.0}, reverse=True) for kind in chosen.kinds]
    names = [SFT, SCALAR, CLEAN, *(recipe_file(chosen, kind, share) for kind, share in noisy)]
    found = run_compare(config, names, Extent(chosen.seeds), chosen.workers)["methods"]
    figures = summary(found, chosen)
    (chosen.out / "noise.svg").write_text(figure(figures), encoding="utf-8")
    print(json.dumps(figures))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--critic", choices=("reward_model", "program"), default="reward_model")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all methods")
    parser.add_argument("--workers", type=int, default=2, help="commands side by side, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/noise"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


def preset(chosen: argparse.Namespace, *words: str) -> Config:
    own = (f"run.folder={chosen.out}", f"critic.kind={chosen.critic}", f"ppo.steps={chosen.steps}")
    return load_config(find_config("demo"), [f"--{each}" for each in (*own, *chosen.set, *words)])


def arm_of(kind: str, share: float) -> str:
    return f"{kind}_{round(100 * share)}" if share else CLEAN


def recipe_file(chosen: argparse.Namespace, kind: str, share: float) -> str:
    """text2grad with so much noise in the spans of its critic."""
    whole = preset(chosen, f"critic.kind=noisy_critic:{arm_of(kind, share)}_of_{chosen.critic}")
    return written(arm_of(kind, share), chosen.out, whole)


def summary(found: Row, chosen: argparse.Namespace) -> Row:
    """Means over the seeds."""
    text2grad = {
        kind: {f"{share:g}": figures_of(found, arm_of(kind, share), chosen) for share in sorted(chosen.shares)}
        for kind in chosen.kinds
    }
    scalar = figures_of(found, SCALAR, chosen)
    ends = {
        kind: next((float(s) for s, each in levels.items() if each["sampled"] <= scalar["sampled"]), None)
        for kind, levels in text2grad.items()
    }
    sft = figures_of(found, SFT, chosen)
    return {"text2grad": text2grad, "scalar_ppo": scalar, "sft": sft, "gain_ends": ends}


def figures_of(found: Row, arm: str, chosen: argparse.Namespace) -> Row:
    """Of one method the mean pass rates, the spread of the seeds, and what its noise has altered."""
    row = found[arm]
    rates = {"greedy": row["greedy"]["metric"], "sampled": row["metric"]}
    rates["sampled_spread"] = max(row["seeds"]) - min(row["seeds"])
    folders = [chosen.out / f"seed-{seed}" for seed in chosen.seeds]
    steps = [step for folder in folders for step in read(folder / "ppo" / arm / "metrics.jsonl")]
    if seen := sum(step.get("noise_spans", 0) for step in steps):
        rates["altered"] = sum(step.get("noise_altered", 0) for step in steps) / seen
    return {name: round(value, 4) for name, value in rates.items()}


def read(path: Path) -> Sequence[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def figure(figures: Row) -> str:
    """Sampled pass rate against the share of spans with noise, per cent, as one SVG."""
    kinds = figures["text2grad"]
    lines = [
        Line(kind, tuple((100 * float(share), each["sampled"]) for share, each in levels.items()))
        for kind, levels in kinds.items()
    ]
    last = max(x for line in lines for x, _ in line.points)
    for name in ("scalar_ppo", "sft"):
        lines.append(Line(name, ((0.0, figures[name]["sampled"]), (last, figures[name]["sampled"]))))
    return svg(lines, "held-out pass rate, sampled", "% of spans with noise")


if __name__ == "__main__":
    with exit_on_user_error():
        main()
