"""Measure how noisy records and weaker teachers affect a reward model and its policies.

The task is the embedded code task by default. The SFT policy of a seed and the records of its
answers are made once. Each arm changes the *training records* and trains a reward model on them,
which is measured on unchanged held-out records:

    clean             the records unchanged
    flip_20           20 % of the spans have the other label
    displace_20       20 % of the spans are moved elsewhere in the answer
    irrelevant_20     20 % of the answers have the critique of an answer to another problem:
                      text, verdict, and the quotes that also occur in this answer
    teacher_tests     a weaker teacher judges the same answers without the solution: it reports
                      failing tests, and blames the line of a traceback or the complete program
    teacher_one_test  a weaker teacher runs only the first test, and praises answers that pass it

Other kinds of noise are those of `misled_critic`. `--kinds kinds records --shares 0.5` compares two
arms with as many records each, for a task whose prompts have kinds:

    kinds_50          the records of 50 % of the kinds
    records_50        the records of 50 % of the prompts, of all kinds

--task names another preset, whose scores
--measure names; it needs --teachers without values. Arms in --policies also train two policies
against that reward model, text2grad and scalar PPO, for --steps steps. Rows in --out/results.jsonl
with the same settings are not computed again.

    python -m text2grad_lab.experiments.annotation --change feedback.jsonl flip_10 noisy.jsonl

only writes a run's records with the noise of an arm, for `text2grad train-reward`.

The last line of stdout is one JSON object: `reward_model` (arm -> `good_f1`, `poor_f1`,
`wrong_sign` and more, with means and values by seed) and `policy` (arm -> held-out scores `greedy`
and `sampled` of text2grad, `scalar_greedy` and `scalar_sampled`; `sft` is the start).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from text2grad.config import Config, with_recipe
from text2grad.data.responses import Item
from text2grad.errors import UserError, exit_on_user_error
from text2grad.eval.critics.spans import span_report
from text2grad.feedback import Example, Feedback
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.stages.annotate import criticise, run_annotate
from text2grad.stages.critics import RewardModel, critic_factory
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.stages.reward_model.train import heldout_cases, train_reward_model
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.sft import run_sft
from text2grad.stages.train import run_train
from text2grad.stages.training import prepare_training
from text2grad.tasks.base import feedback_split
from text2grad_lab.experiments import misled_critic
from text2grad_lab.experiments.noisy_critic import NoiseSettings, noisy_spans
from text2grad_lab.experiments.options import (
    DOWNSTREAM,
    Row,
    experiment_parser,
    load_preset,
    recipe_of,
    refuse_other_recipe,
    row_once,
)

CLEAN, SFT, TEACHER = "clean", "sft", "teacher_"
KINDS, SHARES = ("flip", "displace", "irrelevant"), (0.05, 0.1, 0.2)
FEWER = ("kinds", "records")
ALL_KINDS = (*KINDS, *misled_critic.KINDS, *FEWER)
RATES = {name: name for name in ("good_f1", "poor_f1", "poor_precision", "poor_recall", "unmatched", "unreadable")}
RATES["wrong_sign"] = "wrong_sign_rate"
TRAIN, HELDOUT = "feedback.jsonl", "feedback_heldout.jsonl"


def main() -> None:
    args = options()
    os.environ["OMP_NUM_THREADS"] = "1"
    if args.change:
        source, arm, target = args.change
        write_noisy_records(source, arm, target, args.seeds[0])
        return
    rows = [row for seed in args.seeds for row in run_seed(args, seed, arms_of(args))]
    print(json.dumps(summary(rows)))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "annotation")
    parser.add_argument("--task", default="demo")
    parser.add_argument("--measure", default="pass")
    parser.add_argument("--kinds", nargs="*", choices=ALL_KINDS, default=KINDS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--teachers", nargs="*", choices=TEACHERS, default=list(TEACHERS))
    parser.add_argument("--policies", nargs="*", default=[CLEAN, "flip_20", "irrelevant_20"], metavar="ARM")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--change", nargs=3, metavar=("FROM", "ARM", "TO"), help="only write changed records")
    return parser.parse_args()


def arms_of(args: argparse.Namespace) -> list[str]:
    """Return all arms in the order of training."""
    noise = [f"{kind}_{round(100 * share)}" for kind in args.kinds for share in args.shares]
    teachers = [TEACHER + name for name in args.teachers]
    return [CLEAN, *noise, *teachers]


def write_noisy_records(source: str, arm: str, target: str, seed: int) -> None:
    """Write the records of a file with the noise of an arm.

    Raises:
        SystemExit: there is no such arm, or the file has no records.
    """
    kind, _, percent = arm.partition("_")
    if kind not in ALL_KINDS or not percent.isdecimal():
        raise SystemExit(f"error: no noise {arm!r} (one of {', '.join(ALL_KINDS)}, and a percentage: flip_10)")
    try:
        write_jsonl(Path(target), training_records(arm, list(read_jsonl(Path(source), Feedback)), seed))
    except UserError as error:
        raise SystemExit(f"error: {error}") from error


def run_seed(args: argparse.Namespace, seed: int, arms: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of one seed: its reward models, then its policies."""
    start = config_of(args, seed, SFT)
    prepare(start)
    for arm in arms:
        config = config_of(args, seed, arm)
        yield measure_once(args, "reward_model", seed, arm, config, start)
    trained = [arm for arm in arms if arm in args.policies]
    for arm in [SFT, *trained] if trained else []:
        yield measure_once(args, "policy", seed, arm, config_of(args, seed, arm), start)


