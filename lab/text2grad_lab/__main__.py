"""The command line of text2grad with the lab's commands added: `python -m text2grad_lab --help`."""

from __future__ import annotations

from importlib import import_module

from text2grad.cli import main

COMMANDS: tuple[str, ...] = ()
"""Modules that register commands when they are imported, in the order of the help."""

if __name__ == "__main__":
    for module in COMMANDS:
        import_module(module)
    main()
