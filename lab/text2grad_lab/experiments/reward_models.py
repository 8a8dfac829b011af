"""What makes a reward model of 400 critiques worth training against: quotes or a head?

The task is `extraction` (messages -> a JSON object), whose program marks every field. It judges 480 answers of one
SFT policy to documents of the kinds that are trained on, and those of the kinds that the preset holds out. Each
variant of the reward model learns from 400 of the first and is measured on both: the last 80 (`unseen`: what it is
asked in the loop) and those of the other kinds (`heldout`). Then policies learn from it.

Variants: `marks` (the preset's: a tagger), `written` (quotes in z, the verdict by a head), `plain` (a tagger
without spoiled answers). Methods: `text2grad`, or a recipe laid over it (`grpo`, `scalar`); `program` as a variant
trains against the program itself. --measure trains no policy.
What has been run into --out is not repeated, and what was stopped resumes.

The last line of stdout is one JSON object: `sft` (`greedy`, `sampled`: share of fields that are right, documents
of other kinds), and `variants`, of each a list over the seeds: `unseen` and `heldout` with `poor_f1`, `good_f1`,
`random_poor_f1`, `verdict_r`, `verdict_order` (of two answers to one document); and of each method `greedy` and
`sampled`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from text2grad.demo import run_command
from text2grad.errors import UserError, exit_on_user_error
from text2grad.stages.run.results import write_json
from text2grad_lab.experiments.common.options import Row, experiment_parser, preset_name

VARIANTS = {
    "program": ("critic.kind=fields",),
    "marks": (),
    "written": ("reward_model.kind=generative", "reward_model.label_weight=1", "reward_model.score_head=true"),
    "plain": ("reward_model.damaged=0",),
}
FIGURES = ("poor_f1", "good_f1", "verdict_order")


def main() -> None:
    chosen = options()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    rows = [one_seed(chosen, seed) for seed in seeds]
    found: Row = {"sft": [row["sft"] for row in rows], "variants": {}}
    for variant in chosen.variants:
        found["variants"][variant] = [row[variant] for row in rows]
    print(json.dumps(found))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "reward_models", counted=1)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["marks", "written"])
    parser.add_argument(
        "--methods", nargs="+", default=["text2grad"], metavar="NAME", help="text2grad, or a recipe"
    )
    parser.add_argument("--prompts", type=int, default=200, help="of which two answers each are criticised")
    parser.add_argument("--measure", action="store_true", help="train no policy")
    chosen = parser.parse_args()
    return chosen


def one_seed(chosen: argparse.Namespace, seed: int) -> Row:
    """All variants of one seed, beside each other in a folder of its own."""
    place = chosen.out / f"seed-{seed}"
    common = [f"run.seed={seed}", f"task.seed={seed}", "critic.reward_model.gate=false", *chosen.set]
    base, unseen = place / "base", place / "unseen"
    command(base, "sft", ["sft"], common)
    command(base, "annotate", ["annotate"], [*common, f"annotate.prompts={chosen.prompts * 6 // 5}"])
    split(base, unseen, chosen.prompts)
    measure = [] if chosen.measure else ["evaluate", "sft"]
    row: Row = {"sft": scores(command(base, "evaluate", measure, common))}
    for variant in chosen.variants:
        row[variant] = one_variant(chosen, place / variant, [*common, *VARIANTS[variant]])
    return row


def split(base: Path, unseen: Path, prompts: int) -> None:
    """Take the records of the last prompts from those to train on: another run holds them out."""
    if (unseen / "feedback_heldout.jsonl").is_file():
        return
    lines = lines_of(base)
    known = list(dict.fromkeys(map(prompt_of, lines)))[:prompts]
    train = [line for line in lines if prompt_of(line) in known]
    unseen.mkdir(parents=True, exist_ok=True)
    (unseen / "feedback.jsonl").write_text("".join(train), encoding="utf-8")
    rest = [line for line in lines if line not in set(train)]
    (unseen / "feedback_heldout.jsonl").write_text("".join(rest), encoding="utf-8")


def lines_of(folder: Path) -> list[str]:
    """The records of a run, as they stand in the file."""
    return (folder / "feedback.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)


def prompt_of(line: str) -> str:
    return json.dumps(json.loads(line)["prompt"])


def one_variant(chosen: argparse.Namespace, folder: Path, settings: Sequence[str]) -> Row:
    """Train a reward model, measure it on both kinds of document, and let policies learn from it."""
    base, unseen, row = folder.parent / "base", folder.parent / "unseen", Row()
    if not folder.is_dir():
        shutil.copytree(base / "sft", folder / "sft")
        shutil.copy(unseen / "feedback.jsonl", folder)
        shutil.copy(base / "feedback_heldout.jsonl", folder)
    if folder.name != "program":
        judged = ["critic.kind=reward_model", f"critic.reward_model.folder={folder / 'reward_model' / 'policy'}"]
        settings = [*settings, *judged]
        command(folder, "train-reward", ["train-reward"], settings)
        own, other = folder, folder.parent / f"{folder.name}-unseen"
        if not other.is_dir():
            shutil.copytree(unseen, other)
            shutil.copytree(base / "sft", other / "sft")
        for name, where in (("heldout", own), ("unseen", other)):
            row[name] = rates(command(where, f"measure-{name}", ["evaluate", "--task", "reward-model"], settings))
    for method in [] if chosen.measure else chosen.methods:
        recipe = [] if method == "text2grad" else ["--config", method]
        command(folder, method, ["train", "--name", method, *recipe], settings)
        row[method] = scores(command(folder, f"evaluate-{method}", ["evaluate", method, *recipe], settings))
    return row


def rates(report: Row) -> Row:
    """What is told of a reward model that was measured on critiques."""
    row = {each: report.get(each) for each in FIGURES}
    row["random_poor_f1"] = report["baselines"]["random_spans"]["poor_f1"]
    row["verdict_r"] = (report["verdict"] or {}).get("r")
    return row


def command(
    folder: Path, name: str, words: Sequence[str], settings: Sequence[str], task: str = "extraction"
) -> Row:
    """The result of a command of text2grad with the preset of a task, which is run unless it has been."""
    note, log = folder / "notes" / f"{name}.json", folder / "notes" / f"{name}.log"
    if words and not note.is_file():
        note.parent.mkdir(parents=True, exist_ok=True)
        laid = [f"--{each}" for each in (f"run.folder={folder}", *settings)]
        at = words.index("--config") if "--config" in words else len(words)
        line = [*words[:at], "--config", preset_name(task), *words[at:], *laid, "--json"]
        print(f"{folder}: {name}", file=sys.stderr, flush=True)
        code, _ = run_command([sys.executable, "-m", "text2grad.cli", *line], log)
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        if code:
            raise UserError(f"{folder}: {name} failed: {' '.join(last)}", f"its whole output is in {log}")
        write_json(note, json.loads(last[0]))
    return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}


def scores(evaluation: Row) -> Row:
    """The share of the fields that are right, of the likeliest answers and of sampled ones."""
    return {kind: evaluation.get(f"{kind}_fields") for kind in ("greedy", "sampled")}


if __name__ == "__main__":
    with exit_on_user_error():
        main()
