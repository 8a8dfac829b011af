"""Several methods on one task, from the same feedback: what they share once a seed, then each, then one table.

It only calls stages, each as a command of its own with one thread, as many at once as there is room for. What is
done is noted with a digest of its settings, so that the same command goes on where it was stopped. Figures are on
held-out problems; the differences to text2grad are paired by seed and problem.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from text2grad.config import TINY, Config, dump_config, laid_over
from text2grad.errors import UsageError, UserError
from text2grad.eval.metrics import mean_with_interval
from text2grad.report.viewer import build_report
from text2grad.stages.results import SCORES, measured_on, write_json, write_whole
from text2grad.tasks.base import load_task

OURS, BASE = "text2grad", "base"
DONE = "done"
"""The folder, in that of a seed, with a note of every command that has ended well."""
WAYS = ("greedy", "sampled")
METRICS = {"pass": "held-out pass@1", "rouge_l": "held-out ROUGE-L"}


@dataclass(frozen=True)
class Work:
    """One command of a seed: its words, the recipe laid over the configuration, and the works it waits for.

    `restart`: whether the command can be told to start over, where its result stands without a note.
    """

    words: tuple[str, ...]
    recipe: str = ""
    after: tuple[str, ...] = ()
    restart: bool = True


SHARED = {
    "sft": Work(("sft",)),
    "annotate": Work(("annotate",), after=("sft",), restart=False),
    "reward model": Work(("train-reward",), after=("annotate",)),
    "pairs": Work(
        ("export", "{folder}/feedback.jsonl", "--as", "preference", "--out", "{folder}/pairs.jsonl"),
        after=("annotate",),
        restart=False,
    ),
    "scalar model": Work(("train-reward", "--pairs", "{folder}/pairs.jsonl"), after=("pairs",)),
    "refine": Work(("refine", "{folder}/feedback.jsonl", "--out", "{folder}/refined.jsonl"), after=("annotate",)),
}
"""What methods share, once a seed."""


def _ppo(name: str, recipe: str = "", after: str = "reward model") -> Work:
    return Work(("train", "--name", name), recipe, (after,))


NOTHING = Work(())
UNREAD = {"folder", "threads", "loggers", "shown_prompts"}
"""Settings of a run on which nothing that it makes depends."""
LATER = ("credit", "ppo", "dpo", "offline", "evaluate")
"""Sections of the configuration that shared work does not read."""

OWN = {
    "scalar": _ppo("scalar", "scalar"),
    "grpo": _ppo("grpo", "grpo"),
    "paper": _ppo("paper", "paper"),
    "text2grad": _ppo("text2grad"),
    "scalar_rm": _ppo("scalar_rm", "scalar_rm", "scalar model"),
    "dpo": Work(("train", "--name", "dpo", "--pairs", "{folder}/pairs.jsonl"), after=("pairs",)),
    "offline": Work(("train", "--name", "offline", "--offline", "{folder}/feedback.jsonl"), after=("annotate",)),
    "rejection": Work(
        ("sft", "--name", "rejection", "--records", "{folder}/feedback.jsonl", "--best"), after=("annotate",)
    ),
    "ilf": Work(("sft", "--name", "ilf", "--records", "{folder}/refined.jsonl", "--best"), after=("refine",)),
}
"""What a method does alone, by the name of the method."""

METHODS = {
    "base": "as it came",
    "sft": "SFT",
    "rejection": "rejection sampling",
    "ilf": "ILF",
    "offline": "offline text2grad",
    "dpo": "DPO",
    "scalar": "scalar PPO",
    "scalar_rm": "PPO on a scalar reward model",
    "grpo": "GRPO",
    "paper": "text2grad as in the paper",
    "text2grad": "text2grad",
}
"""Everything that `--methods` takes, in the order of the table, with its title there. A method trains by the work
of its name, and `evaluate` knows its policy by that name; `base` is the model that SFT starts from."""


def methods_of(names: Sequence[str], config: Config) -> list[str]:
    """The methods to compare, in the order of the table.

    Raises:
        UsageError: there is no such method, or none, or one that this task or model cannot serve.
    """
    if unknown := [name for name in names if name not in METHODS]:
        raise UsageError(f"no method {unknown[0]!r}", f"--methods takes {', '.join(METHODS)}")
    if not names:
        raise UsageError("nothing to compare", f"--methods takes {', '.join(METHODS)}")
    if BASE in names and config.policy.model == TINY:
        raise UsageError("the tiny model is made by sft, so it has no base", "leave base out")
    for name in names:
        if recipe := OWN.get(name, NOTHING).recipe:
            _refuse_unfit(config, name, recipe)
    return [name for name in METHODS if name in names]


def _refuse_unfit(config: Config, name: str, recipe: str) -> None:
    try:
        laid_over(config, recipe)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name} does not fit these settings: {problem}", "change them, or leave it out") from None


def measure_of(config: Config) -> str:
    """What policies are compared by: the share that pass their tests, or ROUGE-L.

    Raises:
        UserError: the task cannot be measured by tests or by references.
    """
    heldout = load_task(config.task).examples("heldout")
    if not heldout:
        raise UserError("no held-out problems to measure on", "set task.heldout_share above 0")
    if heldout[0].meta.get("tests"):
        return "pass"
    if not heldout[0].reference:
        cure = "text2grad sft, annotate, train-reward, train and evaluate run any task"
        raise UserError(f"task {config.task.name!r} has neither tests nor references to measure by", cure)
    return "rouge_l"


def works_of(methods: Sequence[str]) -> dict[str, Work]:
    """All commands of a seed by name, each after those that it waits for."""
    ordered: dict[str, Work] = {}

    def add(name: str) -> None:
        work = OWN.get(name) or SHARED[name]
        for earlier in work.after:
            add(earlier)
        ordered.setdefault(name, work)

    for method in methods:
        if method != BASE:
            add(method)
    return {**ordered, **{f"evaluate {method}": _measuring(method) for method in methods}}


def _measuring(method: str) -> Work:
    trained = method != BASE
    return Work(("evaluate", method if trained else "{model}"), after=(method,) if trained else (), restart=False)


class Seed:
    """The works of one seed in its folder."""

    def __init__(self, config: Config, seed: int, folder: Path) -> None:
        run = config.run.model_copy(update={"seed": seed, "folder": folder, "threads": 1})
        task = config.task.model_copy(update={"seed": seed})
        self.config, self.folder = config.model_copy(update={"run": run, "task": task}), folder

    def note(self, name: str) -> Path:
        """Where it is noted that a work has ended well."""
        return self.folder / DONE / f"{name.replace(' ', '_')}.json"

    def done(self, name: str, work: Work) -> dict[str, Any] | None:
        """The note of a work that ended well with these settings."""
        if not self.note(name).is_file():
            return None
        found: dict[str, Any] = json.loads(self.note(name).read_text(encoding="utf-8"))
        return found if found["digest"] == self.digest(work) else None

    def digest(self, work: Work) -> str:
        """Of all that a work depends on but the data: its settings and words."""
        unread = dict.fromkeys(LATER if work in SHARED.values() else (), True)
        settings = self.settings(work).model_dump_json(exclude={"run": UNREAD, **unread})
        return hashlib.sha256(f"{settings} {work.words}".encode()).hexdigest()[:16]

    def settings(self, work: Work) -> Config:
        return laid_over(self.config, work.recipe) if work.recipe else self.config

    def words(self, name: str, work: Work) -> list[str]:
        """The command line of a work; its configuration is written beside its note."""
        place = self.note(name).with_suffix(".yaml")
        write_whole(place, dump_config(self.settings(work)))
        filled = [word.format(folder=self.folder, model=self.config.policy.model) for word in work.words]
        stale = work.restart and self.note(name).is_file()
        configured = [] if work.words[0] == "export" else ["--config", str(place)]
        return [*filled, *configured, *(["--restart"] if stale else []), "--json"]

    def run(self, name: str, work: Work) -> None:
        """Run a command, unless it has ended well with these settings, and note what it took.

        Raises:
            UserError: the command failed.
        """
        if self.done(name, work):
            return
        command = [sys.executable, "-m", "text2grad.cli", *self.words(name, work)]
        started = time.perf_counter()
        log = self.note(name).with_suffix(".log")
        code, peak = run_command(command, log)
        if code:
            said = log.read_text(encoding="utf-8").strip().splitlines() or [f"exit code {code}"]
            problem = said[-1].removeprefix("error: ")
            raise UserError(f"{self.folder.name}: {name} failed: {problem}", f"all it said is in {log}")
        took = {"seconds": round(time.perf_counter() - started, 1), "peak_mb": round(peak, 1)}
        write_json(self.note(name), {"digest": self.digest(work), **took})
        print(f"{self.folder.name}: {name} ({took['seconds']:.0f} s)", file=sys.stderr, flush=True)


def run_command(command: Sequence[str], log: Path | None = None) -> tuple[int, float]:
    """Run a command with one thread, what it says on this terminal or in a file; exit code, and peak in MB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        log.open("wb") if log else nullcontext() as said,
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said) as process,
    ):
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_maxrss / 1024


