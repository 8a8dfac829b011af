"""The registry of commands: a class whose fields are options is all that a command takes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import typer

from text2grad import cli
from text2grad.commands import base
from text2grad.commands.base import (
    SETTINGS_HELP,
    ConfiguredAsDemo,
    ConfiguredAsRun,
    ConfiguredCommand,
    Resumable,
    Stage,
    Work,
    argument,
    command,
    option,
)
from text2grad.config import dump_config, load_config
from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UsageError


def test_an_option_is_written_as_its_help_shows_it() -> None:
    cases: dict[str, tuple[list[str], str | None]] = {
        "--out FILE": (["--out"], "FILE"),
        "-k --answers K": (["-k", "--answers"], "K"),
        "--methods NAME ...": (["--methods"], "NAME ..."),
        "--keep/--single": (["--keep/--single"], None),
        "--limit": (["--limit"], None),
    }
    for spec, (names, metavar) in cases.items():
        made = option(spec, "help", 3, min=1)
        assert (list(made.param_decls), made.metavar, made.default, made.min) == (names, metavar, 3, 1)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """An app without commands, in the place of the program's."""
    empty = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
    empty.callback()(lambda: None)
    monkeypatch.setattr(base, "app", empty)
    monkeypatch.setattr(cli, "app", empty)
    return empty


def left(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_a_command_is_one_class(shop: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    @command("count")
    class Count(Stage, ConfiguredAsDemo, Resumable):
        """Count things."""

        source: Path = argument("SOURCE", "What to count.")
        way: Literal["up", "down"] = option("--way", "Which way.", "up")
        at_most: int | None = option("--at-most N", "The most.", min=1)

        def work(self) -> Work:
            config = self.configuration()
            return Work(partial(self.count, config.run.seed))

        def count(self, seed: int) -> dict[str, Any]:
            given = {"source": str(self.source), "way": self.way, "most": self.at_most, "mode": self.mode()}
            return {**given, "seed": seed, "failed_records": self.at_most or 0}

    @command("plain")
    class Plain(Stage):
        """Print its own."""

        def work(self) -> Work:
            return Work(lambda: 7)

    words = ("count", "here", "--at-most", "2", "--run.seed", "5", "--restart", "--json")
    assert left(*words) == EXIT_SOME_RECORDS_FAILED
    given = {"source": "here", "way": "up", "most": 2, "mode": "restart", "seed": 5, "failed_records": 2}
    assert json.loads(capsys.readouterr().out) == given
    assert left("plain") == 7 and left("plain", "--run.seed", "5") == 2 and left("count") == 2
    assert left("count", "--help") == 0
    shown = capsys.readouterr().out
    order = [
        "--way",
        "--at-most N",
        "--restart",
        "--force",
        "--config NAME|FILE",
        "--json",
        "--help",
        SETTINGS_HELP,
    ]
    assert sorted(order, key=shown.index) == order, "its own options first, then those that it shares"


@pytest.mark.parametrize("kind", [ConfiguredCommand, ConfiguredAsDemo, ConfiguredAsRun])
def test_where_the_settings_come_from(kind: type[ConfiguredCommand], tmp_path: Path) -> None:
    made = kind(config=["demo"] if kind is ConfiguredAsDemo else [])
    made.overrides = ["--run.folder", str(tmp_path), "--run.seed", "9"]
    if kind is ConfiguredCommand:
        with pytest.raises(UsageError, match="task"):
            made.configuration()
        assert made.configuration(under=["--task.name=qa", "--policy.model=tiny", "--run.seed=3"]).run.seed == 9
        return
    assert made.configuration().task.name == "demo"
    kept = load_config(None, ["--task.name=qa", "--policy.model=tiny", "--run.folder", str(tmp_path)])
    (tmp_path / "config.yaml").write_text(dump_config(kept), encoding="utf-8")
    assert made.configuration().task.name == ("qa" if kind is ConfiguredAsRun else "demo")
    assert made.configuration().run.seed == 9
    made.config = ["human_qa"]
    assert made.configuration().task.name == "qa" and made.configuration().task.data == "imported"


def test_no_command_has_a_field_without_help() -> None:
    for name, each in typer.main.get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        assert each.help and all(parameter.help for parameter in each.params), name