def config_of(args: argparse.Namespace, seed: int, arm: str) -> Config:
    """Return the task's configuration with a separate run folder for an arm."""
    folder = args.out / f"seed-{seed}-{arm}"
    words = {"run.folder": folder, "task.seed": seed, "run.seed": seed, "run.threads": 1, "ppo.steps": args.steps}
    return load_preset(args.task, words | {"critic.kind": "reward_model"}, args.set)


def prepare(config: Config) -> None:
    """Train the SFT policy of a seed and annotate its answers, if missing."""
    refuse_other_recipe(config)
    if not (config.run.folder / "sft" / "policy").is_dir():
        run_sft(config)
    if not (config.run.folder / TRAIN).is_file():
        run_annotate(config)


def measure_once(args: argparse.Namespace, what: str, seed: int, arm: str, config: Config, start: Config) -> Row:
    """Return the recorded row with the same settings, or a new one."""
    results, measure = args.out / "results.jsonl", args.measure
    unread = DOWNSTREAM if what == "reward_model" else frozenset()
    key = {"what": what, "seed": seed, "arm": arm, "recipe": recipe_of(config, unread)}

    def make() -> Row:
        before = sum(os.times()[:4])
        row = (
            measure_reward_model(config, arm, start)
            if what == "reward_model"
            else measure_policy(config, arm, measure)
        )
        return row | {"cpu_seconds": round(sum(os.times()[:4]) - before, 1)}

    return row_once(results, key, make)


def measure_reward_model(config: Config, arm: str, start: Config) -> Row:
    """Train a reward model on the records of an arm; return its rates on held-out records."""
    refuse_other_recipe(config)
    records = list(read_jsonl(start.run.folder / TRAIN, Feedback))
    shutil.copytree(start.run.folder / SFT, config.run.folder / SFT, dirs_exist_ok=True)
    if arm.startswith(TEACHER):
        changed = rejudge(TEACHERS[arm.removeprefix(TEACHER)], config, records)
    else:
        changed = training_records(arm, records, config.run.seed)
    write_jsonl(config.run.folder / TRAIN, changed)
    shutil.copy(start.run.folder / HELDOUT, config.run.folder / HELDOUT)
    train_reward_model(prepare_training(config, "reward_model", "reward_model", "restart", "reward model"))
    return {"records": len(changed), "altered": altered_share(records, changed), **span_rates(config)}


def rejudge(transform: Callable[[Example], Example], config: Config, records: Sequence[Feedback]) -> list[Feedback]:
    """Return the answers judged by a program critic that sees the transformed problems."""
    task = RunFolder.of(config).task()
    examples = {example.id: transform(example) for example in task.examples(feedback_split(config.task))}
    items = [Item(examples[record.id], record.response, shares_id=True) for record in records]
    target = config.run.folder / TRAIN
    with critic_factory(config, "program") as factory, factory.open() as critic:
        criticise(critic, items, target)
    return list(read_jsonl(target, Feedback))


def without_solution(example: Example) -> Example:
    return example.model_copy(update={"reference": ""})


def with_first_test(example: Example) -> Example:
    """Remove all but the first test function of an example."""
    module = ast.parse(example.meta["tests"])
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    module.body = [node for node in module.body if node not in tests[1:]]
    return example.model_copy(update={"meta": {**example.meta, "tests": ast.unparse(module)}})


TEACHERS: dict[str, Callable[[Example], Example]] = {"tests": without_solution, "one_test": with_first_test}


