"""What every command does around its stage: settings on the command line, the summary, the exit code."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from text2grad.errors import EXIT_INTERRUPTED, EXIT_SOME_RECORDS_FAILED, UserError
from text2grad.stages.run.summary import Summary

if TYPE_CHECKING:
    from text2grad.config import Config

MOST_LINES = 20
"""Lines of a list that a summary shows."""


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part `--section.key VALUE` (and `--section.key=VALUE`) from the words that belong to the command."""
    words: list[str] = []
    overrides: list[str] = []
    waiting = list(arguments)
    while waiting and waiting[0] != "--":
        word = waiting.pop(0)
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            words.append(word)
            continue
        overrides.append(word)
        if not equals and waiting and not waiting[0].startswith("--"):
            overrides.append(waiting.pop(0))
    return words + waiting, overrides


def nearest_option(name: str, known: Sequence[str]) -> str:
    """A cure for a mistyped option: the nearest option of the command, or the setting it may be short for."""
    from text2grad.config import describe_settings, suggestion

    ending = "." + name.removeprefix("--")
    if same_word := [f"--{each.key}" for each in describe_settings() if each.key.endswith(ending)]:
        return f"did you mean {' or '.join(same_word)}?"
    return suggestion(name, known) or "text2grad COMMAND --help lists the options"


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the command with its exit code and no traceback."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def typed_lines() -> Iterator[str]:
    """The lines of stdin, with a prompt on stderr where somebody types them."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line


def run_stage(
    stage: Callable[[], Summary | Mapping[str, Any]],
    as_json: bool,
    quiet: bool = False,
    show: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Run a stage, print its summary (by `show`, or not where it is `quiet`: it prints its own), and leave.

    The exit code is the summary's `exit_code`, or 3 if some records failed.
    """
    with interruptible():
        found = stage()
    summary = found.as_dict() if isinstance(found, Summary) else found
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0":
        return  # the first of several processes speaks
    if as_json:
        typer.echo(json.dumps(_jsonable(summary)))
    elif show:
        show(summary)
    elif not quiet:
        _say(*_lines(summary))
    if summary.get("exit_code"):
        raise typer.Exit(summary["exit_code"])
    if summary.get("failed_records", 0) > 0:
        raise typer.Exit(EXIT_SOME_RECORDS_FAILED)


def show_trained(config: Config, name: str) -> Callable[[Mapping[str, Any]], None]:
    """What shows the end of `train`: counts, what they mean, answers before and after, and the next command."""

    def show(summary: Mapping[str, Any]) -> None:
        from text2grad.report import signs
        from text2grad.report.verdict import training_verdict

        folder = config.run.folder
        _say(*brief(summary), *training_verdict(folder / "ppo" / name))
        _say_signs(signs.of_run(folder / "ppo" / name))
        _show_before_and_after(config, name)
        options = f"--run.folder {folder}"
        _say(f'next: text2grad evaluate {name} {options}, or text2grad sample "..." {options}')

    return show


def _show_before_and_after(config: Config, name: str) -> None:
    from rich.console import Console

    from text2grad.report.terminal import show_answers
    from text2grad.stages.measure.talk import before_and_after

    try:
        asked = before_and_after(config, name) if config.run.shown_prompts else []
    except UserError as error:  # the training is done, whatever is wrong with these prompts
        _say(f"no answers to held-out prompts: {error}")
        return
    if asked:
        _say("", f"the first {len(asked)} held-out prompts, likeliest words (--run.shown_prompts 0: none):")
    for each in asked:
        show_answers(Console(stderr=True), each.prompt, each.answers)


def show_fitted(folder: Path) -> Callable[[Mapping[str, Any]], None]:
    """What shows the end of a supervised training in a folder: a few lines and what they mean."""

    def show(summary: Mapping[str, Any]) -> None:
        from text2grad.report import signs
        from text2grad.report.verdict import reward_model_verdict, training_verdict

        _say(*brief(summary), *training_verdict(folder), *reward_model_verdict(summary))
        _say_signs(signs.of_quotes(summary.get("unmatched"), "on held-out answers"))

    return show


def brief(summary: Mapping[str, Any]) -> list[str]:
    """The counts and places of a summary, a line each; its rates and losses are for sentences, and for --json."""
    found = {key: value for key, value in summary.items() if not isinstance(value, float)}
    return _lines(found)


def _say_signs(lines: Iterable[str]) -> None:
    """Signs that a run goes wrong (`report.signs`)."""
    for line in lines:
        _say(f"warning: {line}")


def _say(*lines: str) -> None:
    typer.echo("\n".join(lines), err=True)


def _lines(summary: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in summary.items():
        label = indent + key.replace("_", " ")
        if isinstance(value, Mapping):
            lines += [label, *_lines(value, indent + "  ")]
        elif isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
            more = len(value) - MOST_LINES
            lines += [label, *(f"{indent}  {each}" for each in value[:MOST_LINES])]
            lines += [f"{indent}  and {more} more (--json has them all)"] if more > 0 else []
        else:
            lines.append(f"{label}: {_shown(value)}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{round(value, 12) + 0.0:.4g}"
    return "not known" if value is None else str(value)


def _jsonable(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