def run_compare(config: Config, methods: Sequence[str], seeds: int, at_once: int) -> dict[str, Any]:
    """Run what is missing, and write and return the figures: `compare.json`, `compare.md`, `summary.json`.

    Raises:
        UsageError: a method that there is not, or that cannot be run here.
        UserError: the task cannot be measured, or a command failed; what had ended is not done again.
    """
    chosen, measure = methods_of(methods, config), measure_of(config)
    started = time.perf_counter()
    each = seeds_of(config, seeds)
    works = works_of(chosen)
    side_by_side([(seed, name, work) for seed in each for name, work in works.items()], at_once)
    root = config.run.folder
    figures = {"methods": rows_of(chosen, each, measure), "collapsed": list(collapsed(chosen, each, measure))}
    write_json(root / "compare.json", figures)
    write_whole(root / "compare.md", table_of(figures, METRICS[measure], len(each)))
    write_json(root / "summary.json", summary_of(figures, config, measure, each, time.perf_counter() - started))
    build_report(root)
    return figures


def seeds_of(config: Config, seeds: int) -> list[Seed]:
    first = config.run.seed
    return [Seed(config, seed, config.run.folder / f"seed-{seed}") for seed in range(first, first + seeds)]


def side_by_side(jobs: Sequence[tuple[Seed, str, Work]], at_once: int) -> None:
    """Run works as soon as those they wait for have ended, `at_once` of them. After a failure no more begin.

    Raises:
        UserError: the first failure.
    """
    waiting = {(seed.folder, name): (seed, work) for seed, name, work in jobs}
    running: dict[Future[None], tuple[Path, str]] = {}
    ended: set[tuple[Path, str]] = set()
    with ThreadPoolExecutor(at_once) as pool:
        while waiting or running:
            for (folder, name), (seed, work) in list(waiting.items()):
                if len(running) < at_once and all((folder, earlier) in ended for earlier in work.after):
                    running[pool.submit(seed.run, name, work)] = (folder, name)
                    del waiting[folder, name]
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ended.add(running.pop(future))
                future.result()


