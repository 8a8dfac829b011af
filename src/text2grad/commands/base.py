"""Base classes of the commands: options as fields, the configuration, and the work to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    rich_markup_mode=None,  # plain help is fast and the same on every terminal
    pretty_exceptions_enable=False,  # a rich traceback prints local variables, which include keys
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
SETTINGS_HELP = "Override any setting with --section.key VALUE, for example --ppo.lr 1e-5."
DEMO = ["demo"]
UNSET: list[str] = []
MAP = ("--map OURS=YOURS", "Names of your columns, such as response=answer,critique=comment.")
SCALE = ("--scale [NAME=]WORST..BEST", "Scale of the ratings, such as 1..5, stars=1..10 or poor,fair,good.")
SHEET = ("--sheet NAME", "The sheet of a workbook. [default: the one with answers]", "")


def option(spec: str, help: str | None, default: Any = None, **limits: Any) -> Any:
    """Declare a field as an option.

    `spec` is what the help shows: the names of the option, then the name of its value, if any.
    """
    words = spec.split()
    names = list(takewhile(lambda word: word.startswith("-"), words))
    return typer.Option(default, *names, metavar=" ".join(words[len(names) :]) or None, help=help, **limits)


def argument(name: str, help: str, default: Any = ...) -> Any:
    """Declare a field as an argument, required unless it has a default."""
    return typer.Argument(default, metavar=name, help=help)


class Work(NamedTuple):
    """The function that a command runs, and the one that prints its summary if not as a list."""

    run: Run
    show: Show | None = None


@dataclass(kw_only=True)
class Stage(ABC):
    """A command; shared options are keyword-only fields, so that the help lists them last."""

    as_json: bool = option("--json", "Print the summary as a JSON object on the last line of stdout.", False)

    @abstractmethod
    def work(self) -> Work:
        """Check the options and return the work.

        Raises:
            UsageError: options contradict each other, or a setting is invalid.
        """

    def run(self) -> int:
        """Do the work, print its summary and return the exit code."""
        return run_stage(*self.work(), as_json=self.as_json)


CONFIG = ("--config NAME|FILE", "A preset or a YAML file; repeat it to override earlier ones.")


@dataclass(kw_only=True)
class ConfiguredCommand:
    """A command with settings; `overrides` are the settings on the command line."""

    overrides: Sequence[str] = field(default=(), init=False)
    config: list[str] = option(*CONFIG, UNSET)  # noqa: RUF009

    def configuration(self, names: Sequence[str] = (), under: Sequence[str] = ()) -> Config:
        """Load presets and files (by default those of --config) and apply the overrides.

        `under` are settings with a lower priority than the overrides.

        Raises:
            UsageError: the first name is a recipe.
        """
        from text2grad.config import find_config, is_recipe, load_config

        names = list(names or self.config)
        if names and is_recipe(names[0]):
            cure = f"add it to a configuration: --config mine.yaml --config {names[0]}"
            raise UsageError(f"{names[0]} is a recipe, not a complete configuration", cure)
        return load_config([find_config(name) for name in names], [*under, *self.overrides])


@dataclass(kw_only=True)
class ConfiguredAsDemo(ConfiguredCommand):
    """A command that uses the settings of the demo unless --config names others."""

    config: list[str] = option(*CONFIG, DEMO)  # noqa: RUF009


@dataclass(kw_only=True)
class ConfiguredAsRun(ConfiguredCommand):
    """A command that uses the settings of the run in `run.folder` unless --config names others."""

    trust: bool = option(
        "--trust", "Trust a run made by someone else: use its servers and import its modules.", False
    )

    def configuration(self, names: Sequence[str] = (), under: Sequence[str] = ()) -> Config:
        """Load the named configuration, else the one of the run, else the demo's.

        Raises:
            UserError: the run's configuration is not this user's and names a server or a module.
        """
        from text2grad.config.trust import refuse_foreign_names

        config, recorded = self.untrusted_configuration(names, under)
        if recorded and not self.trust:
            refuse_foreign_names(recorded, config, self.overrides)
        return config

    def untrusted_configuration(
        self, names: Sequence[str] = (), under: Sequence[str] = ()
    ) -> tuple[Config, Path | None]:
        """Load the configuration without a trust check; also return the run file it came from."""
        from text2grad.config import load_config

        config = super().configuration(names or self.config or DEMO, under)
        recorded = config.run.folder / "config.yaml"
        if self.config or not recorded.is_file():
            return config, None
        return load_config(recorded, self.overrides), recorded


@dataclass(kw_only=True)
class Resumable:
    """A command that resumes an unfinished run."""

    restart: bool = option("--restart", "Start over instead of resuming an unfinished run.", False)
    force: bool = option("--force", "Resume an unfinished run even if settings or inputs have changed.", False)

    def mode(self) -> ResumeMode:
        """Return the resume mode that the options select.

        Raises:
            UsageError: both options are given.
        """
        if self.restart and self.force:
            raise UsageError("--restart and --force contradict each other", "use only one of them")
        return "restart" if self.restart else "force" if self.force else "auto"


S = TypeVar("S", bound=Stage)


def command(name: str) -> Callable[[type[S]], type[S]]:
    """Register a class as a command: its fields become options, its docstring the help."""

    def register(stage: type[S]) -> type[S]:
        app.command(name, epilog=SETTINGS_HELP if issubclass(stage, ConfiguredCommand) else None)(dataclass(stage))
        return stage

    return register
