"""Does the method hold on a pretrained model: SmolLM2-135M with adapters, text2grad beside what people use.

Of every task and seed one SFT policy, shared by all methods. Each method then runs PPO with the same critic,
rollouts and steps, and is measured on held-out problems: greedy, sampled, and sampled at its own best
temperature, chosen on training prompts (a policy that is only surer of itself gains nothing there). The critic
is the program that knows the answer (the person's line, the tests); with --reward-model it is a reward model
that learned from that program what to say, a second adapter on the same base weights. Learning rates are chosen
with as many tries for each method on --tune seeds, which are not reported. A row that stands in
--out/results.jsonl, made with the same settings, is not run again, so the command can be stopped and repeated.

    python experiments/pretrained.py [--seeds 3] [--tasks docstrings code human_qa] [--arms text2grad scalar grpo]
        [--reward-model] [--tune 100 --lrs 1e-4 3e-4 1e-3] [--set ppo.steps=12 ...] [--workers 2] [--out FOLDER]

`docstrings` is the preset function_summaries, measured by ROUGE-L; `code` is small_programs, measured by tests;
`human_qa` trains the reward model on what people marked, and measures that. A method is one of the recipes, with
parts of sample_efficiency.py laid over it: `grpo+kl_0.4`, `text2grad+values`, `text2grad+group_of_8`.

The last line of stdout is one JSON object: `tasks` (of each, of each method: `greedy`, `sampled` and
`best_temperature`, each the mean and the seeds), `collapsed` (runs that stopped by themselves or ended
`eval.drift.collapsed`), `forgetting` (points lost on ARC-Challenge by the worst run of text2grad, against SFT),
`reward_model` (of human_qa: F1 of poor tokens with its interval, beside random spans).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from recipe import recipe_of, refuse_other_recipe
from sample_efficiency import PARTS
from text2grad.config import Config, find_config, load_config, recipe_names
from text2grad.eval.drift import collapsed

PRESETS = {"docstrings": "function_summaries", "code": "small_programs", "human_qa": "human_qa"}
MEASURES = {"docstrings": "rouge_l", "code": "pass"}
CRITICS = {"docstrings": "reference", "code": "program"}
ARMS = ("text2grad", "scalar", "grpo")
RATES = {"text2grad": 3e-4, "scalar": 3e-4, "grpo": 3e-4, "paper": 3e-5}
"""Learning rates, each the best of as many on the tuning seeds (docs/LOG.md)."""
WAYS = ("greedy", "sampled", "best_temperature")
TEMPERATURES = "[0.3, 0.6, 1.0]"
GROUP_OF_8 = {"ppo.advantage": "group", "ppo.samples_per_prompt": 8}
SHARED = Path("../shared/data")
HUMAN = ("finegrained_rlhf_qa/dev_feedback.json", "squality_human_eval/span_comments_flat.jsonl")
Row = dict[str, Any]


def main() -> None:
    chosen = options()
    os.environ["OMP_NUM_THREADS"] = "1"
    found: Row = {"tasks": {}, "collapsed": [], "forgetting": None, "reward_model": None}
    seeds = chosen.tune or list(range(chosen.seeds))
    for task in chosen.tasks:
        if task == "human_qa":
            found["reward_model"] = human_reward_model(chosen)
            continue
        with ThreadPoolExecutor(chosen.workers) as pool:
            list(pool.map(lambda seed, task=task: prepare(chosen, task, seed), seeds))
            first = [] if chosen.tune else [("base", 0.0, seeds[0])]  # the same model on every seed
            runs = [*first, *((arm, rate, seed) for seed in seeds for arm, rate in trials(chosen))]
            rows = list(pool.map(lambda run, task=task: measured(chosen, task, *run), runs))
        found["tasks"][task] = table(rows, by_rate=bool(chosen.tune))
        found["collapsed"] += list(fallen(task, rows))
        known = [lost for lost in (found["forgetting"], forgotten(rows)) if lost is not None]
        found["forgetting"] = max(known, default=None)
    print(json.dumps(found))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--tasks", nargs="+", choices=PRESETS, default=["docstrings", "code"])
    parser.add_argument("--arms", nargs="+", type=method, default=list(ARMS), metavar="ARM")
    parser.add_argument("--tune", type=int, nargs="+", metavar="SEED", help="every rate of --lrs on these seeds")
    parser.add_argument("--lrs", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    parser.add_argument("--reward-model", action="store_true", help="the critic in the loop is a trained one")
    parser.add_argument("--arc", type=int, default=300, help="questions of ARC-Challenge for `forgetting`; 0: none")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all methods")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    chosen = parser.parse_args()
    if chosen.tune and set(chosen.tune) & set(range(chosen.seeds)):
        parser.error("a seed cannot be both tuned on and reported")
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


def method(name: str) -> str:
    """A method's name, if all of its parts are known."""
    base, *parts = name.split("+")
    if base not in RATES or set(parts) - PARTS.keys() - {"group_of_8"}:
        raise argparse.ArgumentTypeError(f"no method {name}: {', '.join(RATES)}, + parts of {', '.join(PARTS)}")
    return name


