"""`CriticSpec`: what other code needs to know of a critic. One is defined next to each (`critics.table`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.feedback import Critic, Example, Feedback, SourceKind
from text2grad.sandbox import Runner
from text2grad.settings import Settings


@dataclass(frozen=True)
class Materials:
    """What a critic can be made of; `stages.critics` gathers it.

    `settings` are those of `critic.<kind>` (None: the kind has none), `seed` and `folder` the run's, `runner` the
    sandbox, `feedback()` the records that the run has imported. `opened()` is the critic of this kind over an
    endpoint or a trained model, and `model` the folder of that model; `load_model(folder)` loads such a model as a
    frozen `Policy`. `section(name, without)` gives the settings
    of a section as `section.key` -> text, `digest(path)` that of a file or of all files in a folder.
    """

    settings: Any
    seed: int
    folder: Path
    runner: Runner
    feedback: Callable[[], Iterable[Feedback]]
    opened: Callable[[], Critic]
    model: Path
    load_model: Callable[[Path], Any]
    section: Callable[..., Mapping[str, str]]
    digest: Callable[[Path], str]


class Need(NamedTuple):
    """What examples must have for a critic to judge them: how it is called, and whether one has it."""

    what: str
    has: Callable[[Example], bool]


Inputs = Callable[[Materials], Mapping[str, str]]


@dataclass(frozen=True)
class CriticSpec:
    """One critic, by the name that `critic.kind` has for it; `about` is its line in the help.

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
    about: str = ""
