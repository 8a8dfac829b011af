"""What 400 annotated answers are worth without a reward model and without sampling, on the embedded code task.

Of every seed: SFT, and 400 of its answers (200 problems, 2 each) judged by the tests (`text2grad annotate`). From
these alone each arm trains the SFT policy further, and is measured on held-out problems by their tests:

    good           imitates the answers that pass (the lab's `imitate FILE`), in as many passes over them
    good_longer    the same, in as many optimizer steps as offline text2grad
    text2grad      `text2grad train --offline FILE`
    text2grad+...  with parts laid over it (PARTS): no_poor, no_verdict, no_kl

The learning rate of each arm is chosen on --tune-seeds, over one grid for all, by the mean of greedy and sampled
pass@1; parts take that of text2grad. What stands in --out/results.jsonl, and was made with the same settings, is
not run again.

The last line of stdout is one JSON object: of `sft` and each arm the chosen `lr`, the mean held-out pass@1 `greedy`
and `sampled`, and of each seed both (`seeds`); `ahead`: text2grad minus the better of the two `good`, by seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.config import Config
from text2grad.errors import Diverged, exit_on_user_error
from text2grad.stages.judge.annotate import run_annotate
from text2grad.stages.learn.offline import run_train_offline
from text2grad.stages.learn.supervised import run_sft
from text2grad.stages.measure.evaluate import run_evaluate
from text2grad_lab.baselines.imitate import run_imitate
from text2grad_lab.experiments.common.options import (
    Row,
    add_tuning,
    configured,
    experiment_parser,
    read_rows,
    row_once,
)
from text2grad_lab.experiments.common.recipe import recipe_of, refuse_other_recipe

ANSWERS = {"annotate.prompts": 200, "annotate.samples_per_prompt": 2}
EPOCHS = 3
STEPS = 75  # of text2grad: EPOCHS passes over 400 answers, 16 at a time
PARTS: dict[str, dict[str, object]] = {
    "no_poor": {"credit.poor_weight": 0.0},
    "no_verdict": {"offline.verdict_weight": 0.0},
    "no_kl": {"offline.kl_coefficient": 0.0},
}
ARMS = ("good", "good_longer", "text2grad")
GOOD = ARMS[:2]
WAYS = ("greedy", "sampled")


def main() -> None:
    chosen = options()
    os.environ["OMP_NUM_THREADS"] = "1"
    bases = dict.fromkeys(arm.partition("+")[0] for arm in chosen.arms)
    tried = [
        measured(chosen.out, seed, arm, lr) for seed in chosen.tune_seeds for arm in bases for lr in chosen.lrs
    ]
    rates = {arm: best_rate([row for row in tried if row["arm"] == arm]) for arm in bases}
    print(f"learning rates: {rates}", file=sys.stderr)
    final = [("sft", 0.0), *((arm, rates[arm.partition("+")[0]]) for arm in chosen.arms)]
    rows = [measured(chosen.out, seed, arm, lr) for seed in chosen.seeds for arm, lr in final]
    print(json.dumps(summary(rows)))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "offline", settings=False)
    add_tuning(parser, [100], [3e-4, 1e-3, 3e-3])
    parser.add_argument("--arms", nargs="+", type=arm_of, default=ARMS, metavar="ARM")
    chosen = parser.parse_args()
    if set(chosen.seeds) & set(chosen.tune_seeds):
        parser.error("a seed cannot be both tuned on and reported")
    return chosen


def arm_of(name: str) -> str:
    """An arm's name, if all of its parts are known."""
    base, *parts = name.split("+")
    if base not in ARMS or set(parts) - PARTS.keys() or (parts and base in GOOD):
        raise argparse.ArgumentTypeError(
            f"no arm {name}: {', '.join(ARMS)}, text2grad + parts of {', '.join(PARTS)}"
        )
    return name


def measured(out: Path, seed: int, arm: str, lr: float) -> Row:
    """The held-out rates of an arm: those of the folder, if made with these settings, or made now."""
    results, config = out / "results.jsonl", config_of(out, seed, arm, lr)
    key = {"seed": seed, "arm": arm, "lr": lr, "recipe": recipe_of(config)}

    def make() -> Row:
        refuse_other_recipe(config)
        return rates_of(config, arm, lr)

    return row_once(results, key, make)


