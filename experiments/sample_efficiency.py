"""How many rollouts does a method need: text2grad, scalar PPO and their variants on the embedded code task.

Of every seed: SFT, annotation and one reward model, shared by all methods. Each method then runs PPO against that
reward model with the same prompts, rollouts, epochs and optimizer steps, and is measured on held-out problems by
their tests while it trains. The learning rate of each method is chosen on --tune-seeds over one grid for all (of
one rate there is nothing to choose); the figures come from --seeds, which are not looked at for it. A run that
stands in --out is not repeated.

    python experiments/sample_efficiency.py [--arms text2grad scalar] [--seeds 0 1 2] [--tune-seeds 100 101]
        [--lrs 2.5e-5 5e-5 1e-4 2e-4 4e-4] [--steps 30] [--every 3] [--workers 2] [--out runs/sample_efficiency]

Ten times the size, on a GPU: --out runs/tenfold --workers 1 --set policy.device=cuda tiny.hidden=320 tiny.layers=6
tiny.heads=5 tiny.feed_forward=880.

A method is the demo's recipe with parts laid over it, joined by +: `text2grad` and `scalar` alone, or
`scalar+values`, `poor_half+kl_0.05` (PARTS).

Leaves table.md and curves.svg in --out. The last line of stdout is one JSON object: `text2grad_final` and
`scalar_final` (held-out pass@1 of sampled answers, mean over the seeds), `rollout_ratio` (rollouts text2grad needs
for scalar PPO's final rate / scalar PPO's rollouts, mean over the seeds; null if one never reaches it),
`seeds` (of each the final rates and the ratio), `collapsed` (runs that ended below the SFT policy, or
stopped because they diverged or their answers could not be judged any more), `arms`.
Wanted: rollout_ratio at most .5, text2grad_final at least .10 above scalar_final, nothing collapsed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from figure import svg
from recipe import recipe_of, refuse_other_recipe
from text2grad.config import Config, find_config, load_config, recipe_names
from text2grad.report.curves import Line, mean_line

Run = dict[str, Any]

# A method is the demo's recipe with parts of this laid over it: "scalar", "scalar+values", "poor_half+kl_0.05".
PARTS: dict[str, dict[str, object]] = {
    "text2grad": {},
    "scalar": {},  # its recipe laid over the demo, as the demo does
    "values": {"ppo.advantage": "gae", "ppo.value_lr": 1e-3},
    "no_warmup": {"ppo.value_warmup": 0},
    "returns": {"ppo.advantage": "returns"},
    "k1": {"ppo.kl": "k1"},
    "separate_critic": {"policy.value_head": "separate"},
    "group": {"ppo.advantage": "group", "ppo.samples_per_prompt": 4},
    "spread_score": {"credit.scheme": "spread_score"},
    "span": {"credit.weighting": "span"},
    "balanced": {"credit.weighting": "balanced"},
    "no_verdict": {"credit.outcome_weight": 0.0},
    "verdict_0.5": {"credit.outcome_weight": 0.5},
    "verdict_2": {"credit.outcome_weight": 2.0},
    "verdict_signs": {"credit.signs": "verdict"},
    "agreeing_signs": {"credit.signs": "agreeing"},
    "poor_half": {"credit.poor_weight": 0.5},
    "poor_quarter": {"credit.poor_weight": 0.25},
    "gamma_1": {"ppo.gamma": 1.0},
    "gamma_0.9": {"ppo.gamma": 0.9},
    "gamma_0.5": {"ppo.gamma": 0.5},
    "lam_1": {"ppo.lam": 1.0},
    "definition_1": {"ppo.gamma": 0.0, "ppo.lam": 0.0},
    "full_kl": {"ppo.kl": "full", "ppo.kl_coefficient": 0.4},
    **{f"kl_{coefficient}": {"ppo.kl_coefficient": coefficient} for coefficient in (0.01, 0.05, 0.1, 0.2, 0.4)},
    "whiten": {"ppo.normalisation": "whiten"},
    "not_normalised": {"ppo.normalisation": "none"},
    "linear": {"ppo.schedule": "linear"},
    "grounded": {"reward_model.grounded": "on"},  # its quotes are forced into place
    "refreshed": {},  # two lessons for the reward model (refresh.py)
    "paper": {},  # its recipe laid over the demo
}


def main() -> None:
    chosen = options()
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        tune_seeds = chosen.tune_seeds if len(chosen.lrs) > 1 else []
        list(pool.map(prepare, [(chosen.out, seed, chosen.set) for seed in {*chosen.seeds, *tune_seeds}]))
        tuning = [(arm, lr, seed) for seed in tune_seeds for arm in chosen.arms for lr in chosen.lrs]
        tried = list(pool.map(trained, [job(chosen, *each) | {"every": chosen.steps} for each in tuning]))
        best = {arm: best_rate(chosen.lrs, [run for run in tried if run["arm"] == arm]) for arm in chosen.arms}
        say(f"learning rates: {best}")
        final = [(arm, best[arm], seed) for seed in chosen.seeds for arm in chosen.arms]
        runs = list(pool.map(trained, [job(chosen, *each) for each in final]))
    (chosen.out / "table.md").write_text(table(tried, runs), encoding="utf-8")
    drawn = svg(list(curves(runs)), "held-out pass@1, sampled", "rollouts")
    (chosen.out / "curves.svg").write_text(drawn, encoding="utf-8")
    print(json.dumps(figures(runs)))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", type=method, default=["text2grad", "scalar"], metavar="ARM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tune-seeds", nargs="+", type=int, default=[100, 101])
    parser.add_argument("--lrs", nargs="+", type=float, default=[2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=3, help="steps between measurements; tuning looks at the end")
    parser.add_argument("--samples", type=int, default=8, help="answers per held-out problem")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all stages and methods"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/sample_efficiency"))
    chosen = parser.parse_args()
    if set(chosen.seeds) & set(chosen.tune_seeds):
        parser.error("a seed cannot be both tuned on and reported")
    chosen.out.mkdir(parents=True, exist_ok=True)
    chosen.set = [f"--{words}" for words in chosen.set]
    return chosen


def method(name: str) -> str:
    """A method's name, if all of its parts are known."""
    if unknown := set(name.split("+")) - PARTS.keys():
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return name


