"""Do words beat a number where answers have parts, each right or wrong by itself?

Two tasks, `extraction` (messages -> a JSON object) and `reports` (rows of tables -> sentences), each against a
program that knows and against a reward model that learned from 400 of its critiques.

The lab's `compare` does the work, one comparison a task and critic, in a folder of its own: of every seed one SFT
policy and one reward model, shared by all methods; each method with the same critic, rollouts and steps, and its
rate chosen from the same --tries on another seed. Measured on kinds of document, or tables, that no training prompt
has: greedy, sampled, and sampled at its own best temperature. Whatever has been run is not repeated, so the table
can be made in pieces: `--tasks extraction --critics program` today, `--critics reward_model` tomorrow.

--model tiny is a Llama of about a million parameters made on the spot. --plan prints what is left of each
comparison and runs nothing. A method is one of the lab's `compare` or has parts of methods.py:
`text2grad+group_of_8` is groups of eight with spans. --measure: another of the task's measures, by which rates are
chosen, too: `--tasks reports --measure right`.

The last line of stdout is one JSON object of all pieces that have been run into --out: `tasks`: of each, under
`program` and `reward_model`, of each method the mean over the seeds `greedy`, `sampled` and `best` (at its best
temperature), and the sampled `difference` to text2grad, paired by prompt, with its 95 % `difference_interval` (null
of text2grad itself); and of the reward models, on answers to more prompts of the kinds that they learned from,
`poor_f1` and `good_f1` (tokens), `verdict_r` and `verdict_order` (of two answers to one prompt), means over the
seeds. `mbpp` (greedy, held-out) is that of `pretrained.py --tasks code --mbpp 150 --out FOLDER/mbpp`, null where it
was not run into --out. `collapsed`: runs that ended below SFT, as `task critic
method seed`. The measure is, unless named, the first of the task's: share of the fields that are right, share of
the facts that are stated.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from text2grad.config import Config
from text2grad.errors import UserError, exit_on_user_error
from text2grad.stages.run_folder import write_json
from text2grad_lab.compare import plan_of, run_compare
from text2grad_lab.compare.figures import BEST, scores_of
from text2grad_lab.compare.methods import BASE, METHODS, OURS
from text2grad_lab.compare.seeds import Seed
from text2grad_lab.compare.tuning import Extent
from text2grad_lab.experiments.common.commands import command, lines_of, prompt_of, rates
from text2grad_lab.experiments.common.methods import by_arm, file_name, method, method_of
from text2grad_lab.experiments.common.options import Row, configured, experiment_parser

TASKS = {"extraction": "fields", "reports": "covered"}
"""The measure of each task."""
CRITICS = ("program", "reward_model")
ARMS = ("sft", "rejection", "offline", "dpo", "scalar", "grpo", "text2grad+group_of_8", "text2grad")
TEMPERATURES = "[0.3, 0.6, 1.0]"
TINY = {
    "policy.model": "tiny",
    "policy.dtype": "float32",
    "policy.lora": "null",
    "tiny.vocabulary": 2048,
    "tiny.context": 512,
    "task.limit": 4000,
    "sft.epochs": 2,
    "sft.batch_size": 16,
    "sft.micro_batch_size": 16,
    "sft.optimizer": "text2grad.demo_muon:muon",
    "sft.lr": 5e-3,
    "reward_model.shared": "false",
    "reward_model.grounded": "off",
    "ppo.lr": 2e-4,
    "run.threads": 1,
}
"""What another model needs."""


def main() -> None:
    chosen = options()
    for task in chosen.tasks:
        for critic in chosen.critics:
            run_piece(chosen, task, critic)
    if not chosen.plan:
        print(json.dumps(figures(chosen.out)))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "parts", workers=1, counted=3)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--critics", nargs="+", choices=CRITICS, default=list(CRITICS))
    parser.add_argument("--methods", nargs="+", type=arm_name, default=list(ARMS), metavar="NAME")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="smollm2")
    parser.add_argument("--tries", type=int, default=1, help="rates tried for each method, on another seed")
    parser.add_argument("--measure", help="another measure of the task")
    parser.add_argument("--plan", action="store_true", help="only print what is left")
    return parser.parse_args()


def arm_name(name: str) -> str:
    return name if name in METHODS else method(name)


def preset(
    chosen: argparse.Namespace, task: str, critic: str, layers: Sequence[str] = (), words: Sequence[str] = ()
) -> Config:
    """The settings of a comparison, with recipes and options laid over them, those of the user last."""
    settings: Row = {"run.folder": chosen.out / f"{task}-{critic}", "evaluate.temperatures": TEMPERATURES}
    settings |= TINY if chosen.model == "tiny" else {}
    settings |= {"critic.kind": "reward_model"} if critic == "reward_model" else {}
    return configured([task, *layers], settings, chosen.set, words)


def run_piece(chosen: argparse.Namespace, task: str, critic: str) -> None:
    """Run what is missing of one comparison, and keep its figures beside those of the others."""
    config, measure = preset(chosen, task, critic), chosen.measure or TASKS[task]
    names = [method_of(arm, config.run.folder, partial(preset, chosen, task, critic)) for arm in chosen.methods]
    extent = Extent.of(chosen.first_seed, chosen.seeds, chosen.tries)
    if chosen.plan:
        print(json.dumps({f"{task} {critic}": plan_of(config, names, extent, chosen.workers)}))
        return
    found = by_arm(run_compare(config, names, extent, chosen.workers, measure))
    folders = [config.run.folder / f"seed-{number}" for number in extent.seeds]
    bests = {arm: best_of(config, extent.seeds, arm, measure) for arm in chosen.methods}
    piece: Row = {"methods": {arm: row_of(found["methods"][arm], bests[arm]) for arm in chosen.methods}}
    piece["collapsed"] = [f"{task} {critic} {each}" for each in found["collapsed"]]
    if critic == "reward_model":
        piece |= reward_model_of([unseen_rates(chosen, task, config, folder) for folder in folders])
    write_json(config.run.folder / "piece.json", piece)


def best_of(config: Config, seeds: Sequence[int], arm: str, measure: str) -> float:
    """The mean over the seeds of a method's measure at its own best temperature."""
    runs = [Seed(config, number, config.run.folder / f"seed-{number}", {}) for number in seeds]
    name = arm if arm == BASE else file_name(arm)
    return fmean(fmean(scores_of(seed, name, measure)[BEST].values()) for seed in runs)


