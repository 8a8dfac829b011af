"""Handle what commands share: settings on the command line, printed summaries, exit codes."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from text2grad.errors import EXIT_DONE, EXIT_SOME_RECORDS_FAILED, suggestion
from text2grad.stages import Summary

if TYPE_CHECKING:
    from text2grad.config import Config

Run = Callable[[], Summary | Mapping[str, Any] | int]
"""A stage: returns its summary, or its exit code if it has already printed its results."""
Show = Callable[[Mapping[str, Any]], None]
MOST_LINES = 20
"""Maximum lines of a list in a summary."""


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate `--section.key VALUE` and `--section.key=VALUE` from the other words."""
    words: list[str] = []
    overrides: list[str] = []
    remaining = list(arguments)
    while remaining and remaining[0] != "--":
        word = remaining.pop(0)
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            words.append(word)
            continue
        overrides.append(word)
        if not equals and remaining and not remaining[0].startswith("--"):
            overrides.append(remaining.pop(0))
    return words + remaining, overrides


def nearest_option(name: str, options: Sequence[str]) -> str:
    """Suggest a setting that ends in the name of an unknown option, else the closest option."""
    from text2grad.config import describe_settings

    ending = "." + name.removeprefix("--")
    if settings := [f"--{setting.key}" for setting in describe_settings() if setting.key.endswith(ending)]:
        return f"did you mean {' or '.join(settings)}?"
    return suggestion(name, options) or "text2grad COMMAND --help lists the options"


def typed_lines() -> Iterator[str]:
    """Yield the lines of stdin, with a prompt on stderr if stdin is a terminal."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line


def run_stage(run: Run, show: Show | None = None, *, as_json: bool) -> int:
    """Run a stage and print its summary: as JSON, with `show`, or line by line.

    Returns:
        The exit code: the summary's `exit_code`, or 3 if some records failed.
    """
    result = run()
    if isinstance(result, int):
        return result
    summary = result.as_dict() if isinstance(result, Summary) else result
    if as_json:
        typer.echo(json.dumps(_jsonable(summary)))
    else:
        (show or show_lines)(summary)
    some_failed = EXIT_SOME_RECORDS_FAILED if summary.get("failed_records", 0) > 0 else EXIT_DONE
    code: int = summary.get("exit_code") or some_failed
    return code


def quiet(summary: Mapping[str, Any]) -> None:
    """Print nothing, for a stage that prints its results itself."""


def show_lines(summary: Mapping[str, Any]) -> None:
    """Print every entry of a summary on its own line."""
    _print(*_lines(summary))


def show_trained(config: Config, name: str, summary: Mapping[str, Any]) -> None:
    """Print the summary of `train`: counts, their meaning, and the next command."""
    from text2grad.page.runs import read_metrics
    from text2grad.page.signs import describe_choice, describe_training

    folder = config.run.folder
    rows = read_metrics(folder / "ppo" / name / "metrics.jsonl")
    choice = [describe_choice(summary["chosen"])] if summary.get("chosen") else []
    counts = _counts({name: value for name, value in summary.items() if name != "chosen"})
    _print(*counts, *describe_training(rows), *choice)
    options = f"--run.folder {folder}"
    _print(f'next: text2grad evaluate {name} {options}, or text2grad sample "..." {options}')


def show_fitted(folder: Path, summary: Mapping[str, Any]) -> None:
    """Print the summary of supervised training in a folder: counts and their meaning."""
    from text2grad.page.runs import read_metrics
    from text2grad.page.signs import describe_reward_model, describe_training, quote_warnings

    effect = describe_training(read_metrics(folder / "metrics.jsonl"))
    warnings = [f"warning: {line}" for line in quote_warnings(summary.get("unmatched"), "on held-out answers")]
    _print(*_counts(summary), *effect, *describe_reward_model(summary), *warnings)


def show_sft(run: Path, summary: Mapping[str, Any]) -> None:
    """Print the summary of `sft`, and the commands that compare the policy with its base model."""
    show_fitted(run / "sft", summary)
    after, before = (
        shlex.join(["text2grad", "evaluate", name, "--run.folder", str(run)]) for name in ("sft", "base")
    )
    _print(f"next: {after}, because the loss does not measure new answers; and {before} for comparison")


def show_reward_model(run: Path, summary: Mapping[str, Any]) -> None:
    """Print the summary of `train-reward`, critiques of fresh answers, and the gate's verdict."""
    show_fitted(run / "reward_model", {name: value for name, value in summary.items() if name != "gate"})
    if "gate" not in summary:
        return
    from rich.console import Console

    from text2grad.feedback import Feedback
    from text2grad.jsonl import read_jsonl
    from text2grad.page.signs import describe_gate
    from text2grad.page.terminal import MAX_RECORDS, show_records
    from text2grad.stages.reward_model.gate import FRESH

    fresh = list(read_jsonl(run / "evaluation" / FRESH, Feedback))
    show_records(Console(stderr=True), fresh[:MAX_RECORDS])
    _print(*describe_gate(summary["gate"]))


def show_reward_report(report: Mapping[str, Any]) -> None:
    """Print the table of a reward model on held-out feedback, and the gate's verdict."""
    from rich.console import Console

    from text2grad.page.signs import describe_gate
    from text2grad.page.terminal import evaluation_table, show_table

    show_table(Console(stderr=True), evaluation_table(report))
    if gate := report["gate"]:
        _print(*describe_gate(gate))


def show_policy(config: Config, target: str, summary: Mapping[str, Any]) -> None:
    """Print the results of a policy, its comparison with the policy it started from, and the gate.

    The gate's verdict is on the run's reward model, which the policy may have learned from.
    """
    from rich.console import Console

    from text2grad.page.signs import describe_comparison
    from text2grad.page.terminal import policy_table, show_table
    from text2grad.stages.reward_model.gate import verdict_line

    figures = {name: value for name, value in summary.items() if name not in ("signs", "compared")}
    show_table(Console(stderr=True), policy_table(figures))
    compared = summary.get("compared")
    _print(*filter(None, [compared and describe_comparison(target, compared), verdict_line(config)]))


def _counts(summary: Mapping[str, Any]) -> list[str]:
    """Format the entries of a summary that are not rates or losses, which become sentences."""
    return _lines({key: value for key, value in summary.items() if not isinstance(value, float)})


def _print(*lines: str) -> None:
    if lines:
        typer.echo("\n".join(lines), err=True)


def _lines(summary: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in summary.items():
        label = indent + key.replace("_", " ")
        if isinstance(value, Mapping):
            lines += [label, *_lines(value, indent + "  ")]
        elif isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
            more = len(value) - MOST_LINES
            lines += [label, *(f"{indent}  {item}" for item in value[:MOST_LINES])]
            lines += [f"{indent}  and {more} more (--json has them all)"] if more > 0 else []
        else:
            lines.append(f"{label}: {_format_value(value)}")
    return lines


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{round(value, 12) + 0.0:.4g}"
    return "not known" if value is None else str(value)


def _jsonable(value: Any) -> Any:
    """Convert a value to JSON types; NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
