"""The command `improve`: from feedback to a better model."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from pathlib import Path

import typer

from text2grad.commands.base import (
    MAP,
    SCALE,
    SHEET,
    UNSET,
    ConfiguredCommand,
    Stage,
    Work,
    argument,
    command,
    option,
)
from text2grad.commands.console import quiet
from text2grad.errors import UsageError

PRESETS = {"tiny": "human_qa"}
"""The preset for a model; `own` for all others."""


@command("improve")
class Improve(Stage, ConfiguredCommand):
    """Improve a model with a spreadsheet of human feedback.

    FILE has one row per answer with the question, the answer, and a comment, a rating or a better
    answer. Columns may have any names. The file can be .xlsx, .ods, .csv or JSON, including chat
    logs with thumbs. The meaning of the columns is proposed first, for you to confirm. A fifth of
    the questions is held out; the new model is kept only if it is better on them.

    Runs import, sft, train --offline, evaluate and report, and prints each command. If it is
    stopped or killed, run the same command again to resume.

    --inbox is for a nightly job. It takes the new files of a folder once, continues from the better
    policy so far, and links the better one as `policy` in the run. Exit code 0: done, better or
    not; 3: a file could not be read and was skipped; 1: failed.

    \b
    Examples:
      text2grad improve feedback.xlsx
      text2grad improve feedback.xlsx --plan
      text2grad improve feedback.csv --model Qwen/Qwen2.5-0.5B-Instruct --yes
      text2grad improve feedback.csv --map response=Text --scale 6..1
      text2grad improve --inbox feedback/
      text2grad improve --inbox feedback/ --rollback
    """

    source: Path | None = argument("FILE", "The file with the feedback.", None)
    model: str = option("--model NAME", "The model to improve: smollm2, tiny, a folder or a hub name.", "")
    names: list[str] = option(*MAP, UNSET)
    scales: list[str] = option(*SCALE, UNSET)
    sheet: str = option(*SHEET)
    inbox: Path | None = option("--inbox FOLDER", "Learn from the new files of this folder.")
    rollback: bool = option("--rollback", "With --inbox: restore the previous policy, and exit.", False)
    annotator: str = option(
        "--annotator MODEL",
        "Have a chat model mark the words that comments without quotes are about; critic.prompted.base_url is its"
        " endpoint, and the cost is shown first.",
        "",
    )
    yes: bool = option("--yes", "Accept the proposal without asking.", False)
    plan: bool = option("--plan", "Show the proposal and the plan, and exit.", False)
    restart: bool = option("--restart", "Start over instead of resuming an unfinished run.", False)
    config: list[str] = field(
        default=option("--config NAME|FILE", "A preset's name or a YAML file. [default: own]", UNSET), kw_only=True
    )

    def work(self) -> Work:
        from text2grad.stages.improve.inbox import roll_back, run_inbox
        from text2grad.stages.improve.run import run_improve
        from text2grad.stages.improve.source import ImproveOptions

        if (self.source is None) == (self.inbox is None):
            raise UsageError("improve takes either a file or an inbox", "give FILE, or --inbox FOLDER")
        if self.rollback and self.inbox is None:
            raise UsageError("--rollback restores a policy of an inbox", "add --inbox FOLDER")
        if self.source is not None and not (self.yes or self.plan or sys.stdin.isatty()):
            problem = "cannot ask for confirmation of the columns: stdin is not a terminal"
            raise UsageError(problem, "--plan shows the columns, --yes accepts them")
        source = self.source or self.inbox
        assert source is not None
        name = re.sub(r"[^\w-]+", "_", source.resolve().stem if self.source else source.resolve().name)
        under = [f"--run.folder=runs/{name}"]
        under += [f"--policy.model={self.model}"] if self.model else []
        config = self.configuration(self.config or [PRESETS.get(self.model, "own")], under)
        options = ImproveOptions(self.sheet, self.names, self.scales, self.annotator, self.plan, self.restart)
        if self.inbox is not None:
            run = partial(roll_back, config) if self.rollback else partial(run_inbox, config, self.inbox, options)
            return Work(run, quiet)
        confirm = None if self.yes or self.plan else partial(typer.confirm, default=True, err=True)
        choose = choose_option if sys.stdin.isatty() else None
        return Work(partial(run_improve, config, source, options, confirm, choose), quiet)


def choose_option(question: str, options: Sequence[str]) -> str:
    """Ask on the terminal for one of several options."""
    for number, text in enumerate(options, start=1):
        typer.echo(f"  {number}: {text}", err=True)
    answer = 0
    while not 1 <= answer <= len(options):
        answer = typer.prompt(f"{question}: which", type=int, err=True)
    return options[answer - 1]
