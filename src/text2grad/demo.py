"""Compare text2grad with scalar PPO on a small task, and write a table and a report.

The demo runs the commands of text2grad as a user would: first `sft`, `annotate` and `train-reward`,
then the PPO runs and `evaluate`, two at a time with one thread each. All PPO runs share prompts,
rollouts, optimizer steps and critic. The recipe `scalar` rewards only the verdict; its discount and
KL coefficient were tuned with as many trials as text2grad, on other seeds (lab/book). A pretrained
model is also compared with GRPO and with its state before training.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from text2grad.config import TINY, Config, dump_config, preset_settings, with_recipe
from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UsageError, UserError
from text2grad.eval.measures import mean_scores
from text2grad.page.answers import sample_record
from text2grad.page.report import build_report
from text2grad.page.runs import read_samples
from text2grad.page.signs import describe_reward_model
from text2grad.page.terminal import results_table, show_records, show_table
from text2grad.settings import with_values
from text2grad.stages.run_folder import RunFolder, heldout_prompts, main_measure, write_atomically

SAMPLES_PER_STEP = 3
"""Samples shown of the first and of the last step."""
AT_ONCE = 2
"""Number of parallel commands, one thread each."""
OURS, BASE = "text2grad", "base"
RECIPES = {OURS: "", "grpo": "grpo", "scalar_ppo": "scalar"}
"""The recipe of each PPO run; the longest run, whose reward model writes critiques, comes first."""
TITLES = {BASE: "base model", "sft": "SFT", "scalar_ppo": "scalar PPO", "grpo": "GRPO", OURS: OURS}
METRICS = {
    "pass": "held-out pass@1",
    "rouge_l": "held-out ROUGE-L",
    "rouge_l_unicode": "held-out ROUGE-L, all scripts",
}
WAYS = ("greedy", "sampled")
RATES = ("good_precision", "good_recall", "poor_precision", "poor_recall", "unmatched", "unreadable")
UNSTOPPED = {"ppo.max_kl": None, "ppo.max_failed": 1.0, "ppo.max_unmatched": 1.0}
"""Limits without effect: a run that fails is measured like the others."""


class Command(NamedTuple):
    """A command of the demo; its configuration is saved as `<run.folder>/demo/<name>.yaml`."""

    name: str
    words: Sequence[str]
    config: Config


def run_demo(config: Config) -> dict[str, Any]:
    """Run the demo, show the results and return them.

    Raises:
        UserError: the task has no measure, or a command failed.
    """
    measure = measure_of(config)
    folder, started = config.run.folder, time.perf_counter()
    config = with_values(config, {"task.seed": config.run.seed, **UNSTOPPED})
    peaks = [_run(command) for command in preparation(config)]
    peaks.append(_run_side_by_side(training(config)))
    process_mb = psutil.Process().memory_info().rss / 2**20
    figures = {name: _scores(config, name, measure) for name in policy_names(config)}
    report = folder / "evaluation" / "reward_model.json"
    rates = json.loads(report.read_bytes()) if config.critic.kind == "reward_model" else {}
    seconds = round(time.perf_counter() - started, 1)
    page = build_report(folder, presets=preset_settings())
    _show_samples(folder)
    console = Console(stderr=True)
    show_table(console, results_table(title_of(measure), {TITLES[name]: row for name, row in figures.items()}))
    quality = describe_reward_model(rates) if rates else []
    console.print(*quality, f"report: {page}", sep="\n", soft_wrap=True, highlight=False)
    costs = {"seconds": seconds, "peak_rss_mb": round(process_mb + max(peaks), 1)}
    if rates:
        figures["reward_model"] = {name: rates[name] for name in RATES}
    return {**figures, **costs}


def policy_names(config: Config) -> list[str]:
    """Return the names of the measured policies in the order of the table."""
    if config.policy.model == TINY:
        return ["sft", "scalar_ppo", OURS]
    return [BASE, "sft", "scalar_ppo", "grpo", OURS]


def preparation(config: Config) -> list[Command]:
    """Return the commands for what all policies share, in order, with the configured threads."""
    sft = Command("sft", ("sft", "--restart"), config)
    if config.critic.kind != "reward_model":
        return [sft]
    return [
        sft,
        Command("annotate", ("annotate",), config),
        Command("reward model", ("train-reward", "--restart"), config),
    ]


def training(config: Config) -> list[list[Command]]:
    """Return the commands that train and measure each policy with one thread, the longest first."""
    config = with_values(config, {"run.threads": 1})
    names = policy_names(config)
    chains: dict[str, list[Command]] = {}
    for name, recipe in RECIPES.items():
        if name in names:
            settings = with_recipe(config, recipe) if recipe else config
            chains[name] = [Command(name, ("train", "--name", name, "--restart"), settings)]
    for name in names:
        target = config.policy.model if name == BASE else name
        chains.setdefault(name, []).append(Command(f"evaluate {name}", ("evaluate", target), config))
    return list(chains.values())


def _run_side_by_side(chains: Iterable[Sequence[Command]]) -> float:
    """Run chains of commands, `AT_ONCE` at a time, and return an upper bound of their memory in MB.

    Raises:
        UserError: a command failed; no other command is started then.
    """
    failed = Event()

    def run_chain(chain: Sequence[Command]) -> float:
        peak = 0.0
        for command in chain:
            if failed.is_set():
                break
            try:
                peak = max(peak, _run(command))
            except UserError:
                failed.set()
                raise
        return peak

    with ThreadPoolExecutor(AT_ONCE) as pool:
        peaks = sorted(pool.map(run_chain, chains))
    return sum(peaks[-AT_ONCE:])


def _run(command: Command) -> float:
    """Run a command on this terminal and return its peak memory in MB.

    Raises:
        UserError: it failed, other than on some records.
    """
    folder, started = command.config.run.folder, time.perf_counter()
    settings = folder / "demo" / f"{command.name.replace(' ', '_')}.yaml"
    write_atomically(settings, dump_config(command.config, only_set=True))
    program = [sys.executable, "-m", "text2grad.cli"]
    code, peak = run_command([*program, *command.words, "--config", str(settings), "--json"])
    if code not in (0, EXIT_SOME_RECORDS_FAILED):
        raise UserError(f"{folder.name}: {command.name} failed", "see the error above")
    warning = "; some records failed, see the lines above" if code else ""
    seconds = time.perf_counter() - started
    print(f"{folder.name}: {command.name} ({seconds:.0f} s{warning})", file=sys.stderr, flush=True)
    return peak


def run_command(command: Sequence[str], log: Path | None = None, folder: Path | None = None) -> tuple[int, float]:
    """Run a command in a folder; return its exit code and its peak memory in MB.

    `log` is a file for stdout and stderr. Without it, only stderr is shown, on this terminal.
    """
    peak = 0.0
    with (
        log.open("wb") if log else nullcontext() as file,
        subprocess.Popen(command, stdout=file or subprocess.DEVNULL, stderr=file, cwd=folder) as process,
    ):
        while process.returncode is None:
            peak = max(peak, peak_mb(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.25)
    return process.returncode, peak


def peak_mb(pid: int) -> float:
    """Return the peak memory of a process in MB, or 0 if it has ended or /proc has no such line.

    `ru_maxrss` is not used because it starts at the memory of the forking parent.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(peak[1]) / 1024 if peak else 0.0


