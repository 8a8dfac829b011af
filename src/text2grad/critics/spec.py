"""`CriticSpec`: what other code needs to know of a critic. One is defined next to each
(`critics.table`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from text2grad.feedback import Critic, Example, Feedback, SourceKind
from text2grad.sandbox import Runner
from text2grad.settings import Settings


class Run(Protocol):
    """The run that a critic works in (`stages.run_folder.RunFolder`)."""

    @property
    def path(self) -> Path:
        """The folder of the run."""

    def feedback(self) -> list[Feedback]:
        """The records that the run has imported; a `UserError` if there are none."""

    def load_model(self, folder: Path) -> Any:
        """Load a trained model as a frozen `Policy`."""


@dataclass(frozen=True)
class Ready:
    """The resources that a run provides to its critic.

    `runner` is the sandbox. `critic` is the critic over the endpoint (`prompted`) or over the
    trained reward model (`reward_model`), None for all others.
    """

    run: Run
    seed: int
    runner: Runner
    critic: Critic | None = None


class Need(NamedTuple):
    """What examples must have for a critic to judge them: how it is called, and whether one has
    it."""

    what: str
    has: Callable[[Example], bool]


@dataclass(frozen=True)
class CriticSpec:
    """One critic, by the name that `critic.kind` has for it; `about` is its line in the help.

    `settings` is the class of `critic.<kind>`; those named in `manner` change how it works and not
    what it says. `needs` asks for what is made ready before, `make(settings, ready)` makes the
    critic, `measures_with(ready)` the one that judges held-out answers in `evaluate`; None: there
    is none. Judgements also depend on the settings `reads` (`section.key`) and on
    `files(settings, folder)`, given the folder of the run: a run that finds them changed does not
    resume. `source` is who speaks. `words`: it writes critiques, not labels alone; `blind`: it
    judges by the prompt and the answer alone, so a policy may revise by it what is measured.
    """

    kind: str
    make: Callable[[Any, Ready], Critic]
    settings: type[Settings] | None = None
    manner: tuple[str, ...] = ()
    needs: Need | None = None
    reads: tuple[str, ...] = ()
    files: Callable[[Any, Path], Mapping[str, Path]] = lambda settings, folder: {}
    measures_with: Callable[[Ready], Critic | None] | None = None
    source: SourceKind = "program"
    words: bool = True
    blind: bool = False
    about: str = ""
