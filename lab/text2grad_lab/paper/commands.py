"""The commands that run, price, check and print the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

from text2grad.commands.base import ConfiguredCommand, Stage, Work, command, option
from text2grad.errors import UsageError
from text2grad_lab.paper import GROUPS

NONE: list[int] = []


@command("paper")
class Paper(Stage):
    """Run the commands behind the paper's tables and figures, or print its tables.

    The steps run in the current folder and use its runs/ and data/, in parallel if there are
    several GPUs. They need a GPU and a key of a chat model. Finished steps are not run again.
    lab/paper.md says how exact each table is.

    --table prints a table as published, next to our figures in runs/ and seed-*/runs/. --plan
    prints each step's table or figure, requirements, hours, memory, disk and price. --check runs
    every step on generated tiny models and data, without network, GPU or key.

    \b
    Examples:
      python -m text2grad_lab paper --plan --only slf5k
      python -m text2grad_lab paper --only table2 --keep-going
      python -m text2grad_lab paper --table 2
      python -m text2grad_lab paper --check
    """

    plan: bool = option("--plan", "Only print the steps and their cost.", False)
    check: bool = option("--check", "Run every step on tiny models and data.", False)
    table: list[int] = option("--table N ...", "Only print these tables, with our figures.", NONE)
    only: list[str] = option(
        "--only NAME ...", f"Parts ({', '.join(GROUPS)}), tables (table2) or steps, with what they need.", GROUPS
    )
    keep_going: bool = option(
        "--keep-going", "After a failure, run the steps that do not need the failed one.", False
    )
    prompts: Literal["ours", "paper"] = option(
        "--prompts ours|paper", "Prompts of annotator and judge; paper: appendices B and E.", "ours"
    )
    published: bool = option("--published", "Annotate the data sets' own answers, as the paper does.", False)
    seed: int = option("--seed N", "Run all steps with this seed, in the folder seed-N.", 0, min=0)
    gpu_usd: float = option("--gpu-usd PRICE", "Price of one GPU for an hour.", 2.5)

    def work(self) -> Work:
        from text2grad_lab.paper.steps import print_plan, select, steps

        if self.table:
            return self.tables()
        selected = select(steps(self.prompts, self.published, self.seed), self.only)
        if self.check:
            from text2grad_lab.paper.check import check

            return Work(partial(check, selected), _show_check)
        if self.plan:
            return Work(partial(print_plan, selected, self.gpu_usd))
        from text2grad_lab.paper.runner import run_seed

        return Work(partial(run_seed, selected, self.seed, self.keep_going))

    def tables(self) -> Work:
        """Return the work of printing the tables."""
        from text2grad_lab.paper.tables import fill_table, read_tables, show_tables

        if unknown := set(self.table) - set(read_tables()):
            raise UsageError(f"no table {min(unknown)}", f"--table takes {', '.join(map(str, read_tables()))}")

        def run() -> dict[str, Any]:
            tables = [fill_table(number, Path()) for number in self.table]
            if not self.as_json:
                show_tables(tables)
            return {"tables": [table.as_dict() for table in tables]}

        return Work(run, lambda _: None)


def _show_check(result: Mapping[str, Any]) -> None:
    for failure in result["failed"]:
        typer.echo(f"{failure['name']}: {failure['line']}", err=True)
    typer.echo(f"{result['ran']} of {result['steps']} steps succeeded", err=True)


@command("published")
class Published(Stage, ConfiguredCommand):
    """Write the answers that were published with a data set, for annotate --responses.

    Answers to held-out questions go to <out>_heldout.jsonl.

    \b
    Example:
      python -m text2grad_lab published --config slf5k --out runs/slf5k/published.jsonl
    """

    out: Path = option("--out FILE", "Where to write the answers.", ...)
    data: str = option("--data NAME", "The data set on the hub, or a file. [default: task.data]", "")
    limit: int | None = option("--limit N", "Answers to write for training. [default: all]", None)

    def work(self) -> Work:
        config = self.configuration()
        from text2grad_lab.paper.published import run_published

        return Work(partial(run_published, config, self.data, self.limit, self.out))
