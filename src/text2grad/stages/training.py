"""Shared steps of training commands: derived settings, engines, and settings in the run folder.

Unset settings are derived once, reported and written to `derived.json`. The same command in the
same folder reuses them while model and data are unchanged, on any machine.

stage = prepare_training(config, "offline", "ppo/mine", resume)
...  # read the data, load the policy: nothing is written yet
run = stage.finalise(policy, facts)
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
from typing import Any

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
from text2grad.durable.identity import flatten, hash_texts
from text2grad.durable.machine import derive_threads, total_memory
from text2grad.durable.run import CHECKPOINTS, OnStep, PolicySelector, ResumeMode, RunOptions
from text2grad.durable.state import seed_everything
from text2grad.engines import verl
from text2grad.engines.processes import join_processes
from text2grad.engines.settings import EngineName
from text2grad.engines.trl import STATE as TRL_STATE
from text2grad.errors import EXIT_DONE, UsageError, UserError, first_error, warn_once
from text2grad.feedback import Example
from text2grad.json_text import to_json
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.files.gguf import find_origin
from text2grad.policy.load import choose_device
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.settings import is_set, with_values
from text2grad.stages.run_folder import RunFolder, write_atomically, write_json
from text2grad.train.pairs import Pair

MODEL_NOTE = "model.json"


def prepare(config: Config, multi_process: bool = False) -> RunFolder:
    """Set threads, seeds and logging. Nothing is written, so a stage that fails leaves no trace.

    Raises:
        UsageError: a launcher started several processes, and this stage is not `multi_process`.
        UserError: the run folder is not writable.
    """
    if not multi_process and (count := os.environ.get("WORLD_SIZE", "1")) != "1":
        cure = "run it without torchrun or accelerate launch; only train and sft with --engine trl use several"
        raise UsageError(f"{count} processes were started, but this command uses one process", cure)
    torch.set_num_threads(config.run.threads or derive_threads()[0])
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # peft 0.21 reads this attribute of transformers 5.23 by its old name.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    seed_everything(config.run.seed)
    run = RunFolder.of(config)
    run.refuse_unwritable()
    return run


def write_settings(config: Config, folder: Path) -> None:
    """Write the settings next to their results, with the origin of a GGUF model's weights."""
    write_atomically(folder / "config.yaml", sign(dump_config(config)))
    if origin := find_origin(config.policy.model):
        write_json(folder / MODEL_NOTE, origin)
    else:
        (folder / MODEL_NOTE).unlink(missing_ok=True)


PolicyLike = Policy | verl.Skeleton
"""A policy to derive settings from: loaded, or a skeleton of one that only an engine loads."""
DERIVED_FILE = "derived.json"
DIGEST = "sha256"
DERIVE_AGAIN = "remove it to derive the settings again"
MOST_COUNTED = 64
"""The number of examples whose tokens are counted to estimate mean lengths."""