def rows_of(methods: Sequence[str], seeds: Sequence[Seed], measure: str) -> dict[str, dict[str, Any]]:
    """Of each method: the mean of the sampled (and greedy) measure with its interval, the seeds, the paired
    difference to text2grad, and what it cost beyond the work that all share."""
    found = {name: [scores_of(seed, name, measure) for seed in seeds] for name in methods}
    return {name: _row(name, found, seeds) for name in methods}


Scores = dict[str, dict[str, float]]
"""Way -> problem -> its mean measure."""


def scores_of(seed: Seed, method: str, measure: str) -> Scores:
    """What a policy of a seed reached on each problem."""
    policy = method if method != BASE else Path(seed.config.policy.model).name
    place = seed.folder / "evaluation" / measured_on(seed.config) / f"{policy}{SCORES}"
    found: dict[str, dict[str, dict[str, float]]] = json.loads(place.read_text(encoding="utf-8"))
    return {way: {key: scores[measure] for key, scores in found[way].items() if measure in scores} for way in WAYS}


def _row(name: str, found: Mapping[str, Sequence[Scores]], seeds: Sequence[Seed]) -> dict[str, Any]:
    own, ours = found[name], found.get(OURS)
    row: dict[str, Any] = {}
    for way in WAYS:
        by_seed = [fmean(scores[way].values()) for scores in own]
        whole = mean_with_interval(over_problems(own, way))
        row[way] = {"metric": fmean(by_seed), "interval": [whole.low, whole.high], "seeds": by_seed}
        if ours and name != OURS:
            apart = mean_with_interval(over_problems(own, way, ours))
            row[way] |= {"difference": apart.mean, "difference_interval": [apart.low, apart.high]}
    return {**row["sampled"], "greedy": row["greedy"], **cost_of(name, seeds)}


def over_problems(own: Sequence[Scores], way: str, other: Sequence[Scores] | None = None) -> list[float]:
    """One number a problem, its mean over the seeds that ask it, of the measure or of its difference to `other`."""
    values: dict[str, list[float]] = {}
    for number, scores in enumerate(own):
        for problem, value in scores[way].items():
            against = other[number][way].get(problem) if other else 0.0
            if against is not None:
                values.setdefault(problem, []).append(value - against)
    return [fmean(each) for each in values.values()]


def cost_of(name: str, seeds: Sequence[Seed]) -> dict[str, float]:
    """Means over the seeds: rollouts, sampled tokens and seconds of what a method does alone; the seconds of what
    it shares with others, and the answers that were criticised there; and the largest peak of all its commands."""
    works = works_of([name])
    notes = [{key: seed.done(key, work) or {} for key, work in works.items()} for seed in seeds]
    steps = [_steps(seed, name) for seed in seeds]

    def seconds(keys: Callable[[str], bool]) -> float:
        return round(fmean(sum(each[key].get("seconds", 0.0) for key in each if keys(key)) for each in notes), 1)

    return {
        "rollouts": fmean(rollouts for rollouts, _ in steps),
        "sampled_tokens": fmean(tokens for _, tokens in steps),
        "shared_answers": fmean(_answers(seed, works) for seed in seeds),
        "seconds": seconds(lambda key: key in OWN),
        "shared_seconds": seconds(lambda key: key in SHARED),
        "peak_mb": max(each[key].get("peak_mb", 0.0) for each in notes for key in each),
    }


