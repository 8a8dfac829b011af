"""The command line: parse the arguments, run a command of `text2grad.commands`, and exit.

Progress and summaries are text on stderr; with `--json` the last line of stdout is the summary as
one JSON object.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from itertools import takewhile
from typing import Any, NoReturn

import typer

from text2grad import errors
from text2grad.commands import improve, judge, learn, measure, pages, run  # noqa: F401  (each registers its commands, in this order)
from text2grad.commands.base import ConfiguredCommand, Stage, app, command, option
from text2grad.commands.console import nearest_option, split_overrides
from text2grad.errors import UsageError, UserError
from text2grad.named import is_import_path, load_named

UsageMistake: Any = typer.BadParameter.__base__  # click's UsageError, wherever this typer keeps it


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context, version: bool = option("--version", "Print the version and exit.", False)
) -> None:
    """Train a language model from written feedback.

    A critique describes what is good and poor in an answer. text2grad finds the exact words that it
    refers to, turns them into a reward for each token, and trains the model on the rewards.

    To start, run text2grad doctor and then text2grad demo; they need no GPU, API key or download.
    """
    if version:
        typer.echo(f"text2grad {metadata.version('text2grad')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program `text2grad` and exit.

    A user error prints one line on stderr and sets its exit code (2: usage). An interruption exits
    with 130. A bug keeps its traceback.

    Raises:
        SystemExit: always, except after a bug.
    """
    atexit.register(_skip_last_collection)
    try:
        with errors.exit_on_user_error(), errors.optional_packages():
            sys.exit(_run(sys.argv[1:] if arguments is None else arguments))
    except UsageMistake as mistake:
        command = mistake.ctx.command_path if mistake.ctx else "text2grad"
        message = " ".join(mistake.format_message().split()).replace("Value error, ", "").rstrip(".")
        typer.echo(f"error: {message} ({command} --help)", err=True)
        sys.exit(errors.EXIT_USAGE)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        sys.exit(errors.EXIT_INTERRUPTED)
    except BrokenPipeError:  # whatever read stdout, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(errors.EXIT_FAILED)


def _skip_last_collection() -> None:
    """Skip the garbage collection at exit, which takes over a second with torch's objects.

    Not with triton, which GPU builds of torch load: it reports uncollected objects as leaks, in 30
    lines on stderr.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _run(arguments: Sequence[str]) -> int:
    """Parse the arguments, run the command and return its exit code."""
    words, overrides = split_overrides(arguments)
    if words and is_import_path(words[0]):
        _register(words[0])
    _refuse_unknown_options(words, overrides)
    stage = app(args=words, prog_name="text2grad", standalone_mode=False)
    if isinstance(stage, ConfiguredCommand):
        stage.overrides = overrides
    return stage.run() if isinstance(stage, Stage) else stage or errors.EXIT_DONE


def _register(name: str) -> None:
    """Register a user's command, a subclass of `Stage` named as `module:Class`."""
    stage = load_named("command", name)
    if not issubclass(stage, Stage):
        raise UserError(f"{name} is not a command", "derive the class from text2grad.commands.base.Stage")
    command(name)(stage)


def _refuse_unknown_options(words: Sequence[str], overrides: Sequence[str] = ()) -> None:
    """Refuse unknown options, and settings for a command that has none.

    Raises:
        UsageError: there is one; suggests the closest option or setting.
    """
    group: Any = typer.main.get_command(app)
    command_name = next((word for word in words if not word.startswith("-")), "")
    if command_name and command_name not in group.commands:
        return  # the parser reports an unknown command
    command = group.commands.get(command_name, group)
    if overrides and command_name and not command.epilog:
        raise UsageError(
            f"{command_name} takes no settings, got {overrides[0]}", f"text2grad {command_name} --help"
        )
    parameters = [*group.params, *command.params]
    options = {"-h", "--help"}.union(*(parameter.opts + parameter.secondary_opts for parameter in parameters))
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if name.startswith("--") and name not in options:
            raise UsageError(f"unknown option {name}", nearest_option(name, sorted(options)))


if __name__ == "__main__":
    main()
