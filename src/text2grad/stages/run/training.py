"""A training command: what `sft`, `train-reward` and `train` have in common, from the processes to the last note.

with training(config, "offline", "ppo/mine", resume) as stage:
    with stage.preparing():
        ...  # read the data, load the policy: nothing is written yet
    run = stage.settle(policy, facts)
    with run.begin() as options:
        metrics = train_offline(policy, answers, run.config.offline, run.config.credit, options)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config
from text2grad.config.derive import DataFacts, Stage
from text2grad.durable.identity import flatten
from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep, ResumeMode, RunOptions
from text2grad.durable.state import seed_everything
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.run.folder import note_settings, prepare, processes
from text2grad.stages.run.settle import resolved_config


@dataclass(frozen=True)
class TrainingStage:
    """A training command before its settings are final: the configuration as it was given, and its folder.

    A policy of its own name (`ppo/<name>`) has its settings beside it; the models that a run has one of (`sft`,
    `reward_model`, ...) have those of the run.
    """

    config: Config
    kind: Stage | None
    place: Path
    title: str
    resume: ResumeMode
    ranks: Ranks

    @property
    def named(self) -> bool:
        """Whether this is one of several policies of the run."""
        return self.place.parent.name == "ppo"

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Data are read and models are loaded; what fails in one process fails in all, and nothing is written.

        Raises:
            UserError: see `prepare`, and what fails inside.
        """
        with self.ranks.barrier():
            prepare(self.config)
            yield

    def settle(self, policy: Policy, data: DataFacts) -> TrainingRun:
        """Give every setting its value, from the model and the data; all processes call this.

        Raises:
            UserError: see `resolved_config`.
        """
        assert self.kind is not None, "this stage has no derived settings"
        config = resolved_config(self.config, self.kind, self.place, policy, data, self.resume, self.ranks)
        if self.named:  # other models continue from the random state that initialised their adapters
            seed_everything(config.run.seed)
        return TrainingRun(self, config)

    def as_given(self) -> TrainingRun:
        """Begin with the settings as given: for a command whose settings are in `extra`, `kind` None."""
        if self.named:
            seed_everything(self.config.run.seed)
        return TrainingRun(self, self.config)


@dataclass(frozen=True)
class TrainingRun:
    """A training command that can begin. `config` is final: everything after this only reads it."""

    stage: TrainingStage
    config: Config

    @contextmanager
    def begin(
        self,
        trained: PolicySettings | None = None,
        inputs: Mapping[str, str] | None = None,
        on_step: OnStep | None = None,
        with_run: bool = False,
    ) -> Iterator[RunOptions]:
        """Note the settings, train inside, and note them again: the first note stays where a run is not finished.

        `trained` made the model, where that is not `policy`. `inputs` is what the run depends on beside what the
        loop itself sees. `with_run`: a policy of its own name notes the settings of the run as well.
        """
        stage, run = self.stage, self.config.run
        own = stage.place if stage.named else run.folder
        with stage.ranks.barrier():
            if stage.ranks.first:
                for folder in {**({run.folder: 1} if with_run else {}), own: 1}:
                    note_settings(self.config, folder, begins=True)
        known = {**run_inputs(self.config, trained or self.config.policy), **(inputs or {})}
        yield RunOptions(
            folder=stage.place,
            title=stage.title,
            seed=run.seed,
            resume=stage.resume,
            inputs=known,
            ranks=stage.ranks,
            on_step=on_step,
            loggers=run.loggers,
            course=self.config.training,
        )
        if stage.ranks.first:
            note_settings(self.config, own)


def run_inputs(config: Config, trained: PolicySettings) -> dict[str, str]:
    """What every training loop must find unchanged to resume, beside what it sees itself.

    `trained` made the model; its weights are compared by the loop, wherever they lie.
    """
    return flatten(run=config.run, policy=trained)


@contextmanager
def training(
    config: Config, kind: Stage | None, place: str, resume: ResumeMode, title: str = ""
) -> Iterator[TrainingStage]:
    """A training command in the folder `place` of the run, in each of the processes that a launcher started."""
    with processes(config) as ranks:
        folder = config.run.folder / place
        yield TrainingStage(config, kind, folder, title or folder.name, resume, ranks)