def _steps(seed: Seed, policy: str) -> tuple[float, float]:
    """Rollouts and sampled tokens of a PPO run; none of a policy that samples nothing."""
    path = seed.folder / "ppo" / policy / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    lengths = [found["response_length"] for found in map(json.loads, lines) if "response_length" in found]
    rollouts = seed.config.ppo.rollouts
    return float(rollouts * len(lengths)), float(rollouts * sum(lengths))


def _answers(seed: Seed, works: Mapping[str, Work]) -> int:
    """Answers that a critic judged before the training of a method."""
    files = {"annotate": "feedback.jsonl", "refine": "refined.jsonl"}
    texts = [(seed.folder / file).read_text(encoding="utf-8") for work, file in files.items() if work in works]
    return sum(text.count("\n") for text in texts)


def collapsed(methods: Sequence[str], seeds: Sequence[Seed], measure: str) -> Iterator[str]:
    """The runs that ended below the SFT policy of their seed, sampled, where that is in the table."""
    if "sft" not in methods:
        return
    for seed in seeds:
        start = fmean(scores_of(seed, "sft", measure)["sampled"].values())
        for name in methods:
            if name in OWN and fmean(scores_of(seed, name, measure)["sampled"].values()) < start:
                yield f"{name} {seed.config.run.seed}"


def table_of(figures: Mapping[str, Any], metric: str, seeds: int) -> str:
    """The table as Markdown."""
    head = ["method", "sampled", "95 %", "greedy", "difference to text2grad", "rollouts", "seconds"]
    lines = [f"{metric}, {seeds} seed{'s' if seeds > 1 else ''}", "", _line(head), _line(["---"] * len(head))]
    for name, row in figures["methods"].items():
        apart = "–"
        if "difference" in row:
            apart = f"{row['difference']:+.3f} ({_range(row['difference_interval'], '+.3f')})"
        cells = [
            METHODS[name],
            f"{row['metric']:.3f}",
            _range(row["interval"]),
            f"{row['greedy']['metric']:.3f}",
        ]
        lines.append(_line([*cells, apart, f"{row['rollouts']:,.0f}", f"{row['seconds']:,.0f}"]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _range(bounds: Sequence[float], form: str = ".3f") -> str:
    low, high = bounds
    return f"{low:{form}} to {high:{form}}"


def summary_of(
    figures: Mapping[str, Any], config: Config, measure: str, seeds: Sequence[Seed], seconds: float
) -> dict[str, Any]:
    """What the page about the run shows."""
    rows = [
        {
            "name": METHODS[name],
            "greedy": row["greedy"]["metric"],
            "sampled": row["metric"],
            "seeds": [
                {"greedy": greedy, "sampled": sampled}
                for greedy, sampled in zip(row["greedy"]["seeds"], row["seeds"], strict=True)
            ],
        }
        for name, row in figures["methods"].items()
    ]
    return {
        "title": f"text2grad compare: {config.task.name}",
        "metric": METRICS[measure],
        "rows": rows,
        "seeds": [seed.config.run.seed for seed in seeds],
        "seconds": round(seconds, 1),
        "command": f"text2grad compare --methods {' '.join(figures['methods'])} --seeds {len(seeds)}",
    }


def plan_of(config: Config, methods: Sequence[str], seeds: int, at_once: int) -> dict[str, Any]:
    """What a comparison would do, before it does it.

    `works`: of each kind how many are to do, and the mean seconds of those that have ended (null: none has).
    `seconds`: what is left, divided by how many run at once; null while any kind has never run.
    """
    chosen = methods_of(methods, config)
    works, each = works_of(chosen), seeds_of(config, seeds)
    rows: dict[str, dict[str, Any]] = {}
    for name, work in works.items():
        notes = [seed.done(name, work) for seed in each]
        took = [note["seconds"] for note in notes if note]
        rows[name] = {"left": notes.count(None), "seconds": round(fmean(took), 1) if took else None}
    missing = [(row["left"], row["seconds"]) for row in rows.values() if row["left"]]
    known = all(seconds is not None for _, seconds in missing)
    left = sum(count * seconds for count, seconds in missing) / at_once if known else None
    runs = sum(work.words[0] == "train" and len(work.words) == len(_ppo("").words) for work in works.values())
    return {"works": rows, "rollouts": runs * seeds * config.ppo.steps * config.ppo.rollouts, "seconds": left}
