"""The command that runs, prices or checks the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import typer

from text2grad.commands.base import Stage, Work, command, option
from text2grad.errors import UsageError
from text2grad_lab.paper import GROUPS


@command("paper")
class Paper(Stage):
    """Run the commands behind the paper's tables and figures.

    The steps run in the current folder and use its runs/ and data/. They need a GPU and a key of a
    chat model. Finished steps are not run again. lab/paper.md says how exact each table is.

    --plan prints each step's table or figure, requirements, hours and price. --check runs every
    step on generated tiny models and data, without network, GPU or key.

    \b
    Examples:
      python -m text2grad_lab paper --plan --only slf5k
      python -m text2grad_lab paper --check
    """

    plan: bool = option("--plan", "Only print the steps and their cost.", False)
    check: bool = option("--check", "Run every step on tiny models and data.", False)
    only: list[str] = option("--only NAME ...", f"Parts of the list: {', '.join(GROUPS)}.", GROUPS)
    gpu_usd: float = option("--gpu-usd PRICE", "Price of one GPU for an hour.", 2.5)

    def work(self) -> Work:
        if unknown := set(self.only) - set(GROUPS):
            raise UsageError(f"no part {min(unknown)!r}", f"--only takes {', '.join(GROUPS)}")
        from text2grad_lab.paper.steps import print_plan, run_paper, steps

        selected = [step for step in steps() if step.group in self.only]
        if self.check:
            from text2grad_lab.paper.check import check

            return Work(partial(check, selected), _show_check)
        if self.plan:
            return Work(partial(print_plan, selected, self.gpu_usd))
        return Work(partial(run_paper, selected))


def _show_check(result: Mapping[str, Any]) -> None:
    for failure in result["failed"]:
        typer.echo(f"{failure['name']}: {failure['line']}", err=True)
    typer.echo(f"{result['ran']} of {result['steps']} steps succeeded", err=True)
