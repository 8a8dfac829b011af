"""What training commands share: derived settings, and the notes in the run folder.

Unset settings are derived once, reported and written to `derived.json`. The same command in the
same folder reads them back while model and data are what they were, on whatever machine.

stage = prepare_training(config, "offline", "ppo/mine", resume)
...  # read the data, load the policy: nothing is written yet
run = stage.settle(policy, facts)
with run.begin() as options:
    metrics = train_offline(policy, answers, run.config.offline, run.config.credit, options)
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from pydantic import ValidationError

from text2grad.config import TINY, Config, dump_config
from text2grad.config.derive import (
    DataFacts,
    DerivedValue,
    Facts,
    MachineFacts,
    ModelFacts,
    Stage,
    derive,
    section_of,
)
from text2grad.config.trust import sign
from text2grad.durable.checkpoint import STATE as LOCAL_STATE
from text2grad.durable.identity import digest_of_texts, flatten
from text2grad.durable.machine import derive_threads, total_memory
from text2grad.durable.run import CHECKPOINTS, Choice, OnStep, ResumeMode, RunOptions
from text2grad.durable.state import seed_everything
from text2grad.engines import verl
from text2grad.engines.processes import joined
from text2grad.engines.trl import STATE as TRL_STATE
from text2grad.errors import EXIT_DONE, UsageError, UserError, first_error, warn_once
from text2grad.feedback import Example
from text2grad.json_text import split_lines, to_json
from text2grad.page.signs import loss_advice
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.files.gguf import origin_of
from text2grad.policy.load import choose_device
from text2grad.policy.settings import PolicySettings
from text2grad.settings import is_set, with_values
from text2grad.stages.run_folder import RunFolder, write_json, write_whole
from text2grad.train.pairs import Pair

MODEL_NOTE = "model.json"


def prepare(config: Config, several: bool = False) -> RunFolder:
    """Set threads, memory, seeds and logging. Nothing is written yet: a stage that cannot start
    leaves no trace.

    Raises:
        UsageError: a launcher started several processes, and this stage is not for `several`.
        UserError: nothing can be written to the run folder.
    """
    if not several and (count := os.environ.get("WORLD_SIZE", "1")) != "1":
        cure = "start it without torchrun or accelerate launch; train and sft use several with --engine trl"
        raise UsageError(f"{count} processes were started, and this command is one process", cure)
    torch.set_num_threads(config.run.threads or derive_threads()[0])
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # peft 0.21 asks transformers 5.23 by the old name.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    seed_everything(config.run.seed)
    run = RunFolder.of(config)
    run.refuse_unwritable()
    return run


def note_settings(config: Config, folder: Path, begins: bool = False) -> None:
    """Write the settings next to their results, and where a GGUF model's weights come from.

    A stage that only `begins` keeps those of a finished one.
    """
    if begins and (folder / "config.yaml").exists():
        return
    write_whole(folder / "config.yaml", sign(dump_config(config)))
    if origin := origin_of(config.policy.model):
        write_json(folder / MODEL_NOTE, origin)
    else:
        (folder / MODEL_NOTE).unlink(missing_ok=True)


class Measurable(Protocol):
    """A policy from whose size settings are derived; it may be one that only an engine loads."""

    @property
    def model(self) -> Any:
        """The model."""

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""

    @property
    def device(self) -> Any:
        """Its device."""


DERIVED_FILE = "derived.json"
DIGEST = "sha256"
DERIVED_AGAIN = "remove it: they are derived again"
COUNTED = 64
"""Examples whose tokens are counted, of many."""


@dataclass(frozen=True)
class TrainingStage:
    """A training command before its settings are final: the configuration as given, and the folder
    it writes.

    `kind` None: a command whose settings are in `extra`, where nothing is derived. A policy of its
    own name (`ppo/<name>`) has its settings beside it; the models that a run has one of (`sft`,
    `reward_model`, ...) have those of the run.
    """

    config: Config
    kind: Stage | None
    place: Path
    title: str
    resume: ResumeMode
    process: int = 0
    """The number of this process among those that a launcher started; process 0 writes."""

    @property
    def first(self) -> bool:
        """True for the process that writes."""
        return self.process == 0

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let the first process do it before the others, which then read what it has written."""
        if os.environ.get("WORLD_SIZE", "1") == "1":
            yield
            return
        with joined(choose_device(self.config.policy.device)).main_process_first():
            yield

    def leave_others(self) -> None:
        """End all processes but the first; what follows is printed once."""
        if os.environ.get("WORLD_SIZE", "1") != "1":
            joined(choose_device(self.config.policy.device)).destroy_process_group()
        if not self.first:
            sys.exit(EXIT_DONE)

    @property
    def folder(self) -> RunFolder:
        """The folder of the run."""
        return RunFolder.of(self.config)

    @property
    def named(self) -> bool:
        """True for one of several policies of the run."""
        return self.place.parent.name == "ppo"

    def settle(self, policy: Measurable | None = None, data: DataFacts | None = None) -> TrainingRun:
        """Give every unset setting a value, from the model and the data.

        What was derived for the models that SFT and `train-reward` left in the run is taken over
        too, so that the run's configuration says it. A tiny model is made for its preset and gets
        nothing; neither does a run that began before its settings were derived.

        Raises:
            UserError: what was written earlier cannot be read, or does not fit the configuration.
        """
        values: dict[str, Any] = {}
        if policy is not None and data is not None and self.config.policy.model != TINY:
            values = self._derived_for_others() | self._derived(policy, data)
        if self.named:  # other models continue from the random state that initialised their adapters
            seed_everything(self.config.run.seed)
        return TrainingRun(self, with_values(self.config, values))

    def _derived_for_others(self) -> dict[str, Any]:
        files = [self.config.run.folder / name / DERIVED_FILE for name in ("sft", "reward_model")]
        values = {key: each.value for file in files for key, each in (_read(file, {}, self.config) or {}).items()}
        return {key: value for key, value in values.items() if not key.startswith(f"{section_of(self._kind)}.")}

    @property
    def _kind(self) -> Stage:
        assert self.kind is not None, "nothing is derived for this stage"
        return self.kind

    def _derived(self, policy: Measurable, data: DataFacts) -> dict[str, Any]:
        """The derived values by setting: those of `derived.json`, else new ones, which are
        written."""
        file = self.place / DERIVED_FILE
        if self.resume != "restart" and (self.place / CHECKPOINTS).is_dir() and not file.is_file():
            return {}
        facts = Facts(model_facts(policy), data, machine_facts(policy))
        same = {"stage": self.kind, "model": asdict(facts.model), "data": asdict(data)}
        derived = _read(file, same, self.config)
        if derived is None:
            derived = derive(self._kind, self.config, facts)
            settings = {key: list(each) for key, each in derived.items()}
            content = {"from": {**same, "machine": asdict(facts.machine)}, "settings": settings}
            if self.first:
                write_json(file, {**content, DIGEST: _digest(content)})
        if derived and self.first:
            words = ", ".join(f"{key} {each.value:g} ({each.reason})" for key, each in derived.items())
            print(f"derived settings: {words}", file=sys.stderr)
            print(f"  kept in {file}; any can be set: --{next(iter(derived))} VALUE", file=sys.stderr)
        return {key: each.value for key, each in derived.items()}


