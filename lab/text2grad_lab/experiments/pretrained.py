"""Does the method hold on a pretrained model: SmolLM2-135M with adapters, text2grad beside what people use.

The lab's `compare` does the work: of every task and seed one SFT policy, shared by all methods; each method with
the same critic, rollouts and steps, measured on held-out problems: greedy, sampled, and sampled at its own best
temperature, chosen on training prompts (a policy that is only surer of itself gains nothing there). The critic is
the program that knows the answer (the person's line, the tests); with --reward-model it is a reward model that
learned from that program what to say, a second adapter on the same base weights. Of several --lrs each method takes
the best on --tune-seeds, which are not reported. What has been run is not repeated.

`docstrings` is the preset function_summaries, measured by ROUGE-L; `code` is small_programs, measured by tests.
A method is one of the lab's `compare` (`base` too), or has parts of methods.py laid over it: `grpo+lr_0.0001`,
`text2grad+values`, `text2grad+group_of_8`.

The last line of stdout is one JSON object: `tasks` (of each, of each method: `greedy`, `sampled` and
`best_temperature`, with --mbpp also `mbpp`, greedy on its test problems, each the mean and the seeds), `rates` (of
each task what the first of --lrs was multiplied by), `collapsed` (runs that ended `collapsed`), `forgetting`
(points lost on ARC-Challenge by the worst run of text2grad, against SFT).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from text2grad.config import Config
from text2grad.errors import exit_on_user_error
from text2grad.stages.run_folder import measured_on, write_json
from text2grad_lab.compare import run_compare
from text2grad_lab.compare.methods import BASE, METHODS, Work
from text2grad_lab.compare.seeds import Seed, side_by_side
from text2grad_lab.compare.tuning import Extent
from text2grad_lab.experiments.common.methods import by_arm, file_name, method, method_of
from text2grad_lab.experiments.common.options import Row, add_tuning, configured, experiment_parser

PRESETS = {"docstrings": "function_summaries", "code": "text2grad_lab:small_programs"}
LEAST_ENTROPY, MOST_REPETITION, MOST_PERPLEXITY = 0.1, 0.2, 4.0
MEASURES = {"docstrings": "rouge_l", "code": "pass"}
CRITICS = {"docstrings": "reference", "code": "program"}
ARMS = ("text2grad", "scalar", "grpo")
TITLES = {"scalar": "scalar_ppo"}
WAYS, MBPP = ("greedy", "sampled", "best_temperature"), "mbpp"
BENCHMARKS = {"arc": ("choices",), MBPP: ("evaluate", "--task", "text2grad_lab.benchmarks.programs:MBPP")}
"""The commands that measure policies elsewhere."""
TEMPERATURES = "[0.3, 0.6, 1.0]"
SHARED = Path("../shared/data")
ARC = SHARED / "arc_challenge" / "arc_challenge_test_full_1172.jsonl"
MBPP_DATA = SHARED / "mbpp" / "mbpp.jsonl"


def main() -> None:
    chosen = options()
    found: Row = {"tasks": {}, "rates": {}, "collapsed": [], "forgetting": None}
    for task in chosen.tasks:
        found["rates"][task], rows = measured(chosen, task)
        found["tasks"][task] = table(rows)
        found["collapsed"] += list(fallen(task, rows))
        known = [lost for lost in (found["forgetting"], forgotten(rows)) if lost is not None]
        found["forgetting"] = max(known, default=None)
    write_json(chosen.out / "pretrained.json", found)
    print(json.dumps(found))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "pretrained", workers=2)
    add_tuning(parser, [100], [3e-4])
    parser.add_argument("--tasks", nargs="+", choices=PRESETS, default=["docstrings", "code"])
    parser.add_argument("--arms", nargs="+", type=arm_name, default=list(ARMS), metavar="ARM")
    parser.add_argument("--reward-model", action="store_true", help="the critic in the loop is a trained one")
    parser.add_argument("--arc", type=int, default=300, help="questions of ARC-Challenge for `forgetting`; 0: none")
    parser.add_argument("--mbpp", type=int, default=0, help="test problems of MBPP that `code` is measured on too")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


def arm_name(name: str) -> str:
    return name if name in METHODS else method(name)


def preset(chosen: argparse.Namespace, task: str, layers: Sequence[str] = (), words: Sequence[str] = ()) -> Config:
    """The settings of a task, with recipes and options laid over them, those of the user last."""
    settings: Row = {"run.folder": chosen.out / task}
    if task in CRITICS:
        settings["critic.kind"] = "reward_model" if chosen.reward_model else CRITICS[task]
        settings |= {"ppo.lr": chosen.lrs[0]}
        settings |= {"evaluate.temperatures": TEMPERATURES, "evaluate.reference": "sft"}
    return configured([PRESETS[task], *layers], settings, chosen.set, words)


def measured(chosen: argparse.Namespace, task: str) -> tuple[Row, list[Row]]:
    """Run what is missing of a task; what rates were multiplied by, and a row for each method and seed."""
    config = preset(chosen, task)
    of_arm = {arm: method_of(arm, config.run.folder, partial(preset, chosen, task)) for arm in chosen.arms}
    factors = [lr / chosen.lrs[0] for lr in chosen.lrs]
    names = ["sft", *of_arm.values()]
    found = by_arm(run_compare(config, names, Extent(chosen.seeds, factors, chosen.tune_seeds), chosen.workers))
    arms = ["sft", *(arm for arm in chosen.arms if arm != "sft")]
    side_by_side([elsewhere(chosen, config, task, number, arms) for number in chosen.seeds], chosen.workers)
    return found["rates"], [row_of(chosen, config, task, arm, number) for number in chosen.seeds for arm in arms]


def elsewhere(chosen: argparse.Namespace, config: Config, task: str, number: int, arms: Sequence[str]) -> Seed:
    """The measurements of a seed's policies on other tasks, in the folder that the comparison left."""
    sizes = {"arc": (chosen.arc, ARC), MBPP: (chosen.mbpp if task == "code" else 0, MBPP_DATA)}
    works: dict[str, Work] = {}
    for other, (limit, data) in sizes.items():
        words: tuple[str, ...] = (
            *BENCHMARKS[other],
            "--evaluate.temperatures=[]",
            "--evaluate.samples=1",
            f"--evaluate.limit={limit}",
        )
        words += (f"--task.data={data}",) if data.is_file() else ()
        names = [file_name(arm) for arm in arms if arm != BASE and limit]
        works |= {
            f"{other} {n}": Work((words[0], n, *words[1:]), reads=("evaluate",), restart=False) for n in names
        }
    return Seed(config, number, config.run.folder / f"seed-{number}", works)


