"""The command line: read the words, run one command of `text2grad.commands`, leave with its exit
code.

Progress and summaries are text on stderr; with `--json` the last line of stdout is the summary as
one JSON object.
"""

from __future__ import annotations

import atexit
import gc
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

    A critique says in words what is good and what is poor in an answer. text2grad ties it to the
    exact words it talks about, turns those into a reward for each token, and trains the model on
    them.

    First steps, which need no GPU, API key or download: text2grad doctor, then text2grad demo.
    """
    if version:
        typer.echo(f"text2grad {metadata.version('text2grad')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program `text2grad`; always leaves through SystemExit.

    A user's mistake is one line on stderr and its exit code (2: usage); an interruption is 130; a
    bug keeps its traceback.
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


def _skip_last_collection() -> None:
    """Leave the objects of torch to the end of the process: a last look at all of them takes more
    than a second.

    Triton, which builds of torch for GPUs load, would report what is left as leaked, in 30 lines on
    stderr.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _run(arguments: Sequence[str]) -> int:
    """Parse the words into a command and run it; the exit code."""
    words, overrides = split_overrides(arguments)
    if words and is_import_path(words[0]):
        _register(words[0])
    _refuse_unknown_options(words, overrides)
    stage = app(args=words, prog_name="text2grad", standalone_mode=False)
    if isinstance(stage, ConfiguredCommand):
        stage.overrides = overrides
    return stage.run() if isinstance(stage, Stage) else stage or errors.EXIT_DONE


def _register(name: str) -> None:
    """Add a command of the user's own, a subclass of `Stage` written as `module:Class`.

    Raises:
        UserError: there is no such class, or it is not a command.
    """
    stage = load_named("command", name)
    if not issubclass(stage, Stage):
        raise UserError(f"{name} is not a command", "derive the class from text2grad.commands.base.Stage")
    command(name)(stage)


def _refuse_unknown_options(words: Sequence[str], overrides: Sequence[str] = ()) -> None:
    """Refuse an unknown option with the nearest option or setting, and settings of a command that
    has none.

    Raises:
        UsageError: the first of them.
    """
    group: Any = typer.main.get_command(app)
    named = next((word for word in words if not word.startswith("-")), "")
    if named and named not in group.commands:
        return  # no such command: the parser names the nearest
    command = group.commands.get(named, group)
    if overrides and named and not command.epilog:
        raise UsageError(f"{named} takes no settings, got {overrides[0]}", f"text2grad {named} --help")
    parameters = [*group.params, *command.params]
    known = {"-h", "--help"}.union(*(each.opts + each.secondary_opts for each in parameters))
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if name.startswith("--") and name not in known:
            raise UsageError(f"unknown option {name}", nearest_option(name, sorted(known)))


if __name__ == "__main__":
    main()
