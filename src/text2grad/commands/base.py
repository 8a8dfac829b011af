"""The parts of a command: options as fields, the configuration it needs, the work it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer

from text2grad.commands.console import Run, Show, run_stage
from text2grad.errors import UsageError

if TYPE_CHECKING:
    from text2grad.config import Config
    from text2grad.durable.run import ResumeMode

app = typer.Typer(
    name="text2grad",
    add_completion=False,
    rich_markup_mode=None,  # plain help: quick, and the same on every terminal
    pretty_exceptions_enable=False,  # a rich traceback prints local variables, keys among them
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
SETTINGS_HELP = "Any setting can be changed on top: --section.key VALUE, e.g. --ppo.lr 1e-5."
DEMO = ["demo"]
UNSET: list[str] = []


def option(spec: str, help: str | None, default: Any = None, **limits: Any) -> Any:
    """A field that is an option. `spec` is what the help shows: its names, then the name of its
    value if any."""
    words = spec.split()
    names = list(takewhile(lambda word: word.startswith("-"), words))
    return typer.Option(default, *names, metavar=" ".join(words[len(names) :]) or None, help=help, **limits)


def argument(name: str, help: str, default: Any = ...) -> Any:
    """A field of a command that is an argument; required unless it has a default."""
    return typer.Argument(default, metavar=name, help=help)


class Work(NamedTuple):
    """What a command does once its options are read, and how its summary is shown if not as a
    list."""

    run: Run
    show: Show | None = None


@dataclass(kw_only=True)
class Stage:
    """A command. What several share are keyword-only fields, which the help shows after a command's
    own."""

    as_json: bool = option("--json", "Print the summary as one JSON object, the last line of stdout.", False)

    def work(self) -> Work:
        """Refuse options that contradict each other, and return the work.

        Raises:
            UsageError: they do, or the settings are wrong.
        """
        raise NotImplementedError

    def run(self) -> int:
        """Do the work and print its summary; the exit code."""
        return run_stage(*self.work(), as_json=self.as_json)


CONFIG = ("--config NAME|FILE", "A preset's name or a YAML file; a second one overrides the first.")


@dataclass(kw_only=True)
class ConfiguredCommand:
    """A command with settings; `overrides` are those given on the command line."""

    overrides: Sequence[str] = field(default=(), init=False)
    config: list[str] = option(*CONFIG, UNSET)  # noqa: RUF009

    def configuration(self, names: Sequence[str] = (), under: Sequence[str] = ()) -> Config:
        """The named presets and files (those of --config if none are given), then the settings
        given.

        `under`: settings that those override.
        """
        from text2grad.config import find_config, is_recipe, load_config

        chosen = list(names or self.config)
        if chosen and is_recipe(chosen[0]):
            cure = f"lay it over one: --config mine.yaml --config {chosen[0]}"
            raise UsageError(f"{chosen[0]} is a recipe and not a whole configuration", cure)
        return load_config([find_config(name) for name in chosen], [*under, *self.overrides])


@dataclass(kw_only=True)
class ConfiguredAsDemo(ConfiguredCommand):
    """A command whose settings are the demo's unless --config names others."""

    config: list[str] = option(*CONFIG, DEMO)  # noqa: RUF009


@dataclass(kw_only=True)
class ConfiguredAsRun(ConfiguredCommand):
    """A command whose settings are those of the run in `run.folder` unless --config names
    others."""

    trust: bool = option(
        "--trust", "Use the servers and import the modules that a run of somebody else names.", False
    )

    def configuration(self, names: Sequence[str] = (), under: Sequence[str] = ()) -> Config:
        """The named configuration, else that of the run, else the demo's.

        Raises:
            UserError: that of the run is not this user's, and names a server or a module.
        """
        from text2grad.config.trust import refuse_foreign_names

        config, recorded = self.untrusted_configuration(names, under)
        if recorded and not self.trust:
            refuse_foreign_names(recorded, config, self.overrides)
        return config

    def untrusted_configuration(
        self, names: Sequence[str] = (), under: Sequence[str] = ()
    ) -> tuple[Config, Path | None]:
        """The configuration, with the run's file if it was read from there; nothing is refused
        yet."""
        from text2grad.config import load_config

        chosen = super().configuration(names or self.config or DEMO, under)
        recorded = chosen.run.folder / "config.yaml"
        if self.config or not recorded.is_file():
            return chosen, None
        return load_config(recorded, self.overrides), recorded


@dataclass(kw_only=True)
class Resumable:
    """A command that resumes an unfinished run."""

    restart: bool = option("--restart", "Start over instead of resuming an unfinished run.", False)
    force: bool = option("--force", "Resume an unfinished run even if settings or inputs have changed.", False)

    def mode(self) -> ResumeMode:
        """How to treat an unfinished run.

        Raises:
            UsageError: both options are given.
        """
        if self.restart and self.force:
            raise UsageError("--restart and --force contradict each other", "take one of them")
        return "restart" if self.restart else "force" if self.force else "auto"


S = TypeVar("S", bound=Stage)


def command(name: str) -> Callable[[type[S]], type[S]]:
    """Register a class as the command `name`: its fields become options, its docstring the help."""

    def register(stage: type[S]) -> type[S]:
        app.command(name, epilog=SETTINGS_HELP if issubclass(stage, ConfiguredCommand) else None)(dataclass(stage))
        return stage

    return register
