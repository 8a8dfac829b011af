"""Rounds: critiques of what the policy says now, a reward model taught by old and new ones, a better policy.

Answers move away from those that a reward model was taught by, and what it says of them means less with each step.
Each round has new answers judged, or takes the records that people left in a folder; trains a reward model on all
records so far; trains the policy against it for `ppo.steps` more; and measures it beside the best one so far, on
the same held-out prompts. The first round that falls by more than chance is the last, and the best policy stays.

All rounds are one run of PPO, whose reward model changes: each goes on from the last step of the round before, with
its optimizer and value function, its reference, and the prompts that come next. A new optimizer would begin with a
step of full size whatever the gradient is (Adam without moments), which moves the policy as far as several others.

A round is a folder, `rounds/<n>` of the run, whose commands are noted as those of a comparison are: the same call
resumes where it was stopped. `round.json` in it says that it has ended.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.compare.figures import scores_of
from text2grad.compare.methods import ANNOTATE, BASE, OURS, REWARD_MODEL, Work, measure_of, measuring
from text2grad.compare.seeds import Seed
from text2grad.config import Config
from text2grad.critics.table import spec_of
from text2grad.durable.identity import sha256
from text2grad.durable.run import CHECKPOINTS
from text2grad.errors import UsageError, UserError
from text2grad.eval.metrics import mean_with_interval
from text2grad.feedback import Feedback, read_records, record_json, write_jsonl
from text2grad.formats.intake import merged
from text2grad.policy.settings import ModelSettings
from text2grad.settings import is_set, with_values
from text2grad.stages.judge.intake import run_import
from text2grad.stages.learn.gate import refuse_unfit_reward_model
from text2grad.stages.run.policies import start_policy
from text2grad.stages.run.prompts import IMPORTED, task_of
from text2grad.stages.run.results import write_json
from text2grad.stages.run.summary import Summary
from text2grad.tasks.base import Split, question_of, words_of

NAME = "loop"
"""The best policy of all rounds, among those of the run."""
FILES = ("feedback.jsonl", "feedback_heldout.jsonl")
PASSES = "reward_model.training.epochs"
ENDED, NEW, TAKEN = "round.json", "new", "taken"
SFT, BEFORE = "sft", "before"
SPLITS: tuple[Split, ...] = ("sft", "train", "heldout")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LoopSummary(Summary):
    """The rounds that have ended, the measure of the start and of the best policy at the end of its round, and the
    folder of the best policy where it is not the start."""

    rounds: Sequence[Mapping[str, Any]]
    measure: str | None
    start: float | None
    best: float | None
    best_round: int
    out: str | None = None


@dataclass(frozen=True)
class Plan:
    """How rounds are made: `count` of them, or with an `inbox` one for what is new there; `offline`: the policy
    learns from the records themselves, without a reward model."""

    count: int
    inbox: Path | None = None
    offline: bool = False
    measure: str | None = None


class Round(Seed):
    """The commands of one round. Unlike a method that is compared, a policy that diverges is stopped."""

    always: Mapping[str, Any] = {}

    def __init__(self, config: Config, number: int, works: Mapping[str, Work], values: Mapping[str, Any]) -> None:
        settled = with_values(config, values)
        super().__init__(settled, config.run.seed + number, folder_of(config, number), works)
        self.config = with_values(self.config, {"task.seed": config.task.seed})

    def _refuse_unfit(self) -> None:
        """It is known only after it was compared with the one before."""


def run_loop(config: Config, plan: Plan) -> LoopSummary:
    """Run the rounds that are left, and copy the best policy to `ppo/loop`.

    Raises:
        UsageError: the critic is no reward model, which is all that rounds refresh; an unknown measure.
        UserError: there is no policy to start from, the last round kept no state, the task measures nothing, a file
            of the inbox cannot be read or is about other prompts, no reward model is fit, or a command failed; what
            succeeded is not repeated.
    """
    if not plan.offline and spec_of(config.critic.kind).kind != "reward_model":
        problem = f"critic.kind {config.critic.kind} judges what the policy says at every step: nothing to refresh"
        raise UsageError(problem, "text2grad train with more --ppo.steps, or --critic.kind reward_model")
    start_policy(config)  # before anything is spent
    rows, count = ended_rounds(config), plan.count
    if plan.inbox is not None:
        count = len(rows) + take(config, plan.inbox, len(rows) + 1)
    while len(rows) < count and (plan.inbox is not None or not rows or not fell(rows[-1])):
        rows.append(one_round(config, rows, plan))
    return summary_of(config, rows)


def one_round(config: Config, rows: Sequence[Row], plan: Plan) -> Row:
    """Judge, teach, train and measure, after the rounds that have ended; the row of the round, which is its
    `round.json`, too."""
    number, last = len(rows) + 1, last_of(rows)
    if last and not plan.offline:
        refuse_without_state(last)
    commands = commands_of(config, number, rows, plan)
    if plan.inbox is None:
        commands.run(ANNOTATE)
    counts = gather(config, number)
    measure = measure_of(commands.config, plan.measure)
    if not plan.offline:
        commands.run(REWARD_MODEL)
        counts |= choose_reward_model(commands, rows[-1] if rows else None)
        refuse_unfit_reward_model(commands.settings(commands.works[OURS]))
        link(commands.folder / SFT, start_policy(config).model)  # the reference of PPO, whose weights go on
        go_on(commands, last)
    for name in (OURS, f"evaluate {BEFORE}", f"evaluate {OURS}"):
        commands.run(name)
    policy = str(commands.folder / "ppo" / OURS / "policy")
    steps = {} if plan.offline else {"steps": commands.config.ppo.steps}
    row = {"round": number, **counts, "measure": measure, **measured(commands, measure), **steps, "policy": policy}
    write_json(commands.folder / ENDED, row)
    forget([*rows, row])
    return row


def commands_of(config: Config, number: int, rows: Sequence[Row], plan: Plan) -> Round:
    """The commands of a round, in a folder that has the best policy so far as `before`, and the one that goes on as
    its SFT policy; a model that is no folder, from a hub say, is known by its name.

    Its reward model starts from what the first one did; a policy that learns from all records once more, too. Each
    round judges answers to the `annotate.prompts` that come after those of the round before; the seed of the first
    one draws the prompts of PPO. The passes that are set are those of the last of N rounds: round n, with some
    n / N of the critiques, takes N / n times as many, so that each reward model takes as many updates.
    """
    start, folder, best, last = start_policy(config), folder_of(config, number), best_of(rows), last_of(rows)
    values: dict[str, Any] = {}
    if not plan.offline:
        values |= {"ppo.steps": config.ppo.steps + (last["steps"] if last else 0), "ppo.keep_state": True}
    if config.reward_model.policy is None:
        values["reward_model.policy"] = ModelSettings(**start.model_dump(include=set(ModelSettings.model_fields)))
    if plan.inbox is None and is_set(config, PASSES):
        values[PASSES] = config.reward_model.training.epochs * plan.count / number
    if config.task.data == IMPORTED:
        prompts = folder if plan.inbox is not None else config.run.folder
        values["task.data"] = str(prompts / FILES[0])
    if plan.inbox is None and config.annotate.prompts is not None:
        values["annotate.first"] = config.annotate.first + (number - 1) * config.annotate.prompts
    before = best["policy"] if best else start.model
    link(folder / "ppo" / BEFORE, before)
    link(folder / SFT, last["policy"] if last and not plan.offline else start.model)
    new, every = f"{{folder}}/{NEW}/{FILES[0]}", f"{{folder}}/{FILES[0]}"
    begun = BEFORE if Path(before).is_dir() else BASE
    offline = Work(("train", "--name", OURS, "--offline", every), reads=("offline", "credit"))
    words = ("train", "--name", OURS, "--force", "--run.seed", str(config.run.seed + 1))
    online = Work(words, "", (REWARD_MODEL,), ("critic", "credit", "ppo", "reward_model"), "ppo.lr", restart=False)
    works = {
        ANNOTATE: Work(("annotate", "--out", new), reads=("annotate", "critic"), restart=False),
        REWARD_MODEL: Work(("train-reward",), "", (ANNOTATE,), ("reward_model", "critic")),
        OURS: offline if plan.offline else online,
        f"evaluate {BEFORE}": replace(measuring(begun), after=()),
        f"evaluate {OURS}": measuring(OURS),
    }
    return Round(config, number, works, values)


def link(place: Path, policy: str | Path) -> None:
    """Have the folder of a policy, if it is one, stand in the place of a policy of a run."""
    (place / "policy").unlink(missing_ok=True)
    if Path(policy).is_dir():
        place.mkdir(parents=True, exist_ok=True)
        (place / "policy").symlink_to(Path(policy).absolute(), target_is_directory=True)


def go_on(commands: Round, last: Row | None) -> None:
    """Have the PPO of a round be that of the `last` one, from its last step; it stays where it has begun."""
    place = commands.folder / "ppo" / OURS
    partial = place.with_name(f"{OURS}.partial")
    if commands.begun(OURS):
        return
    for each in (place, partial):
        shutil.rmtree(each, ignore_errors=True)
    if last:
        shutil.copytree(Path(last["policy"]).parent, partial, ignore=shutil.ignore_patterns("policy"))
        partial.rename(place)


def refuse_without_state(last: Row) -> None:
    """Before anything is spent.

    Raises:
        UserError: the round that is to be gone on from kept no state of its training.
    """
    if not (Path(last["policy"]).parent / CHECKPOINTS).is_dir():
        problem = f"round {last['round']} kept no state of its training to go on from"
        raise UserError(problem, "begin rounds in another --run.folder")


def forget(rows: Sequence[Row]) -> None:
    """Remove the states of training of rounds that no other will go on from."""
    going_on = [row["policy"] for row in (best_of(rows), last_of(rows)) if row]
    for row in rows:
        if row["policy"] not in going_on:
            shutil.rmtree(Path(row["policy"]).parent / CHECKPOINTS, ignore_errors=True)


def choose_reward_model(commands: Round, last: Row | None) -> Row:
    """Take the reward model of the round before where it marks the held-out records of this round better, and say
    so: the folder of the one that is taken, and the mean F1 of good and of poor tokens of the new one and of it.
    """
    own = commands.folder / "reward_model" / "policy"
    now = f1_in(commands.folder)
    if last is None or "reward_model" not in last:
        return {"reward_model": str(own), "reward_model_f1": now}
    earlier = Earlier(commands, Path(last["reward_model"]))
    earlier.run("evaluate reward model")
    before = f1_in(earlier.folder)
    figures = {"reward_model_f1": now, "earlier_reward_model_f1": before}
    if now is None or before is None or now >= before:
        return {"reward_model": str(own), **figures}
    line = f"the new reward model marks held-out answers worse ({now:.3f}) than the one before ({before:.3f})"
    print(f"round {commands.folder.name}: {line}, which is kept", file=sys.stderr)
    commands.config = with_values(commands.config, {"critic.reward_model.folder": Path(last["reward_model"])})
    return {"reward_model": last["reward_model"], **figures}


class Earlier(Round):
    """The reward model of an earlier round, measured on the records of this one in a folder of its own."""

    def __init__(self, commands: Round, model: Path) -> None:
        work = Work(("evaluate", "--task", "reward-model"), reads=("reward_model", "critic"), restart=False)
        self.imported, self.live, self.number = commands.imported, False, commands.number
        self.folder, self.works = commands.folder / "earlier_reward_model", {"evaluate reward model": work}
        values = {"run.folder": self.folder, "critic.reward_model.folder": model}
        self.config = with_values(commands.config, values)
        for name in filter(lambda name: (commands.folder / name).is_file(), FILES):
            write_jsonl(self.folder / name, read_records(commands.folder / name))
        link(self.folder / SFT, commands.folder / SFT / "policy")


def f1_in(folder: Path) -> float | None:
    """The mean F1 of good and of poor tokens on held-out records; None where there are none."""
    file = folder / "evaluation" / "reward_model.json"
    rates = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return rates and (rates["good_f1"] + rates["poor_f1"]) / 2


def gather(config: Config, number: int) -> Row:
    """Write all records up to a round into its folder; how many are new, and how many there are."""
    every = {name: records_up_to(config, number, name) for name in FILES}
    for name, records in every.items():
        if records:
            write_jsonl(folder_of(config, number) / name, records)
    new = folder_of(config, number) / NEW / FILES[0]
    return {"new_records": len(read_records(new)) if new.is_file() else 0, "records": len(every[FILES[0]])}


def records_up_to(config: Config, number: int, name: str = FILES[0]) -> list[Feedback]:
    """The records of a run and of its rounds up to this one; of what people said of one response the last."""
    found: list[Feedback] = []
    for folder in (config.run.folder, *(folder_of(config, each) / NEW for each in range(1, number + 1))):
        records = read_records(folder / name) if (folder / name).is_file() else []
        found = merged(found, records) if (folder / TAKEN).is_dir() else [*found, *records]
    return found


def measured(commands: Round, measure: str) -> Row:
    """The mean sampled measure of the policy `before` a round and `after` it, on the problems that both have, the
    95 % `difference_interval`, paired by problem, and whether the new policy is `kept` as the best."""
    begun = BEFORE if (commands.folder / "ppo" / BEFORE / "policy").is_dir() else BASE
    old, new = (scores_of(commands, name, measure)["sampled"] for name in (begun, OURS))
    both = sorted(old.keys() & new.keys())
    before, after = (fmean(scores[each] for each in both) for scores in (old, new))
    apart = mean_with_interval([new[each] - old[each] for each in both])
    interval = [apart.low, apart.high]
    return {"before": before, "after": after, "difference_interval": interval, "kept": after >= before}


def fell(row: Row) -> bool:
    """Whether a round ended below its start by more than chance; of one without an interval, as they were once
    written, whether it was not kept."""
    interval = row.get("difference_interval")
    return interval[1] < 0 if interval else not row["kept"]


def take(config: Config, inbox: Path, number: int) -> bool:
    """Read the files of an inbox that no round has read into the folder of a round; whether it has records now.

    A file is known by its content, and of one that has grown what is new is taken. Nothing is taken unless every
    new file can be read.

    Raises:
        UserError: there is no such folder, or a file cannot be read, or is about prompts that the task lacks.
    """
    if not inbox.is_dir():
        raise UserError(f"no folder {inbox}", "--inbox names the folder that new records are put into")
    place, partial = folder_of(config, number) / NEW, folder_of(config, number) / f"{NEW}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    taken = {file.name for file in folder_of(config, number).parent.glob(f"*/{NEW}/{TAKEN}/*")}
    files = [file for file in sorted(inbox.iterdir()) if file.is_file() and not file.name.startswith(".")]
    digests = {sha256(file): file for file in reversed(files)}
    fresh = {digest: file for digest, file in reversed(digests.items()) if digest not in taken}
    if place.is_dir():
        return True
    (partial / TAKEN).mkdir(parents=True)
    for digest, file in fresh.items():
        run_import(config, file, "auto", partial / FILES[0])
        (partial / TAKEN / digest).write_text(f"{file}\n", encoding="utf-8")
    known = {record_json(each) for each in records_up_to(config, number - 1)}
    records = read_records(partial / FILES[0]) if fresh else []
    new = [each for each in records if record_json(each) not in known]
    refuse_other_prompts(config, inbox, new)
    if not new:
        shutil.rmtree(partial)
        print(f"nothing new in {inbox}", file=sys.stderr)
        return False
    write_jsonl(partial / FILES[0], new)
    print(f"{inbox}: {len(new)} new records, {len(records) - len(new)} known", file=sys.stderr)
    partial.rename(place)
    return True


def refuse_other_prompts(config: Config, inbox: Path, records: Sequence[Feedback]) -> None:
    """Where the prompts are not those of the feedback itself.

    Raises:
        UserError: a record is about a prompt that the task does not have.
    """
    if config.task.data == IMPORTED:
        return
    task = task_of(config)
    known = {words_of(question_of(each)) for split in SPLITS for each in task.examples(split)}
    other = [record for record in records if words_of(question_of(record)) not in known]
    if other:
        problem = f"{inbox}: {len(other)} of {len(records)} records are about other prompts, {other[0].id!r} first"
        raise UserError(problem, f"take them out, or --task.data {IMPORTED} to train on their prompts")


def folder_of(config: Config, number: int) -> Path:
    """The folder of a round."""
    return config.run.folder / "rounds" / str(number)


def ended_rounds(config: Config) -> list[Row]:
    """The rows of the rounds that have ended, from the first."""
    rows: list[Row] = []
    while (file := folder_of(config, len(rows) + 1) / ENDED).is_file():
        rows.append(json.loads(file.read_text(encoding="utf-8")))
    return rows


def best_of(rows: Sequence[Row]) -> Row | None:
    """The best round: the last that was kept; None where none was."""
    return next((row for row in reversed(rows) if row["kept"]), None)


def last_of(rows: Sequence[Row]) -> Row | None:
    """The round that the next one goes on from: the last, unless it fell by more than chance, then the best."""
    return rows[-1] if rows and not fell(rows[-1]) else best_of(rows)


def summary_of(config: Config, rows: Sequence[Row]) -> LoopSummary:
    """The figures of all rounds; the best policy is copied among those of the run."""
    best = best_of(rows)
    return LoopSummary(
        rounds=rows,
        measure=rows[0]["measure"] if rows else None,
        start=rows[0]["before"] if rows else None,
        best=best["after"] if best else None,
        best_round=best["round"] if best else 0,
        out=str(copied(Path(best["policy"]), config.run.folder / "ppo" / NAME / "policy")) if best else None,
    )


def copied(policy: Path, place: Path) -> Path:
    """Copy the folder of a policy at once, in the place of the one that was there."""
    partial = place.with_name("policy.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(policy, partial)
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
    return place


def table_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each round."""
    for row in rows:
        best = "the best so far" if row["kept"] else "not the best"
        records = f"{row['new_records']} new of {row['records']} records"
        interval = row.get("difference_interval")
        apart = f" ({interval[0]:+.3f} to {interval[1]:+.3f})" if interval else ""
        figures = f"{row['measure']} {row['before']:.3f} -> {row['after']:.3f}{apart}"
        yield f"round {row['round']}: {records}, {figures}, {best}"