def measure_of(config: Config, requested: str | None = None) -> str:
    """Return the measure for comparing policies.

    By default it is pass@1, ROUGE-L, or the first measure of the task's reference answers.

    Raises:
        UserError: no held-out problem has a measure.
        UsageError: the task has no such measure.
    """
    task = RunFolder.of(config).task()
    heldout = heldout_prompts(task, config.evaluate.limit)
    if heldout[0].meta.get("tests"):
        measures = {"pass": 1.0}
    else:
        measures = mean_scores([{"scores": task.scores(example, example.reference)} for example in heldout])
    if not measures:
        cure = "return a measure from its scores(); sft, annotate, train-reward and train run without one"
        raise UserError(f"task {config.task.name!r} has no tests, references or scores to measure", cure)
    if requested is not None and requested not in measures:
        cure = f"--measure {' or '.join(measures)}"
        raise UsageError(f"task {config.task.name!r} has no measure {requested!r}", cure)
    return requested or main_measure(measures)


def title_of(measure: str) -> str:
    """Return the title of a measure in a table."""
    return METRICS.get(measure, f"held-out {measure}")


def _scores(config: Config, name: str, measure: str) -> dict[str, float]:
    """Return the greedy and the sampled result of a policy.

    Raises:
        UserError: none of its answers has the measure.
    """
    policy = Path(config.policy.model).name if name == BASE else name
    results = RunFolder.of(config).read_results(policy)
    scores = {way: results.get(f"{way}_{measure}") for way in WAYS}
    if None in scores.values():
        cure = "return it from the task's scores() for every answer"
        raise UserError(f"no answer of {name} has the measure {measure!r}", cure)
    return {way: float(score) for way, score in scores.items() if score is not None}


def _show_samples(folder: Path) -> None:
    """Print the first samples of the first and of the last step, with their marked words."""
    console, samples = Console(stderr=True), read_samples([folder], [])[OURS]
    for step in (samples[0].step, samples[-1].step):
        console.rule(f"step {step + 1}")
        show_records(
            console, [sample_record(OURS, sample) for sample in samples if sample.step == step][:SAMPLES_PER_STEP]
        )
