"""How much noise in the spans text2grad bears: labels flipped, spans displaced, spans dropped.

On the embedded code task, by default with the trained reward model in the loop: text2grad at every level of noise
beside scalar PPO without noise, from the same SFT policy with the same prompts, rollouts and steps. Noise is in the
spans alone; the verdict, which both have, stays. Rows are kept in --out: what stands in its results.jsonl, and was
made with the same settings, is not run again.

    python experiments/noise.py [--seeds 0 1 2] [--kinds flip displace drop] [--shares 0 .05 .1 .2 .4] [--steps 30]
        [--runs runs/sample_efficiency] [--workers 2] [--out runs/noise]

Leaves noise.svg in --out. The last line of stdout is one JSON object: `text2grad` (kind -> share -> mean held-out
pass rate), `scalar_ppo`, `sft`, each greedy and sampled, and `gain_ends` (kind -> the first share at which the
sampled rate is not above scalar PPO's; null: none that was run).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from figure import svg
from recipe import recipe_of, refuse_other_recipe
from text2grad.config import Config, find_config, laid_over, load_config
from text2grad.critics.noise import NoiseSettings
from text2grad.report.curves import Line
from text2grad.stages.annotate import run_annotate
from text2grad.stages.evaluate import run_evaluate
from text2grad.stages.ppo import run_train
from text2grad.stages.reward_model import run_train_reward
from text2grad.stages.supervised import run_sft

KINDS, SHARES = ("flip", "displace", "drop"), (0.0, 0.05, 0.1, 0.2, 0.4)
SCALAR, SFT, CLEAN = "scalar_ppo", "sft", "text2grad"
Row = dict[str, Any]


def main() -> None:
    chosen = options()
    os.environ["OMP_NUM_THREADS"] = "1"
    results = chosen.out / "results.jsonl"
    done = {(row["arm"], row["seed"], row.get("recipe")) for row in read(results)}
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        list(pool.map(prepare, [(chosen, seed) for seed in chosen.seeds]))
        jobs = [
            (arm, seed, settings) for seed in chosen.seeds for arm, settings in arms(demo(seed, chosen), chosen)
        ]
        waiting = [pool.submit(run, *job) for job in jobs if (*job[:2], recipe_of(job[2])) not in done]
        for finished in as_completed(waiting):
            row = json.dumps(finished.result())
            with results.open("a", encoding="utf-8") as handle:
                handle.write(row + "\n")
            print(row, file=sys.stderr, flush=True)
    wanted = {(arm, seed, recipe_of(config)) for arm, seed, config in jobs}
    rows = [row for row in read(results) if (row["arm"], row["seed"], row.get("recipe")) in wanted]
    figures = summary(rows, chosen.kinds, chosen.shares)
    (chosen.out / "noise.svg").write_text(figure(figures), encoding="utf-8")
    print(json.dumps(figures))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="a folder of seed-N folders whose policies are taken, not made")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--critic", choices=("reward_model", "program"), default="reward_model")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/noise"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


def prepare(place: tuple[argparse.Namespace, int]) -> None:
    """SFT policy and reward model of one seed in its run folder: copied from `--runs`, or made."""
    chosen, seed = place
    config = demo(seed, chosen)
    refuse_other_recipe(config)
    wanted = ["sft"] + (["reward_model"] if chosen.critic == "reward_model" else [])
    if all((config.run.folder / part / "policy").is_dir() for part in wanted):
        return
    if chosen.runs is not None:
        for part in wanted:
            source = chosen.runs / f"seed-{seed}" / part / "policy"
            shutil.copytree(source, config.run.folder / part / "policy", dirs_exist_ok=True)
        return
    run_sft(config)
    if "reward_model" in wanted:
        run_annotate(config)
        run_train_reward(config)


def demo(seed: int, chosen: argparse.Namespace) -> Config:
    words = {
        "run.folder": chosen.out / f"seed-{seed}",
        "run.seed": seed,
        "run.threads": 1,
        "task.seed": seed,
        "critic.kind": chosen.critic,
        "ppo.steps": chosen.steps,
    }
    return load_config(find_config("demo"), [f"--{key}={value}" for key, value in words.items()])


def arms(config: Config, chosen: argparse.Namespace) -> Iterator[tuple[str, Config]]:
    """SFT, scalar PPO as the demo runs it, and text2grad at each level of each kind; no noise is run once."""
    yield SFT, config
    yield SCALAR, laid_over(config, "scalar")
    yield CLEAN, config
    for share in sorted(set(chosen.shares) - {0.0}, reverse=True):
        for kind in chosen.kinds:
            noise = NoiseSettings(kind=kind, share=share)
            critic = config.critic.model_copy(update={"noise": noise})
            yield f"{kind}_{round(100 * share)}", config.model_copy(update={"critic": critic})


def run(arm: str, seed: int, config: Config) -> Row:
    """Train one arm and measure it; CPU seconds of this process and its children."""
    before = sum(os.times()[:4])
    if arm != SFT:
        run_train(config, arm, "restart")
    measured = run_evaluate(config, arm).figures
    steps = read(config.run.folder / "ppo" / arm / "metrics.jsonl") if arm != SFT else []
    seen = sum(step.get("noise_spans", 0) for step in steps)
    return {
        "arm": arm,
        "seed": seed,
        "critic": config.critic.kind,
        "recipe": recipe_of(config),
        "steps": len(steps),
        "greedy": measured["greedy_pass"],
        "sampled": measured["sampled_pass"],
        "kl": steps[-1]["kl"] if steps else 0.0,
        "altered": sum(step.get("noise_altered", 0) for step in steps) / seen if seen else 0.0,
        "cpu_seconds": round(sum(os.times()[:4]) - before, 1),
    }


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def summary(rows: Sequence[Row], kinds: Sequence[str], shares: Sequence[float]) -> Row:
    """Means over the seeds."""
    text2grad: dict[str, dict[str, Row]] = {}
    for kind in kinds:
        named = {f"{share:g}": CLEAN if share == 0 else f"{kind}_{round(100 * share)}" for share in sorted(shares)}
        text2grad[kind] = {share: each for share, arm in named.items() if (each := means(rows, arm))}
    scalar = means(rows, SCALAR)
    ends = {
        kind: next((float(s) for s, each in levels.items() if each["sampled"] <= scalar["sampled"]), None)
        for kind, levels in text2grad.items()
    }
    return {"text2grad": text2grad, "scalar_ppo": scalar, "sft": means(rows, SFT), "gain_ends": ends}


def means(rows: Sequence[Row], arm: str) -> Row:
    found = [row for row in rows if row["arm"] == arm]
    if not found:
        return {}
    sampled = [row["sampled"] for row in found]
    rates = {"greedy": fmean(row["greedy"] for row in found), "sampled": fmean(sampled)}
    spread = max(sampled) - min(sampled)
    figures = {key: round(value, 4) for key, value in (*rates.items(), ("sampled_spread", spread))}
    return {**figures, "seeds": [row["seed"] for row in found]}


def figure(figures: Row) -> str:
    """Sampled pass rate against the share of spans with noise, per cent, as one SVG."""
    kinds = figures["text2grad"]
    lines = [
        Line(kind, tuple((100 * float(share), each["sampled"]) for share, each in levels.items()))
        for kind, levels in kinds.items()
    ]
    last = max(x for line in lines for x, _ in line.points)
    for name in (SCALAR, SFT):
        lines.append(Line(name, ((0.0, figures[name]["sampled"]), (last, figures[name]["sampled"]))))
    return svg(lines, "held-out pass rate, sampled", "% of spans with noise")


if __name__ == "__main__":
    main()