def row_of(chosen: argparse.Namespace, config: Config, task: str, arm: str, number: int) -> Row:
    """What was measured of one method of one seed."""
    folder = config.run.folder / f"seed-{number}" / "evaluation"
    name = Path(config.policy.model).name if arm == BASE else file_name(arm)
    figures = json.loads((folder / measured_on(config) / f"{name}.json").read_text(encoding="utf-8"))
    row: Row = {"arm": arm, "seed": number, "figures": figures}
    row |= {way: figures[f"{way}_{MEASURES[task]}"] for way in WAYS}
    if chosen.arc and arm != BASE:
        row["arc_score"] = figures_on(folder, "*ARC", name)["likelihood_normalised"]
    if chosen.mbpp and task == "code" and arm != BASE:
        row[MBPP] = figures_on(folder, "*MBPP", name)["greedy_pass"]
    return row


def figures_on(folder: Path, other: str, name: str) -> Row:
    """What was measured of a policy on another task."""
    (place,) = folder.glob(f"{other}*/{name}.json")
    found: Row = json.loads(place.read_text(encoding="utf-8"))
    return found


def fallen(task: str, rows: Sequence[Row]) -> Iterator[str]:
    """The runs that collapsed, each with the reasons."""
    before = {row["seed"]: row["figures"] for row in rows if row["arm"] == "sft"}
    for row in rows:
        if reasons := collapsed(before[row["seed"]], row["figures"], f"greedy_{MEASURES[task]}"):
            yield f"{task} {row['arm']} {row['seed']}: {', '.join(reasons)}"


def collapsed(
    before: Mapping[str, float], after: Mapping[str, float], measure: str, points: float = 5.0
) -> list[str]:
    """What speaks for a collapse between two evaluations of `evaluate`, one reason each; empty: nothing.

    `measure`, such as `greedy_pass`, lost more than `points` of 100; and of the sampled answers, where both
    evaluations have it: the entropy is below a tenth of what it was, the repetition rose by more than .2, or the
    perplexity under the reference is more than four times what it was.
    """
    lost = 100 * (before[measure] - after[measure])
    found = [f"{measure} fell by {lost:.1f} points"] if lost > points else []
    limits = {
        "sampled_entropy": lambda old, new: new < LEAST_ENTROPY * old,
        "sampled_repetition": lambda old, new: new > old + MOST_REPETITION,
        "sampled_reference_perplexity": lambda old, new: new > MOST_PERPLEXITY * old,
    }
    both = {name: (before[name], after[name]) for name in limits if name in before and name in after}
    return found + [f"{name} {old:.3g} -> {new:.3g}" for name, (old, new) in both.items() if limits[name](old, new)]


def table(rows: Sequence[Row]) -> Row:
    """Of each method the mean and the seeds, for each way to answer."""
    return {
        TITLES.get(arm, arm): {
            way: {"mean": round(fmean(values), 4), "seeds": values}
            for way in (*WAYS, MBPP)
            if (values := [round(row[way], 4) for row in rows if row["arm"] == arm and way in row])
        }
        for arm in dict.fromkeys(row["arm"] for row in rows)
    }


def forgotten(rows: Sequence[Row]) -> float | None:
    """Points that the worst run of text2grad lost on ARC-Challenge against its SFT policy."""
    before = {row["seed"]: row["arc_score"] for row in rows if row["arm"] == "sft" and "arc_score" in row}
    lost = [
        before[row["seed"]] - row["arc_score"] for row in rows if row["arm"] == "text2grad" and "arc_score" in row
    ]
    return round(100 * max(lost), 2) if lost else None


if __name__ == "__main__":
    with exit_on_user_error():
        main()