def changes(arm: str) -> dict[str, object]:
    """What a method changes in the demo's recipe, later parts over earlier ones."""
    return {key: value for part in arm.split("+") for key, value in PARTS[part].items()}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def settings(out: Path, seed: int, arm: str, words: dict[str, object], common: Sequence[str] = ()) -> Config:
    layers = [find_config(name) for name in ("demo", *(part for part in arm.split("+") if part in recipe_names()))]
    base = {"run.folder": out / f"seed-{seed}", "run.seed": seed, "run.threads": 1, "task.seed": seed}
    return load_config(layers, [*common, *(f"--{key}={value}" for key, value in {**base, **words}.items())])


def prepare(place: tuple[Path, int, list[str]]) -> None:
    """SFT policy and reward model of one seed, by the command line as anyone would make them."""
    out, seed, common = place
    refuse_other_recipe(settings(out, seed, "text2grad", {}, common))
    folder = out / f"seed-{seed}"
    words = [f"--{k}={v}" for k, v in {"run.seed": seed, "run.threads": 1, "task.seed": seed}.items()]
    products = {"sft": "sft/policy", "annotate": "feedback.jsonl", "train-reward": "evaluation/reward_model.json"}
    for stage, product in products.items():
        if not (folder / product).exists():
            command = [
                sys.executable,
                "-m",
                "text2grad.cli",
                stage,
                "--config",
                "demo",
                "--run.folder",
                str(folder),
            ]
            done = subprocess.run([*command, *common, *words], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"seed {seed}: {stage} failed: {done.stderr.strip().splitlines()[-1]}")
            say(f"seed {seed}: {stage} done")