def trials(chosen: argparse.Namespace) -> list[tuple[str, float]]:
    """The methods with their rates, after the SFT policy that they start from."""
    arms = [(arm, rate) for arm in chosen.arms for rate in (chosen.lrs if chosen.tune else [rate_of(arm)])]
    return [("sft", 0.0), *arms]


def rate_of(arm: str) -> float:
    return RATES[arm.partition("+")[0]]


def words_of(chosen: argparse.Namespace, task: str, seed: int, arm: str = "", rate: float = 0.0) -> list[str]:
    """The words of a command: preset, recipe, and settings, those of the user last."""
    base, *parts = arm.split("+")
    words = ["--config", PRESETS[task], *(["--config", base] if base in recipe_names() else [])]
    words += ["--config", "smollm2"] if task == "human_qa" else []
    settings: Row = {"run.folder": chosen.out / task / f"seed-{seed}", "run.seed": seed, "task.seed": seed}
    settings |= {"run.threads": 1, "evaluate.temperatures": TEMPERATURES, "evaluate.reference": "sft"}
    if task in CRITICS:
        settings["critic.kind"] = "reward_model" if chosen.reward_model else CRITICS[task]
    for part in parts:
        settings |= GROUP_OF_8 if part == "group_of_8" else PARTS[part]
    settings |= {"ppo.lr": rate} if rate else {}
    return [*words, *(f"--{key}={value}" for key, value in settings.items()), *(f"--{each}" for each in chosen.set)]


def config_of(words: Sequence[str]) -> Config:
    names = [words[place + 1] for place, word in enumerate(words) if word == "--config"]
    return load_config([find_config(name) for name in names], [word for word in words if "=" in word])


def command(*words: str) -> Row:
    """Run the command line; returns what it prints as JSON.

    Raises:
        RuntimeError: it failed, with the last line of its stderr.
    """
    done = subprocess.run([sys.executable, "-m", "text2grad.cli", *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def prepare(chosen: argparse.Namespace, task: str, seed: int) -> None:
    """The SFT policy of one seed, and the reward model where it is the critic."""
    words = words_of(chosen, task, seed)
    config = config_of(words)
    refuse_other_recipe(config)
    products = {"sft": "sft/policy", "annotate": "feedback.jsonl", "train-reward": "evaluation/reward_model.json"}
    for stage in products if chosen.reward_model else ["sft"]:
        if not (config.run.folder / products[stage]).exists():
            command(stage, *words)
            say(f"{task} {seed}: {stage} done")


def measured(chosen: argparse.Namespace, task: str, arm: str, rate: float, seed: int) -> Row:
    """Train one method and measure it; what stands in results.jsonl is read."""
    words = words_of(chosen, task, seed, arm, rate)
    config = config_of(words)
    key: Row = {"task": task, "arm": arm, "lr": rate, "seed": seed, "recipe": recipe_of(config), "arc": chosen.arc}
    results = chosen.out / "results.jsonl"
    for line in results.read_text(encoding="utf-8").splitlines() if results.is_file() else []:
        if key.items() <= (row := json.loads(line)).items():
            return row
    row = key | trained(words, config, task, arm, rate, chosen.arc)
    with results.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row) + "\n")
    say(f"{task} {seed} {arm} {rate:g}: " + " ".join(f"{way} {row[way]:.3f}" for way in WAYS if way in row))
    return row


