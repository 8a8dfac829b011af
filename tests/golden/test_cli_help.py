"""docs/cli.md equals the help texts of the command line; `make golden` rewrites it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
import typer

from text2grad.cli import app, main
from text2grad.config import Setting, describe_settings, preset_names, recipe_names

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAD = """# The command line

<!-- Written by `make golden` from the program itself; do not edit. -->

All settings below can be given in a YAML file (`--config mine.yaml`) or on the command line
(`--section.key VALUE`). A preset is a complete configuration:
{presets}.
A recipe overrides settings of another configuration:
{recipes}.

Exit codes: 0 done, 1 failed, 2 usage, 3 some records failed, 4 budget reached, 75 batch pending,
130 interrupted, 143 ended by SIGTERM. To resume a training run that was stopped or killed, run the
same command again (docs/training.md, "A run that was stopped").
Summaries and progress are printed to stderr. With `--json`, the last line of stdout is the summary
as one JSON object.
"""


def help_text(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out.strip()


def page(capsys: pytest.CaptureFixture[str]) -> str:
    names = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    lists = {"presets": preset_names(), "recipes": recipe_names()}
    parts = [HEAD.format(**{kind: ", ".join(f"`{name}`" for name in items) for kind, items in lists.items()})]
    for command in [[], *([name] for name in names)]:
        title = " ".join(["text2grad", *command])
        parts.append(f"## {title}\n\n```text\n{help_text(command, capsys)}\n```\n")
    return "\n".join([*parts, "## Settings\n", *settings_tables()])


def settings_tables() -> Iterator[str]:
    for section, settings in groupby(describe_settings(), key=lambda each: each.key.partition(".")[0]):
        yield f"### {section}\n\n| setting | type | default | meaning |\n| --- | --- | --- | --- |"
        yield "\n".join(row(setting) for setting in settings) + "\n"


def row(setting: Setting) -> str:
    cells = (f"`{setting.key}`", setting.kind, setting.default, setting.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def test_the_page_says_what_the_program_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    current = page(capsys)
    if os.environ.get("WRITE_GOLDEN"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(current, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == current, "make golden, and read the diff"


def test_every_command_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"  text2grad {name}" in help_text([name], capsys)