def training_records(arm: str, records: Sequence[Feedback], seed: int) -> list[Feedback]:
    """Return the training records of an arm."""
    if arm == CLEAN:
        return list(records)
    kind, _, percent = arm.partition("_")
    share = int(percent) / 100
    if kind in misled_critic.KINDS:
        misleading = misled_critic.Misleading(kind, share, seed)
        return [misleading.record(record) for record in records]
    if kind == "irrelevant":
        return swap_critiques(records, share, seed)
    if kind in FEWER:
        return fewer_records(kind, records, share, seed)
    noise = NoiseSettings.model_validate({"kind": kind, "share": share})
    return [record.model_copy(update={"spans": tuple(noisy_spans(record, noise, seed))}) for record in records]


def fewer_records(what: str, records: Sequence[Feedback], share: float, seed: int) -> list[Feedback]:
    """Return the records of a share of the kinds, or of a share of the prompts of each kind."""
    prompts: dict[str, set[str]] = {}
    for record in records:
        prompts.setdefault(record.meta["kind"], set()).add(record.id)
    rng = random.Random(f"{seed}/{what}")

    def part(names: Iterable[str]) -> list[str]:
        ordered = sorted(names)
        return rng.sample(ordered, round(share * len(ordered)))

    if what == "kinds":
        chosen = set(part(prompts))
        return [record for record in records if record.meta["kind"] in chosen]
    chosen = {prompt for ids in prompts.values() for prompt in part(ids)}
    return [record for record in records if record.id in chosen]


def swap_critiques(records: Sequence[Feedback], share: float, seed: int) -> list[Feedback]:
    """Return the records, a share of them with the critique of an answer to another problem."""
    rng = random.Random(f"{seed}/irrelevant")
    altered = set(rng.sample(range(len(records)), round(share * len(records))))
    with_critique = [record for record in records if record.error is None]
    return [
        with_other_critique(record, with_critique, rng) if n in altered else record
        for n, record in enumerate(records)
    ]


def with_other_critique(record: Feedback, candidates: Sequence[Feedback], rng: random.Random) -> Feedback:
    """Return a record with the critique of another answer.

    Spans are placed at the first occurrence of their quotes; those without one are removed.
    """
    other = rng.choice([candidate for candidate in candidates if candidate.prompt != record.prompt])
    places = [(record.response.find(span.text), span) for span in other.spans]
    spans = [
        span.model_copy(update={"start": start, "end": start + len(span.text)})
        for start, span in places
        if start >= 0
    ]
    values = {"critique": other.critique, "score": other.score, "spans": tuple(spans), "error": None}
    return record.model_copy(update=values)


def altered_share(before: Sequence[Feedback], after: Sequence[Feedback]) -> float:
    """Return the share of the records that an arm removed, or whose content it changed."""
    unchanged = Counter(map(_content, before)) & Counter(map(_content, after))
    return round(1 - unchanged.total() / len(before), 4)


def _content(record: Feedback) -> tuple[object, ...]:
    return record.response, record.critique, record.score, record.spans


def span_rates(config: Config) -> Row:
    """Measure the spans that a reward model marks on held-out records."""
    report = span_report([case for _, case in heldout_cases(RewardModel.of(config))])
    return {name: round(report[rate], 4) for name, rate in RATES.items()}


def measure_policy(config: Config, arm: str, measure: str) -> Row:
    """Train and measure text2grad and scalar PPO with the reward model of an arm in the loop."""
    if arm == SFT:
        return held_out_scores(config, SFT, measure)
    run_train(config, "text2grad", "restart")
    run_train(with_recipe(config, "scalar", ()), "scalar", "restart")
    scalar = held_out_scores(config, "scalar", measure)
    return held_out_scores(config, "text2grad", measure) | {f"scalar_{way}": scalar[way] for way in scalar}


def held_out_scores(config: Config, policy: str, measure: str) -> Row:
    """Return the scores of a policy's greedy and sampled answers to held-out problems."""
    figures = run_evaluate(config, policy).figures
    return {way: round(figures[f"{way}_{measure}"], 4) for way in ("greedy", "sampled")}


NOT_FIGURES = frozenset({"what", "seed", "arm", "recipe", "cpu_seconds", "records"})


def summary(rows: Sequence[Row]) -> Row:
    """Return the mean and the values by seed of every figure of every arm."""
    means: Row = {"reward_model": {}, "policy": {}}
    for row in rows:
        arm = means[row["what"]].setdefault(row["arm"], {})
        for name in row.keys() - NOT_FIGURES:
            arm.setdefault(name, {"seeds": []})["seeds"].append(row[name])
    for arms in means.values():
        for figures in arms.values():
            for figure in figures.values():
                figure["mean"] = round(fmean(figure["seeds"]), 4)
    return means


if __name__ == "__main__":
    with exit_on_user_error():
        main()