def _read(file: Path, same: Mapping[str, Any], config: Config) -> dict[str, DerivedValue] | None:
    """Settings that were derived before and are still unset; None if for another stage, model or
    data.

    Raises:
        UserError: the file is damaged, was changed, or does not fit the configuration.
    """
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        intact = content.pop(DIGEST) == _digest(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise UserError(f"{file} is damaged or was changed", f"{DERIVED_AGAIN}; --section.key VALUE sets one")
    if any(content["from"].get(name, value) != value for name, value in same.items()):
        return None
    settings = {key: DerivedValue(*pair) for key, pair in content["settings"].items() if not is_set(config, key)}
    full = with_values(config, {key: derived.value for key, derived in settings.items()})
    try:
        Config.model_validate(full.model_dump(warnings=False))
    except ValidationError as error:
        raise UserError(f"{file} does not fit: {first_error(error)}", DERIVED_AGAIN) from error
    return settings


def _digest(content: Mapping[str, Any]) -> str:
    return digest_of_texts([to_json(content, sort_keys=True)])


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
        choice: Choice | None = None,
    ) -> Iterator[RunOptions]:
        """Note the settings, train inside, and note them again: the first note stays where a run is
        not finished.

        `trained` made the model, where that is not `policy`. `inputs` is what the run depends on
        besides what the loop itself sees. `choice` chooses the policy that is handed over. A policy
        of its own name notes the settings of the run as well, if nothing else has.
        """
        stage, run = self.stage, self.config.run
        own = stage.place if stage.named else run.folder
        if run.threads is None:
            warn_once(f"run.threads {torch.get_num_threads()} ({derive_threads()[1]})")
        for folder in dict.fromkeys((run.folder, own)):
            if stage.first:
                note_settings(self.config, folder, begins=True)
        yield RunOptions(
            folder=stage.place,
            title=stage.title,
            seed=run.seed,
            resume=stage.resume,
            inputs={**flatten(run=run, policy=trained or self.config.policy), **(inputs or {})},
            on_step=on_step,
            loggers=run.loggers,
            course=self.config.training,
            choice=choice,
        )
        if stage.first:
            note_settings(self.config, own)