@dataclass(frozen=True)
class TrainingStage:
    """A training command, which can begin once its settings are final.

    `folder` is where the command writes. Policies named by the user (`ppo/<name>`) have their
    settings in that folder; other models (`sft`, `reward_model`, ...) use the run's settings file.
    `kind` None: a command whose settings are in `extra`, and nothing is derived.
    """

    config: Config
    kind: Stage | None
    folder: Path
    title: str
    resume: ResumeMode
    engine: EngineName = "local"
    process: int = 0
    """The rank of this process among those that a launcher started; rank 0 writes."""

    @property
    def is_main_process(self) -> bool:
        """True for the process that writes files."""
        return self.process == 0

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block in the main process first; the others then read what it has written."""
        if os.environ.get("WORLD_SIZE", "1") == "1":
            yield
            return
        with join_processes(choose_device(self.config.policy.device)).main_process_first():
            yield

    def exit_other_processes(self) -> None:
        """End all processes but the main one, so that messages are printed once."""
        if os.environ.get("WORLD_SIZE", "1") != "1":
            join_processes(choose_device(self.config.policy.device)).destroy_process_group()
        if not self.is_main_process:
            sys.exit(EXIT_DONE)

    @property
    def run(self) -> RunFolder:
        """The folder of the run."""
        return RunFolder.of(self.config)

    @property
    def is_named(self) -> bool:
        """True if the run may have several such policies, each with a name."""
        return self.folder.parent.name == "ppo"

    def finalise(self, policy: PolicyLike | None = None, data: DataFacts | None = None) -> TrainingStage:
        """Return the stage with a value for every unset setting, derived from model and data.

        Values derived for SFT and `train-reward` are included, so that the run's settings are
        complete. Nothing is derived for the tiny model, whose preset sets everything, nor for a
        run that began before its settings were derived.

        Raises:
            UserError: `derived.json` is not readable, or does not fit the configuration.
        """
        values: dict[str, Any] = {}
        if policy is not None and data is not None and self.config.policy.model != TINY:
            assert self.kind is not None, "nothing is derived for this stage"
            values = self._derived_by_other_stages(self.kind) | self._derived(self.kind, policy, data)
        if self.is_named:  # other models continue from the random state that initialised their adapters
            seed_everything(self.config.run.seed)
        return replace(self, config=with_values(self.config, values))

    def _derived_by_other_stages(self, kind: Stage) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in ("sft", "reward_model"):
            derived = _read_derived(self.config.run.folder / name / DERIVED_FILE, {}, self.config) or {}
            values |= {key: item.value for key, item in derived.items()}
        return {key: value for key, value in values.items() if not key.startswith(f"{section_of(kind)}.")}

    def _derived(self, kind: Stage, policy: PolicyLike, data: DataFacts) -> dict[str, Any]:
        """Return values by setting: from `derived.json`, else derived now and written to it."""
        file = self.folder / DERIVED_FILE
        if self.resume != "restart" and (self.folder / CHECKPOINTS).is_dir() and not file.is_file():
            return {}
        facts = Facts(model_facts(policy), data, machine_facts(policy))
        source = {"stage": kind, "model": asdict(facts.model), "data": asdict(data)}
        derived = _read_derived(file, source, self.config)
        if derived is None:
            derived = derive(kind, self.config, facts)
            settings = {key: list(item) for key, item in derived.items()}
            content = {"from": {**source, "machine": asdict(facts.machine)}, "settings": settings}
            if self.is_main_process:
                write_json(file, {**content, DIGEST: _digest(content)})
        if derived and self.is_main_process:
            reasons = ", ".join(f"{key} {item.value:g} ({item.reason})" for key, item in derived.items())
            print(f"derived settings: {reasons}", file=sys.stderr)
            print(f"  written to {file}; override one with --{next(iter(derived))} VALUE", file=sys.stderr)
        return {key: item.value for key, item in derived.items()}

    @contextmanager
    def begin(
        self,
        start: PolicySettings | None = None,
        inputs: Mapping[str, str] | None = None,
        on_step: OnStep | None = None,
        choice: PolicySelector | None = None,
    ) -> Iterator[RunOptions]:
        """Write missing settings files, train inside, and write the settings again at the end.

        A named policy also writes the settings of the run, if these are missing.

        Args:
            start: the settings of the model in training, if not `policy`.
            inputs: other inputs of the run; it does not resume if they have changed.
            on_step: called after every step.
            choice: selects the policy that is written at the end.
        """
        run = self.config.run
        settings_folder = self.folder if self.is_named else run.folder
        if run.threads is None:
            warn_once(f"run.threads {torch.get_num_threads()} ({derive_threads()[1]})")
        for folder in dict.fromkeys((run.folder, settings_folder)):
            if self.is_main_process and not (folder / "config.yaml").exists():
                write_settings(self.config, folder)
        yield RunOptions(
            folder=self.folder,
            title=self.title,
            seed=run.seed,
            resume=self.resume,
            inputs={**flatten(run=run, policy=start or self.config.policy), **(inputs or {})},
            on_step=on_step,
            loggers=run.loggers,
            course=self.config.training,
            selector=choice,
        )
        if self.is_main_process:
            write_settings(self.config, settings_folder)


def _read_derived(file: Path, source: Mapping[str, Any], config: Config) -> dict[str, DerivedValue] | None:
    """Return derived settings that are still unset; None if derived from another `source`.

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
        raise UserError(f"{file} is damaged or was changed", f"{DERIVE_AGAIN}; --section.key VALUE sets one")
    if any(content["from"].get(name, value) != value for name, value in source.items()):
        return None
    settings = {key: DerivedValue(*pair) for key, pair in content["settings"].items() if not is_set(config, key)}
    full = with_values(config, {key: derived.value for key, derived in settings.items()})
    try:
        Config.model_validate(full.model_dump(warnings=False))
    except ValidationError as error:
        raise UserError(f"{file} does not fit the configuration: {first_error(error)}", DERIVE_AGAIN) from error
    return settings


