"""`CriticSpec`: what other code needs to know of a critic. One is defined next to each (`critics.table`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from text2grad.feedback import Critic, Example, Feedback, SourceKind
from text2grad.sandbox import Runner
from text2grad.settings import Settings


class Materials(Protocol):
    """What a critic can be made of. `stages.critics` implements it; each part is opened on demand."""

    @property
    def settings(self) -> Any:
        """The settings of `critic.<kind>`; None where the kind has none."""

    @property
    def seed(self) -> int:
        """`run.seed`."""

    @property
    def folder(self) -> Path:
        """`run.folder`."""

    @property
    def runner(self) -> Runner:
        """The sandbox."""

    def feedback(self) -> Iterable[Feedback]:
        """The records that this run has imported."""

    def prompted(self) -> Critic:
        """The critic over an endpoint, with the task's prompt."""

    def reward_model(self) -> Critic:
        """The critic over the trained reward model."""

    def scalar_model(self) -> Critic:
        """The critic over the scalar reward model."""

    def unit_model(self) -> Critic:
        """The critic over the unit model."""

    def model_folder(self, kind: str) -> Path:
        """Where the model of a trained critic is: the one named, or this run's own."""

    def section(self, name: str, without: Collection[str] = ()) -> Mapping[str, str]:
        """The settings of a section as `section.key` -> text."""

    def digest(self, path: Path) -> str:
        """A digest of a file, or of all files in a folder."""


class Need(NamedTuple):
    """What examples must have for a critic to judge them: how it is called, and whether one has it."""

    what: str
    has: Callable[[Example], bool]


Inputs = Callable[[Materials], Mapping[str, str]]


@dataclass(frozen=True)
class CriticSpec:
    """One critic, by the name that `critic.kind` has for it.

    `settings` is the class of `critic.<kind>`; those named in `manner` change how it works and not what it says.
    `make` makes the critic, `measures_with` the one that judges held-out answers in `evaluate`, where that is not
    None. `inputs` are what judgements depend on beside those settings: a run that finds them changed does not
    resume. `source` is who speaks. `words`: it writes critiques, not labels alone; `blind`: it judges by the prompt
    and the answer alone, so a policy may revise by it what is measured.
    """

    kind: str
    make: Callable[[Materials], Critic]
    settings: type[Settings] | None = None
    manner: tuple[str, ...] = ()
    needs: Need | None = None
    inputs: Inputs = lambda materials: {}
    measures_with: Callable[[Materials], Critic | None] = lambda materials: None
    source: SourceKind = "program"
    words: bool = True
    blind: bool = False