def prepare_training(
    config: Config, kind: Stage | None, place: str, resume: ResumeMode, title: str = "", several: bool = False
) -> TrainingStage:
    """Return a training command in the folder `place` of the run, after `prepare`: nothing is
    written yet.

    `several`: a launcher may have started several processes of it, for an engine.

    Raises:
        UserError: see `prepare`.
    """
    prepare(config, several)
    folder = config.run.folder / place
    process = int(os.environ.get("RANK", "0")) if several else 0
    return TrainingStage(config, kind, folder, title or folder.name, resume, process)


UNFINISHED = {
    "local": f"{CHECKPOINTS}/*/{LOCAL_STATE}",
    "trl": f"{CHECKPOINTS}/*/{TRL_STATE}",
    "verl": f"verl/{CHECKPOINTS}/{verl.LATEST}",
}
"""Files of an unfinished run of an engine, in its folder."""


def leave_other_engines(stage: TrainingStage, mine: str) -> None:
    """Refuse to begin where a run of another engine is unfinished; with `restart` its checkpoints
    are removed.

    `mine` is the engine of this stage, which may be another than that of the configuration.

    Raises:
        UserError: names the engine.
    """
    for engine, pattern in UNFINISHED.items():
        files = [] if engine == mine else [*stage.place.glob(pattern)]
        if files and stage.resume != "restart":
            problem = f"the unfinished run in {stage.place} is of the engine {engine}"
            raise UserError(problem, f"--engine {engine} resumes it, --restart starts over")
        for file in files if stage.first else ():
            shutil.rmtree(file.parent)


def model_facts(policy: Measurable) -> ModelFacts:
    """The size and shape of a policy in training."""
    config = policy.model.config.get_text_config()
    weights = list(policy.model.parameters())
    adapters = any(not weight.requires_grad for weight in weights)
    counted = sum(weight.numel() for weight in weights if weight.requires_grad != adapters)
    return ModelFacts(
        parameters=counted,
        adapters=adapters,
        layers=int(config.num_hidden_layers),
        width=int(config.hidden_size),
        weight_bytes=weights[0].element_size(),
    )


def machine_facts(policy: Measurable) -> MachineFacts:
    """Memory where the policy lives, of which nothing is in use."""
    device = policy.device
    return MachineFacts(
        device.type, torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else total_memory()
    )


def facts_of_pairs(policy: Measurable, pairs: Sequence[Pair]) -> DataFacts:
    """The number of pairs to learn, and their mean tokens, counted on the first ones."""
    targets = [len(encode_target(policy.tokenizer, pair.target)) for pair in pairs[:COUNTED]]
    return replace(facts_of_prompts(policy, pairs), target_tokens=_mean(targets))


def facts_of_prompts(policy: Measurable, examples: Sequence[Example | Pair]) -> DataFacts:
    """The number of prompts to answer, and their mean tokens, counted on the first ones."""
    prompts = [len(encode_prompt(policy.tokenizer, example.prompt)) for example in examples[:COUNTED]]
    return DataFacts(len(examples), _mean(prompts))


def _mean(counts: Sequence[int]) -> int:
    return round(sum(counts) / max(1, len(counts)))


def warn_if_loss_flat(place: Path, section: str, lr: float) -> None:
    """Print a line on stderr if the loss of a finished supervised run did not move."""
    rows = split_lines((place / "metrics.jsonl").read_text(encoding="utf-8"))
    if advice := loss_advice([json.loads(row)["loss"] for row in rows], section, lr):
        print(f"{section}: {advice}", file=sys.stderr)