def config_of(out: Path, seed: int, arm: str, lr: float) -> Config:
    """The settings of one arm: those of the demo, with the same batches and schedule for all that follows SFT."""
    words: dict[str, object] = {"run.folder": out / f"seed-{seed}", "run.seed": seed, "run.threads": 1}
    words |= {"task.seed": seed, **ANSWERS}
    if arm.startswith("text2grad"):
        words |= {"offline.epochs": EPOCHS, "offline.lr": lr}
        for part in arm.split("+")[1:]:
            words |= PARTS[part]
    return configured(["demo"], words)


def rates_of(config: Config, arm: str, lr: float) -> Row:
    """Train an arm and measure it; one that diverged has no answer right."""
    folder = config.run.folder
    prepare(config)
    name = "sft" if arm == "sft" else f"{arm}-{lr:g}"
    found: Row = {}
    try:
        if arm in GOOD:
            found = imitate(config, arm, lr, name)
        elif arm != "sft":
            trained = run_train_offline(config, folder / "feedback.jsonl", name, "restart")
            found = {"answers": trained.answers, "kl": trained.metrics["kl"]}
    except Diverged as error:
        return {"stopped": str(error), **dict.fromkeys(WAYS, 0.0)}
    figures = run_evaluate(config, name).figures
    return found | {way: figures[f"{way}_pass"] for way in WAYS}


def imitate(config: Config, arm: str, lr: float, name: str) -> Row:
    """Imitate what passes, in EPOCHS passes or in STEPS steps."""
    source = config.run.folder / "feedback.jsonl"
    size = config.sft.batch_size
    passed = sum(row["score"] > 0 for row in read_rows(source))
    epochs = EPOCHS if arm == "good" else STEPS * size / passed
    changed = config.sft.model_copy(update={"lr": lr, "epochs": epochs})
    done = run_imitate(config.model_copy(update={"sft": changed}), source, name, resume="restart")
    return {"answers": done.imitated}


def prepare(config: Config) -> None:
    """The SFT policy of a seed, and what the tests say of its answers."""
    if not (config.run.folder / "sft" / "policy").is_dir():
        run_sft(config)
    if not (config.run.folder / "feedback.jsonl").is_file():
        run_annotate(config)


def best_rate(rows: Sequence[Row]) -> float:
    """The rate with the highest mean of greedy and sampled pass@1; of equal ones the lowest."""
    rates: list[float] = sorted({row["lr"] for row in rows})
    return max(rates, key=lambda lr: fmean(row[way] for row in rows if row["lr"] == lr for way in WAYS))


def summary(rows: Sequence[Row]) -> Row:
    """Means over the seeds, and how far text2grad is ahead of the better imitation on each."""
    found: Row = {arm: dict(of_arm([row for row in rows if row["arm"] == arm])) for arm in arms_of(rows)}
    good = [arm for arm in GOOD if arm in found]
    if good and "text2grad" in found:
        ours = found["text2grad"]["seeds"]
        best = max(good, key=lambda arm: fmean(found[arm][way] for way in WAYS))
        theirs = found[best]["seeds"]
        found["ahead"] = {"of": best, **{way: differences(ours, theirs, way) for way in WAYS}}
    return found


def arms_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["arm"] for row in rows))


def of_arm(rows: Sequence[Row]) -> Iterator[tuple[str, Any]]:
    yield "lr", rows[0]["lr"]
    for way in WAYS:
        yield way, round(fmean(row[way] for row in rows), 4)
    yield "seeds", {row["seed"]: {way: round(row[way], 4) for way in WAYS} for row in rows}


def differences(ours: Mapping[int, Row], theirs: Mapping[int, Row], way: str) -> list[float]:
    return [round(ours[seed][way] - theirs[seed][way], 4) for seed in ours]


if __name__ == "__main__":
    with exit_on_user_error():
        main()
