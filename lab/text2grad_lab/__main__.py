"""The command line of text2grad with the lab's commands added: `python -m text2grad_lab --help`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from text2grad.cli import main

COMMANDS: tuple[str, ...] = (
    "text2grad_lab.baselines.commands",
    "text2grad_lab.benchmarks.commands",
    "text2grad_lab.compare.commands",
    "text2grad_lab.measures.commands",
    "text2grad_lab.paper.commands",
    "text2grad_lab.questions.commands",
)
"""Modules that register commands when they are imported, in the order of the help."""
LISTED = ("--methods", "--only", "--table", "--run")
"""Options that take all words up to the next option."""


def register() -> None:
    """Add the lab's commands to those of `text2grad.cli`."""
    for module in COMMANDS:
        import_module(module)


def repeat_listed(words: Sequence[str]) -> list[str]:
    """Rewrite `--methods sft dpo` as `--methods sft --methods dpo` for the parser."""
    result: list[str] = []
    option = ""
    for word in words:
        option = word if word.startswith("-") else option
        repeated = option in LISTED and word != option and result[-1] != option
        result += [option, word] if repeated else [word]
    return result


if __name__ == "__main__":
    register()
    main(repeat_listed(sys.argv[1:]))
