"""The command that lists, and runs, the questions of a review of the paper."""

from __future__ import annotations

from functools import partial

from text2grad.commands.base import Stage, Work, command, option
from text2grad.errors import UsageError
from text2grad_lab.questions import cells

NONE: list[str] = []


@command("questions")
class Questions(Stage):
    """List the questions of a review of the paper: what is measured on SmolLM2, and what is empty.

    Each cell is a measurement with three seeds and the commands for it. --run runs the commands of
    a question, or of its named cells, in the current folder; they resume when they are run again.

    \b
    Examples:
      python -m text2grad_lab questions
      python -m text2grad_lab questions --status
      python -m text2grad_lab questions --run noise "20 % of the labels flipped, loop"
    """

    status: bool = option(
        "--status", "Print the numbers of cells, and the empty ones with reasons, as JSON.", False
    )
    chosen: list[str] = option("--run QUESTION [CELL] ...", "Run the commands of a question or of its cells.", NONE)

    def work(self) -> Work:
        if self.status and self.chosen:
            raise UsageError("--status runs nothing", "remove --run or --status")
        if self.chosen:
            return Work(partial(cells.run_cells, cells.select(self.chosen)))
        return Work(cells.status, cells.show_status if self.status else cells.show_table)