def job(chosen: argparse.Namespace, arm: str, lr: float, seed: int) -> Run:
    keep = ("out", "steps", "every", "samples", "set")
    return {"arm": arm, "lr": lr, "seed": seed, **{name: getattr(chosen, name) for name in keep}}


def trained(one: Run) -> Run:
    """The run of one method, rate and seed: that of the folder, if made with these settings, or made now."""
    name = "-".join(f"{one[key]}" for key in ("arm", "lr", "steps", "every", "samples"))
    path = one["out"] / f"seed-{one['seed']}" / "curves" / f"{name}.json"
    chosen = {"ppo.lr": one["lr"], "ppo.steps": one["steps"], "evaluate.samples": one["samples"]}
    config = settings(one["out"], one["seed"], one["arm"], changes(one["arm"]) | chosen, one["set"])
    recipe = recipe_of(config)
    if path.is_file():
        found: Run = json.loads(path.read_text(encoding="utf-8"))
        if found.get("recipe") == recipe:
            return found
    path.parent.mkdir(exist_ok=True)
    curve, stopped = train(one, config, name)
    run = {key: one[key] for key in ("arm", "lr", "seed", "steps")}
    run |= {"recipe": recipe, "curve": curve, "stopped": stopped}
    path.write_text(json.dumps(run), encoding="utf-8")
    say(f"{one['seed']} {name}: " + " ".join(f"{point['sampled']:.3f}" for point in curve))
    return run


def train(one: Run, config: Config, name: str) -> tuple[list[dict[str, float]], str | None]:
    """Held-out rates before the first step and every few steps of one PPO run; measuring changes nothing in it.

    A run that stops because it diverged, or its answers cannot be judged any more, counts as collapsed: its curve
    ends with the policy it leaves, and why it stopped comes with it. Any other failure ends the experiment.
    """
    import torch

    from refresh import RefreshedCritic
    from text2grad.errors import CritiquesFailed, Diverged
    from text2grad.policy.model import load_policy
    from text2grad.stages.critics import make_critic, runner_of
    from text2grad.stages.evaluate import evaluate_policy, measure_with
    from text2grad.stages.folder import start_policy, task_of
    from text2grad.train.ppo import train_ppo
    from text2grad.train.run import Resume, seed_everything
    from text2grad.train.state import Randomness

    torch.set_num_threads(1)
    task = task_of(config)
    policy = load_policy(start_policy(config))
    heldout = task.examples("heldout")
    curve: list[dict[str, float]] = []
    with runner_of(config) as runner:

        def measured(step: int, metrics: dict[str, float]) -> None:
            if (step + 1) % one["every"] and step + 1 != one["steps"]:
                return
            before = Randomness.now()
            summary = evaluate_policy(policy, heldout, config, measure_with(task, runner)).summary.figures
            Randomness.restore(before.tensors(), before.numbers())
            kept = {key: metrics[key] for key in ("score", "kl", "wrong_sign_rate") if key in metrics}
            rates = {way: summary[f"{way}_pass"] for way in ("sampled", "greedy")}
            curve.append({"rollouts": (step + 1) * config.ppo.rollouts, **rates, **kept})

        measured(-1, {})
        seed_everything(one["seed"])
        folder = config.run.folder / "ppo" / name
        refreshed = RefreshedCritic(config, task, runner, folder) if "refreshed" in one["arm"].split("+") else None

        def after(step: int, metrics: dict[str, float]) -> None:
            measured(step, metrics)
            if refreshed and refreshed.is_due(step):
                refreshed.lesson(step, policy)

        critic = refreshed or make_critic(config, config.critic.kind, task, runner)
        try:
            train_ppo(
                *(policy, task.examples("train"), critic, config.ppo, config.credit, config.generation),
                *(folder, one["seed"], name, after, Resume("restart")),
            )
        except (CritiquesFailed, Diverged) as error:
            say(f"{one['seed']} {name} stopped: {error}")
            measured(one["steps"] - 1, {})
            return curve, str(error)
    return curve, None


