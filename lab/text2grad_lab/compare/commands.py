"""The command that compares methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import typer

from text2grad.commands.base import CONFIG, ConfiguredCommand, Stage, Work, command, option

DEFAULT = ["demo", "text2grad_lab:baselines"]
COMPARED = ["sft", "scalar", "grpo", "text2grad"]


@command("compare")
class Compare(Stage, ConfiguredCommand):
    """Compare methods on one task with the same feedback.

    Shared work (SFT, critiques, reward model, pairs) is done once per seed. Each method then trains
    with the same prompts and number of rollouts, and is measured on the same held-out problems. The
    table shows means with bootstrap intervals over problems, differences to text2grad paired by
    problem, and costs. Run the same command again to resume. With --tries the learning rate of
    every method is tuned first: all methods try the same multiples of the configured rate. Runs
    that diverge are not stopped (ppo.max_kl) but measured, and those that end below SFT are listed
    as collapsed. With people's feedback (task.data imported), all methods learn from the records
    that import wrote to <run.folder>/feedback.jsonl.

    Methods: base, sft, reflection (answers revised once), rejection (SFT on the best answers), ilf
    (SFT on refinements), offline (text2grad from records alone), dpo, scalar (PPO on the verdict),
    scalar_rm (PPO on a reward model of pairs), prm (on one of steps), dense (on one of tokens),
    grpo, grpo_turns (GRPO with a number per turn), sdpo, paper, text2grad. A recipe file
    (mine.yaml) is PPO with that recipe over the configuration. A method may have further settings:
    text2grad+ppo.gamma=1+ppo.kl=full. Add --config text2grad_lab:baselines to a preset for the
    settings of the baselines.

    \b
    Examples:
      python -m text2grad_lab compare --methods sft scalar grpo dpo text2grad --tries 3
      python -m text2grad_lab compare --config mine.yaml --methods sft offline text2grad --plan
    """

    methods: list[str] = option("--methods NAME ...", "sft, scalar, grpo, dpo, text2grad, ...", COMPARED)
    seeds: int = option("--seeds", "Repeat with this many seeds.", 3, min=1)
    at_once: int | None = option("--at-once N", "Number of parallel commands. [default: cores]", min=1)
    tries: int = option("--tries", "Rates tried for each method, on a seed not in the table.", 1, min=1, max=5)
    measure: str | None = option(
        "--measure NAME", "Compare by this measure of the task. [default: pass, rouge_l, or its first]"
    )
    plan: bool = option("--plan", "Only print what would be done.", False)
    config: list[str] = field(default=option(*CONFIG, DEFAULT), kw_only=True)

    def work(self) -> Work:
        config = self.configuration()
        from text2grad_lab import compare
        from text2grad_lab.compare.tuning import Extent

        extent = Extent.of(config.run.seed, self.seeds, self.tries)
        at_once = self.at_once or os.cpu_count() or 1
        names = [name for listed in self.methods for name in listed.split(",")]
        if self.plan:
            return Work(partial(compare.plan_of, config, names, extent), _show_plan)
        run = partial(compare.run_compare, config, names, extent, at_once, self.measure)
        return Work(run, partial(_show_comparison, config.run.folder))


def _show_plan(plan: Mapping[str, Any]) -> None:
    """Print the remaining work, a line per kind of command."""
    for name, work in plan["works"].items():
        seconds = "" if work["seconds"] is None else f", {work['seconds']:.0f} s each"
        typer.echo(f"{name}: {work['left']} to run{seconds}", err=True)
    typer.echo(f"rollouts of PPO: {plan['rollouts']:,}", err=True)


def _show_comparison(folder: Path, _: Mapping[str, Any]) -> None:
    typer.echo((folder / "compare.md").read_text(encoding="utf-8"), err=True)
    typer.echo(f"table: {folder / 'compare.md'}\ncurves and answers: text2grad view {folder}/seed-*", err=True)
