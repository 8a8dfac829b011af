"""The main job in one command: SFT, annotate, reward model, text2grad beside other methods, evaluation, report.

It only calls stages. The PPO runs are `text2grad train` in processes of their own, two at a time, with the same
prompts, rollouts, optimizer steps and critic; each is measured by `text2grad evaluate` when it has ended. Over all
but text2grad's lies a recipe: `scalar` pays the verdict alone, with the discount and KL coefficient that suit it
(both were tuned with the same number of trials on other seeds, docs/LOG.md), `grpo` is what people run who have no
critic of words. Where a head of the reward model gives the verdict, it writes no words for these two. The tiny
model is compared with the first; a pretrained one with both, and with itself as it came.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from text2grad.compare.figures import WAYS
from text2grad.compare.methods import measure_of, title_of
from text2grad.compare.seeds import run_command
from text2grad.config import TINY, Config, dump_config, laid_over
from text2grad.errors import UserError
from text2grad.eval.metrics import mean
from text2grad.policy.files.cpu import give_back_memory
from text2grad.report.folder import Sample, read_lines
from text2grad.report.terminal import results_table, reward_model_table, show_samples, show_table
from text2grad.report.viewer import build_report
from text2grad.stages.judge.annotate import run_annotate
from text2grad.stages.learn.reward_model import run_train_reward
from text2grad.stages.learn.supervised import run_sft
from text2grad.stages.measure.evaluate import target_name
from text2grad.stages.run.results import measured_on, read_results, write_json, write_whole

PHASES = 4
AT_ONCE = 2
"""Runs side by side, one thread each."""


class Method(NamedTuple):
    """A policy that is trained against the critic, and the recipe of its run ("": text2grad's own)."""

    name: str
    title: str
    recipe: str = ""


BASE = "base"
METHODS = (
    Method("scalar_ppo", "scalar PPO", "scalar"),
    Method("grpo", "GRPO", "grpo"),
    Method("text2grad", "text2grad"),
)
REWARD_MODEL_FIGURES = ("good_precision", "good_recall", "poor_precision", "poor_recall", "unmatched", "unreadable")


def run_demo(config: Config, seeds: int) -> dict[str, Any]:
    """Run the main job once per seed and show the result; returns the figures of the summary.

    Raises:
        UserError: the task cannot be measured by tests or by references.
    """
    measure = measure_of(config)
    started = time.perf_counter()
    root = config.run.folder
    chosen = [config.run.seed + index for index in range(seeds)]
    folders = [root / f"seed-{seed}" if seeds > 1 else root for seed in chosen]
    results = [_run_seed(_of_seed(config, *each), measure) for each in zip(chosen, folders, strict=True)]
    seconds = round(time.perf_counter() - started, 1)
    figures = _figures(config, results, seconds)
    summary = _summary(figures, chosen, config, measure)
    write_json(root / "summary.json", summary)
    page = build_report(root)
    _show(summary, results[0]["folder"], page)
    return figures


def _methods(config: Config) -> list[Method]:
    return [method for method in METHODS if method.recipe != "grpo" or config.policy.model != TINY]


def _rows(config: Config) -> list[tuple[str, str]]:
    """Names of the policies that are measured, with their titles."""
    base = [] if config.policy.model == TINY else [(BASE, "as it came")]
    return [*base, ("sft", "SFT"), *((method.name, method.title) for method in _methods(config))]


def _of_seed(config: Config, seed: int, folder: Path) -> Config:
    """The same job with another seed: another split of combinations, other demonstrations, other weights."""
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"seed": seed, "folder": folder}),
            "task": config.task.model_copy(update={"seed": seed}),
        }
    )


def _run_seed(config: Config, measure: str) -> dict[str, Any]:
    started = time.perf_counter()
    _phase(config, 1, "SFT")
    run_sft(config, "restart")
    _phase(config, 2, "critiques")
    run_annotate(config)
    _phase(config, 3, "reward model")
    rates = run_train_reward(config, "restart").rates
    _phase(config, 4, f"PPO ({', '.join(each.title for each in _methods(config))}) and evaluation")
    result: dict[str, Any] = {"reward_model": rates, "folder": config.run.folder}
    result["side_by_side_mb"] = _resident_mb() + _side_by_side(config)
    for name, _ in _rows(config):
        figures = read_results(config.run.folder, measured_on(config), target_name(_target(config, name)))
        result[name] = {way: figures[f"{way}_{measure}"] for way in WAYS}
    seconds = round(time.perf_counter() - started, 1)
    summary = _summary(_figures(config, [result], seconds), [config.run.seed], config, measure)
    write_json(config.run.folder / "summary.json", summary)
    return result