def best_rate(rates: Sequence[float], runs: Sequence[Run]) -> float:
    """The learning rate whose runs end highest; of one there is nothing to choose."""
    if len(rates) == 1:
        return rates[0]
    return max(sorted(rates), key=lambda lr: fmean(final(run) for run in runs if run["lr"] == lr))


def final(run: Run) -> float:
    """The sampled rate at the end."""
    return float(run["curve"][-1]["sampled"])


def collapsed(run: Run) -> bool:
    """It stopped by itself, or ended below the SFT policy."""
    return bool(run.get("stopped")) or final(run) < run["curve"][0]["sampled"]


def rollouts_to(run: Run, rate: float) -> float | None:
    """Rollouts after which the curve first reaches `rate`, straight lines between measurements; None: never."""
    points = [(point["rollouts"], point["sampled"]) for point in run["curve"]]
    if points[0][1] >= rate:
        return 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= rate:
            return float(x0 + (x1 - x0) * (rate - y0) / (y1 - y0))
    return None


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """What the experiment says in numbers."""
    by = {(run["arm"], run["seed"]): run for run in runs}
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    finals = {arm: [final(run) for run in runs if run["arm"] == arm] for arm in arms}
    result: dict[str, Any] = {"arms": {arm: round(fmean(rates), 4) for arm, rates in finals.items()}}
    result["collapsed"] = [f"{run['arm']} {run['seed']}" for run in runs if collapsed(run)]
    if {"text2grad", "scalar"} <= set(arms):
        seeds = {
            seed: compared(by["text2grad", seed], by["scalar", seed]) for arm, seed in by if arm == "text2grad"
        }
        result["text2grad_final"] = round(fmean(finals["text2grad"]), 4)
        result["scalar_final"] = round(fmean(finals["scalar"]), 4)
        ratios = [ratio for each in seeds.values() if (ratio := each["rollout_ratio"]) is not None]
        result["rollout_ratio"] = round(fmean(ratios), 4) if len(ratios) == len(seeds) else None
        result["seeds"] = seeds
    return result


def compared(ours: Run, scalar: Run) -> dict[str, float | None]:
    reached = rollouts_to(ours, final(scalar))
    ratio = None if reached is None else round(reached / scalar["curve"][-1]["rollouts"], 4)
    start = ours["curve"][0]["sampled"]
    return {"sft": start, "text2grad": final(ours), "scalar": final(scalar), "rollout_ratio": ratio}


def table(tried: Sequence[Run], runs: Sequence[Run]) -> str:
    """Every learning rate of every method on the tuning seeds, then the chosen one on the others."""
    lines = ["| method | lr | tuning seeds: sampled pass@1 at the end | mean |", "| --- | --- | --- | --- |"]
    lines += [_row(each) for each in grouped(tried)]
    lines += ["", "| method | lr | seeds: sampled pass@1 at the end | mean |", "| --- | --- | --- | --- |"]
    lines += [_row(each) for each in grouped(runs)]
    return "\n".join(lines) + "\n"


def grouped(runs: Sequence[Run]) -> Iterator[list[Run]]:
    for arm, lr in dict.fromkeys((run["arm"], run["lr"]) for run in runs):
        yield [run for run in runs if (run["arm"], run["lr"]) == (arm, lr)]


def _row(runs: Sequence[Run]) -> str:
    rates = [final(run) for run in runs]
    each = " / ".join(f"{rate:.3f}" for rate in rates)
    return f"| {runs[0]['arm']} | {runs[0]['lr']:g} | {each} | {fmean(rates):.3f} |"


def curves(runs: Sequence[Run]) -> Iterator[Line]:
    """Of each method the seeds, thin, and their mean."""
    for arm in dict.fromkeys(run["arm"] for run in runs):
        lines = [
            Line(arm, tuple((p["rollouts"], p["sampled"]) for p in run["curve"]), thin=True)
            for run in runs
            if run["arm"] == arm
        ]
        yield from lines
        yield mean_line(arm, lines)


if __name__ == "__main__":
    main()
