"""`CriticSpec`: the description of a critic; each is defined next to its critic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from text2grad.feedback import Critic, Example, Feedback, SourceKind
from text2grad.sandbox import Runner
from text2grad.settings import Settings


class Run(Protocol):
    """The run of a critic (`stages.run_folder.RunFolder`)."""

    @property
    def path(self) -> Path:
        """The folder of the run."""

    def feedback(self) -> list[Feedback]:
        """Return the imported feedback of the run; a `UserError` without any."""

    def load_model(self, folder: Path) -> Any:
        """Load a trained model as a frozen `Policy`."""


@dataclass(frozen=True)
class Ready:
    """Resources that a run provides to its critic.

    `runner` is the sandbox. `critic` is the opened endpoint (`prompted`) or the trained reward
    model (`reward_model`) as a critic; None for other kinds.
    """

    run: Run
    seed: int
    runner: Runner
    critic: Critic | None = None


class Need(NamedTuple):
    """Data that a critic requires of an example: its name, and a predicate that tests for it."""

    what: str
    has: Callable[[Example], bool]


@dataclass(frozen=True)
class CriticSpec:
    """The description of a critic. A run whose inputs to the critic changed does not resume.

    Attributes:
        kind: its name in `critic.kind`.
        make: makes the critic from its settings and the resources of the run.
        settings: the class of its settings, `critic.<kind>`.
        operational: names of settings that do not affect judgements.
        needs: the data it requires of examples.
        reads: further settings that judgements depend on (`section.key`).
        files: files that judgements depend on, from the settings and the run folder.
        measures_with: makes the critic that judges held-out answers in `evaluate`; None: no such
            critic.
        source: the kind of its `Source`.
        reference_free: True if it judges by prompt and answer alone, so that revising an answer by
            its critique leaks nothing.
        about: its line in the help.
    """

    kind: str
    make: Callable[[Any, Ready], Critic]
    settings: type[Settings] | None = None
    operational: tuple[str, ...] = ()
    needs: Need | None = None
    reads: tuple[str, ...] = ()
    files: Callable[[Any, Path], Mapping[str, Path]] = lambda settings, folder: {}
    measures_with: Callable[[Ready], Critic | None] | None = None
    source: SourceKind = "program"
    reference_free: bool = False
    about: str = ""
