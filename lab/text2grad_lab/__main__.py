"""The command line of text2grad with the lab's commands added: `python -m text2grad_lab --help`."""

from __future__ import annotations

from importlib import import_module

from text2grad.cli import main

COMMANDS: tuple[str, ...] = ("text2grad_lab.baselines.commands",)
"""Modules that register commands when they are imported, in the order of the help."""


def register() -> None:
    """Add the lab's commands to those of `text2grad.cli`."""
    for module in COMMANDS:
        import_module(module)


if __name__ == "__main__":
    register()
    main()