def trained(words: Sequence[str], config: Config, task: str, arm: str, rate: float, arc: int) -> Row:
    name = {"base": config.policy.model, "sft": "sft"}.get(arm, f"{arm}_{rate:g}_{config.critic.kind}")
    if arm not in ("base", "sft"):
        try:
            command("train", "--name", name, *words)
        except RuntimeError as error:
            return {"stopped": str(error)}
    figures = command("evaluate", name, *words)
    row: Row = {way: figures[f"{way}_{MEASURES[task]}"] for way in ("greedy", "sampled")}
    row |= {"best_temperature": figures[f"best_temperature_{MEASURES[task]}"], "figures": figures}
    if arc and arm != "base":
        limit = ("--evaluate.temperatures=[]", f"--evaluate.limit={arc}")
        row["arc_score"] = command("evaluate", name, "--task", "arc", *words, *limit)["likelihood_normalised"]
    return row


def fallen(task: str, rows: Sequence[Row]) -> Iterator[str]:
    """The runs that stopped by themselves or collapsed, each with the reasons."""
    before = {row["seed"]: row["figures"] for row in rows if row["arm"] == "sft"}
    for row in rows:
        if "stopped" in row:
            yield f"{task} {row['arm']} {row['seed']}: {row['stopped']}"
        elif reasons := collapsed(before[row["seed"]], row["figures"], f"greedy_{MEASURES[task]}"):
            yield f"{task} {row['arm']} {row['seed']}: {', '.join(reasons)}"


def table(rows: Sequence[Row], by_rate: bool) -> Row:
    """Of each method (and rate, while tuning) the mean and the seeds, for each way to answer."""
    names = {id(row): f"{row['arm']} {row['lr']:g}" if by_rate and row["lr"] else row["arm"] for row in rows}
    return {
        name: {
            way: {"mean": round(fmean(values), 4), "seeds": values}
            for way in WAYS
            if (values := [round(row[way], 4) for row in rows if names[id(row)] == name and way in row])
        }
        for name in dict.fromkeys(names.values())
    }


def forgotten(rows: Sequence[Row]) -> float | None:
    """Points that the worst run of text2grad lost on ARC-Challenge against its SFT policy."""
    before = {row["seed"]: row["arc_score"] for row in rows if row["arm"] == "sft" and "arc_score" in row}
    lost = [
        before[row["seed"]] - row["arc_score"] for row in rows if row["arm"] == "text2grad" and "arc_score" in row
    ]
    return round(100 * max(lost), 2) if lost else None


def human_reward_model(chosen: argparse.Namespace) -> Row:
    """A reward model trained on people's marks: F1 of poor tokens on held-out questions."""
    words = words_of(chosen, "human_qa", 0)
    folder = config_of(words).run.folder
    if not (folder / "feedback.jsonl").exists():
        for file in HUMAN:
            command("import", str(SHARED / file), *words)
    for stage, product in {"sft": "sft/policy", "train-reward": "evaluation/reward_model.json"}.items():
        if not (folder / product).exists():
            command(stage, *words)
            say(f"human_qa: {stage} done")
    found = command("evaluate", "--task", "reward-model", *words)
    interval = [round(bound, 4) for bound in found["poor"]["intervals"]["f1"]]
    random = found["baselines"]["random_spans"]["poor_f1"]
    kept = {"poor_f1": found["poor_f1"], "poor_f1_interval": interval, "random_f1": random}
    return kept | {name: found[name] for name in ("unmatched", "unreadable", "records")}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
