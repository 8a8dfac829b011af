"""Around every command: settings on the command line, the summary on the terminal, the exit
code."""

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

from text2grad.errors import EXIT_DONE, EXIT_SOME_RECORDS_FAILED, UserError
from text2grad.stages import Summary

if TYPE_CHECKING:
    from text2grad.config import Config

Run = Callable[[], Summary | Mapping[str, Any] | int]
"""A stage: returns its summary, or its exit code if it has printed its results itself."""
Show = Callable[[Mapping[str, Any]], None]
MOST_LINES = 20
"""Lines of a list that a summary shows."""


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate `--section.key VALUE` (and `--section.key=VALUE`) from the words of the command."""
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
    """A cure for a mistyped option: the nearest option of the command, or the setting it may be
    short for."""
    from text2grad.config import describe_settings, suggestion

    ending = "." + name.removeprefix("--")
    if same_word := [f"--{each.key}" for each in describe_settings() if each.key.endswith(ending)]:
        return f"did you mean {' or '.join(same_word)}?"
    return suggestion(name, known) or "text2grad COMMAND --help lists the options"


def typed_lines() -> Iterator[str]:
    """The lines of stdin, with a prompt on stderr if it is a terminal."""
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
    """Run a stage and print its summary, as JSON, by `show`, or line by line.

    Returns the exit code: the summary's `exit_code`, or 3 if some records failed.
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
    """Show nothing: the stage has printed its results."""


def show_lines(summary: Mapping[str, Any]) -> None:
    """Print every figure, a line each."""
    _print(*_lines(summary))


def show_trained(config: Config, name: str, summary: Mapping[str, Any]) -> None:
    """Print the end of `train`: counts, what they mean, answers before and after, and the next
    command."""
    from text2grad.page.runs import read_metrics
    from text2grad.page.signs import describe_choice, describe_training, metric_warnings

    folder = config.run.folder
    rows = read_metrics(folder / "ppo" / name / "metrics.jsonl")
    warnings = [f"warning: {line}" for line in metric_warnings(rows)]
    chosen = [describe_choice(summary["chosen"])] if summary.get("chosen") else []
    counts = _counts({name: value for name, value in summary.items() if name != "chosen"})
    _print(*counts, *describe_training(rows), *chosen, *warnings)
    _show_before_and_after(config, name)
    options = f"--run.folder {folder}"
    _print(f'next: text2grad evaluate {name} {options}, or text2grad sample "..." {options}')


def _show_before_and_after(config: Config, name: str) -> None:
    from rich.console import Console

    from text2grad.page.terminal import show_answers
    from text2grad.stages.talk import before_and_after

    try:
        results = before_and_after(config, name)
    except UserError as error:  # the training is done, whatever is wrong with these prompts
        _print(f"no answers to held-out prompts: {error}")
        return
    if results:
        _print("", f"the first {len(results)} held-out prompts, answered greedily:")
    for each in results:
        show_answers(Console(stderr=True), each.prompt, each.answers)


def show_fitted(folder: Path, summary: Mapping[str, Any]) -> None:
    """Print the end of a supervised training in a folder: counts, and what its figures mean."""
    from text2grad.page.runs import read_metrics
    from text2grad.page.signs import describe_reward_model, describe_training, quote_warnings

    effect = describe_training(read_metrics(folder / "metrics.jsonl"))
    warnings = [f"warning: {line}" for line in quote_warnings(summary.get("unmatched"), "on held-out answers")]
    _print(*_counts(summary), *effect, *describe_reward_model(summary), *warnings)


def show_sft(run: Path, summary: Mapping[str, Any]) -> None:
    """Print the end of `sft`: as `show_fitted`, then the commands that say whether its answers are
    better."""
    show_fitted(run / "sft", summary)
    after, before = (
        shlex.join(["text2grad", "evaluate", name, "--run.folder", str(run)]) for name in ("sft", "base")
    )
    _print(f"next, as the loss says nothing of new answers: {after}, and {before} for what was there before")


def show_reward_model(run: Path, summary: Mapping[str, Any]) -> None:
    """Print the end of `train-reward`: as `show_fitted`, then critiques of fresh answers and the
    gate's verdict."""
    show_fitted(run / "reward_model", {name: value for name, value in summary.items() if name != "gate"})
    if "gate" not in summary:
        return
    from rich.console import Console

    from text2grad.feedback import Feedback
    from text2grad.jsonl import read_jsonl
    from text2grad.page.signs import describe_gate
    from text2grad.page.terminal import SHOWN, show_records
    from text2grad.stages.reward_model.gate import FRESH

    fresh = list(read_jsonl(run / "evaluation" / FRESH, Feedback))
    show_records(Console(stderr=True), fresh[:SHOWN])
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
    """Print the table of a policy, whether it is better than the one it started from, and the
    gate's verdict on the reward model it may have learned from."""
    from rich.console import Console

    from text2grad.page.signs import describe_comparison
    from text2grad.page.terminal import policy_table, show_table
    from text2grad.stages.reward_model.gate import verdict_line

    figures = {name: value for name, value in summary.items() if name not in ("signs", "compared")}
    show_table(Console(stderr=True), policy_table(figures))
    compared = summary.get("compared")
    _print(*filter(None, [compared and describe_comparison(target, compared), verdict_line(config)]))


def _counts(summary: Mapping[str, Any]) -> list[str]:
    """The counts and places of a summary, a line each; its rates and losses become sentences."""
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