def row_of(row: Row, best: float) -> Row:
    """One method as the last line shows it."""
    interval = row.get("difference_interval")
    return {
        "greedy": round(row["greedy"]["metric"], 4),
        "sampled": round(row["metric"], 4),
        "best": round(best, 4),
        "difference": round(row["difference"], 4) if "difference" in row else None,
        "difference_interval": [round(bound, 4) for bound in interval] if interval else None,
    }


def unseen_rates(chosen: argparse.Namespace, task: str, config: Config, folder: Path) -> Row:
    """The rates of a seed's reward model on answers of its SFT policy to prompts like those that it learned from.

    A fifth more prompts, which the critic judges: the loop asks about these kinds, not about held-out ones.
    """
    prompts = config.annotate.prompts
    if prompts is None:
        raise UserError("no prompt is left to measure a reward model on", "--set annotate.prompts=200")
    more, unseen, seed = folder / "more", folder / "unseen", folder.name.removeprefix("seed-")
    for place in (more, unseen):
        if not place.is_dir():
            shutil.copytree(folder / "sft", place / "sft")
    laid = {"run.seed": seed, "task.seed": seed, **(TINY if chosen.model == "tiny" else {}), "run.threads": 1}
    settings = [*(f"{key}={value}" for key, value in laid.items()), *chosen.set]
    larger = [f"annotate.prompts={prompts * 6 // 5}", "annotate.heldout=1"]
    command(more, "annotate", ["annotate"], [*settings, *larger], task)
    learned = {prompt_of(line) for line in lines_of(folder)}
    rest = [line for line in lines_of(more) if prompt_of(line) not in learned]
    (unseen / "feedback_heldout.jsonl").write_text("".join(rest), encoding="utf-8")
    shutil.copy(folder / "feedback.jsonl", unseen)
    judged = ["critic.kind=reward_model", f"critic.reward_model.folder={folder / 'reward_model' / 'policy'}"]
    return rates(command(unseen, "measure", ["evaluate", "--task", "reward-model"], [*settings, *judged], task))


def reward_model_of(seeds: Sequence[Row]) -> Row:
    """How well the reward models mark tokens and agree with the critic's verdicts; null: not measured."""
    found: Row = {}
    for name in ("poor_f1", "good_f1", "verdict_r", "verdict_order"):
        values = [row[name] for row in seeds if row[name] is not None]
        found[name] = round(fmean(values), 4) if values else None
    return found


def figures(out: Path) -> Row:
    """The figures of all pieces in a folder."""
    tasks: Row = {}
    collapsed: list[str] = []
    for task in TASKS:
        tasks[task] = {critic: {} for critic in CRITICS} | {"poor_f1": None, "verdict_r": None}
        for critic in CRITICS:
            if (file := out / f"{task}-{critic}" / "piece.json").is_file():
                piece = json.loads(file.read_text(encoding="utf-8"))
                tasks[task][critic] = piece.pop("methods")
                collapsed += piece.pop("collapsed")
                tasks[task] |= piece
    solved = kept(out / "mbpp" / "pretrained.json").get("tasks", {}).get("code", {})
    mbpp = {name: solved.get(name, {}).get("mbpp", {}).get("mean") for name in ("sft", OURS)}
    return {"tasks": tasks, "mbpp": mbpp, "collapsed": collapsed}


def kept(file: Path) -> Row:
    """The figures that another script has left; none where it has not been run."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


if __name__ == "__main__":
    with exit_on_user_error():
        main()