def _digest(content: Mapping[str, Any]) -> str:
    return hash_texts([to_json(content, sort_keys=True)])


def prepare_training(
    config: Config,
    kind: Stage | None,
    folder: str,
    resume: ResumeMode,
    title: str = "",
    engines: Sequence[EngineName] = ("local",),
) -> TrainingStage:
    """Call `prepare` and return a training command that writes to `folder` in the run folder.

    A configured engine that is not one of `engines` is replaced by `local`, with a line on stderr.

    Raises:
        UserError: see `prepare`.
    """
    path = config.run.folder / folder
    title = title or path.name
    engine = config.engine.name if config.engine.name in engines else "local"
    if engine != config.engine.name:
        print(f"{title}: trained by the local engine; {config.engine.name} does not support it", file=sys.stderr)
    prepare(config, multi_process=engine == "trl")
    process = int(os.environ.get("RANK", "0")) if engine == "trl" else 0
    return TrainingStage(config, kind, path, title, resume, engine, process)


UNFINISHED = {
    "local": f"{CHECKPOINTS}/*/{LOCAL_STATE}",
    "trl": f"{CHECKPOINTS}/*/{TRL_STATE}",
    "verl": f"verl/{CHECKPOINTS}/{verl.LATEST}",
}
"""Patterns of files in the folder of an unfinished run, by engine."""


def refuse_other_engines(stage: TrainingStage) -> None:
    """Refuse to overwrite an unfinished run of another engine; `restart` removes its checkpoints.

    Raises:
        UserError: another engine has an unfinished run in the folder.
    """
    for engine, pattern in UNFINISHED.items():
        files = [] if engine == stage.engine else [*stage.folder.glob(pattern)]
        if files and stage.resume != "restart":
            problem = f"the unfinished run in {stage.folder} was started by the engine {engine}"
            raise UserError(problem, f"--engine {engine} resumes it, --restart starts over")
        for file in files if stage.is_main_process else ():
            shutil.rmtree(file.parent)


def model_facts(policy: PolicyLike) -> ModelFacts:
    """Return the size and shape of a policy in training."""
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


def machine_facts(policy: PolicyLike) -> MachineFacts:
    """Return the total memory of the policy's device, in bytes."""
    device = policy.device
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else total_memory()
    return MachineFacts(device.type, memory)


def facts_of_pairs(policy: PolicyLike, pairs: Sequence[Pair]) -> DataFacts:
    """Return the number of training pairs and their mean token counts (of the first pairs)."""
    targets = [len(encode_target(policy.tokenizer, pair.target)) for pair in pairs[:MOST_COUNTED]]
    return replace(facts_of_prompts(policy, pairs), target_tokens=_mean(targets))


def facts_of_prompts(policy: PolicyLike, examples: Sequence[Example | Pair]) -> DataFacts:
    """Return the number of prompts and their mean token count (of the first prompts)."""
    prompts = [len(encode_prompt(policy.tokenizer, example.prompt)) for example in examples[:MOST_COUNTED]]
    return DataFacts(len(examples), _mean(prompts))


def _mean(counts: Sequence[int]) -> int:
    return round(sum(counts) / max(1, len(counts)))