def _phase(config: Config, number: int, name: str) -> None:
    """Say which part of a seed's job begins, in as little memory as it can have."""
    give_back_memory()
    print(f"{number}/{PHASES} {name} (seed {config.run.seed})", file=sys.stderr, flush=True)


def _side_by_side(config: Config) -> float:
    """Train every method and measure every policy, two at a time; the most MB that they have held at once.

    The longest comes first: text2grad, whose critiques are written.
    """
    single = config.model_copy(update={"run": config.run.model_copy(update={"threads": 1, "shown_prompts": 0})})
    methods = {method.name: method for method in reversed(_methods(config))}
    for name, settings in [("evaluation", single), *((name, _of(single, each)) for name, each in methods.items())]:
        write_whole(config.run.folder / f"{name}.yaml", dump_config(settings, only_set=True))
    names = [*methods, *(name for name, _ in _rows(config) if name not in methods)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(_trained_and_measured, config, name, name in methods) for name in names]
        wait(runs, return_when=FIRST_EXCEPTION)
        for run in runs:
            run.cancel()  # after a failure no more begin
        return sum(sorted(run.result() for run in runs)[-AT_ONCE:])


def _trained_and_measured(config: Config, name: str, method: bool) -> float:
    """Train a method, measure its policy or one that is there; the peak in MB."""
    folder = config.run.folder
    train = ("train", "--config", f"{folder / name}.yaml", "--name", name, "--restart")
    measure = ("evaluate", _target(config, name), "--config", f"{folder / 'evaluation'}.yaml", "--json")
    return max(_command_line(*train) if method else 0.0, _command_line(*measure))


def _of(config: Config, method: Method) -> Config:
    """The same job as a run of this method: no words are written for one that pays the verdict alone."""
    over = laid_over(config, method.recipe) if method.recipe else config
    if not (over.credit.by_score and over.reward_model.verdict == "head" and over.critic.kind == "reward_model"):
        return over
    reading = over.critic.reward_model.model_copy(update={"words": False})
    return over.model_copy(update={"critic": over.critic.model_copy(update={"reward_model": reading})})


def _target(config: Config, name: str) -> str:
    return config.policy.model if name == BASE else name


def _command_line(*words: str) -> float:
    """Run the command line with one thread; the peak in MB."""
    code, peak = run_command([sys.executable, "-m", "text2grad.cli", *words])
    if code:
        raise UserError(f"text2grad {' '.join(words)} did not finish", "see the error above")
    return peak


def _figures(config: Config, results: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Means over the seeds, and the list of each: the object that `--json` prints."""

    def means(of: str, keys: Sequence[str]) -> dict[str, float]:
        return {key: mean([result[of][key] for result in results]) for key in keys}

    names = [name for name, _ in _rows(config)]
    figures = {name: {**means(name, WAYS), "seeds": [result[name] for result in results]} for name in names}
    rates = means("reward_model", REWARD_MODEL_FIGURES)
    return {**figures, "reward_model": rates, "seconds": seconds, "peak_rss_mb": _peak_mb(results)}


def _summary(figures: dict[str, Any], seeds: list[int], config: Config, measure: str) -> dict[str, Any]:
    return {
        "title": f"text2grad demo: {config.task.name}",
        "metric": title_of(measure),
        "rows": [{"name": title, **figures[name]} for name, title in _rows(config)],
        **{key: figures[key] for key in ("reward_model", "seconds", "peak_rss_mb")},
        "seeds": seeds,
        "command": _command(config) + (f" --seeds {len(seeds)}" if len(seeds) > 1 else ""),
    }


def _command(config: Config) -> str:
    return "text2grad demo" + ("" if config.policy.model == TINY else f" --model {config.policy.model}")


def _show(summary: dict[str, Any], folder: Path, page: Path) -> None:
    console = Console(stderr=True)
    samples = read_lines(folder / "ppo" / "text2grad" / "samples.jsonl", Sample, [])
    last = max(sample.step for sample in samples)
    show_samples(console, [sample for sample in samples if sample.step == last], 5)
    show_table(console, results_table(summary))
    show_table(console, reward_model_table(summary["reward_model"]))
    console.print(f"report: {page}", soft_wrap=True, highlight=False)


def _peak_mb(results: Sequence[dict[str, Any]]) -> float:
    """An upper bound on the memory at any time: this process alone, or beside its runs."""
    alone = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    beside: list[float] = [result["side_by_side_mb"] for result in results]
    return round(max(alone, *beside), 1)


def _resident_mb() -> float:
    """What this process holds now; where the system does not say, the most it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 2**20
