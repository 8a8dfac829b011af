"""The run folder: what every stage finds in it and leaves there."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import torch
import transformers

from text2grad.config import TINY, Config, dump_config
from text2grad.durable.identity import flatten
from text2grad.durable.processes import Ranks, joined, profile_shards
from text2grad.durable.run import OnStep, ResumeMode, RunOptions
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.feedback import Feedback, read_jsonl
from text2grad.policy.files.cpu import reuse_memory
from text2grad.policy.files.gguf import is_gguf, origin_of
from text2grad.policy.settings import PolicySettings
from text2grad.stages.results import refuse_unwritable, write_json, write_whole

MODEL_NOTE = "model.json"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def prepare(config: Config) -> Path:
    """Set threads, memory, seeds and logging. Nothing is written yet: a stage that cannot start leaves no trace.

    Raises:
        UserError: nothing can be written to the run folder; or several processes were started for a stage of one.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1 and not torch.distributed.is_initialized():
        raise UserError(
            f"{count} processes were started, and this command is one process",
            "sft, train-reward and train share their work; start the others without a launcher",
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    torch.set_num_threads(config.run.threads or max(1, idle_cores() // local))
    if not torch.cuda.is_available():
        reuse_memory()
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # peft 0.21 asks transformers 5.23 by the old name.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    seed_everything(config.run.seed)
    folder = config.run.folder
    refuse_unwritable(folder)
    return folder


@contextmanager
def processes(config: Config) -> Iterator[Ranks]:
    """The processes that a launcher started, this one among them (docs/distributed.md)."""
    wanted = config.run.parallel
    with joined(wanted == "fsdp" or (wanted == "auto" and profile_shards())) as ranks:
        if ranks.count > 1 and ranks.first:
            how = "split" if ranks.sharded else "whole in each"
            print(f"{ranks.count} processes ({torch.distributed.get_backend()}), weights {how}", file=sys.stderr)
        yield ranks


def run_inputs(config: Config, trained: PolicySettings, **inputs: str) -> dict[str, str]:
    """What a training loop must find unchanged to resume, beside what it sees itself.

    `trained` made the model; its weights are compared by the loop, wherever they lie.
    """
    return {"run.threads": str(config.run.threads), **flatten({"policy.model"}, policy=trained), **inputs}


def run_options(
    config: Config,
    place: Path,
    title: str,
    resume: ResumeMode,
    ranks: Ranks,
    inputs: Mapping[str, str],
    on_step: OnStep | None = None,
) -> RunOptions:
    """How a run of this configuration is run in a folder; `inputs` as `run_inputs` has them."""
    return RunOptions(place, title, config.run.seed, resume, inputs, ranks, on_step, config.run.loggers)


@cache
def idle_cores() -> int:
    """Cores that are idle now, from 1 to 4: two threads on two busy cores are slower than one.

    Measured once per process, for a fifth of a second.
    """
    idle = sum(1 - busy / 100 for busy in psutil.cpu_percent(interval=0.2, percpu=True))
    return max(1, min(4, round(idle)))


def note_settings(config: Config, folder: Path, begins: bool = False) -> None:
    """Write the settings next to their results, and where a GGUF model's weights come from.

    A stage that only `begins` keeps those of a finished one.
    """
    if begins and (folder / "config.yaml").exists():
        return
    write_whole(folder / "config.yaml", dump_config(config))
    if origin := origin_of(config.policy.model):
        write_json(folder / MODEL_NOTE, origin)
    else:
        (folder / MODEL_NOTE).unlink(missing_ok=True)


def start_policy(config: Config, target: str = "") -> PolicySettings:
    """The policy that a target names (`policy_name`); without one the SFT policy of this run if there is one, else
    the model of the config.
    """
    if target:
        return config.policy.model_copy(update={"model": policy_name(config, target)})
    folder = config.run.folder / "sft" / "policy"
    if folder.is_dir():
        return config.policy.model_copy(update={"model": str(folder)})
    if config.policy.model == TINY:
        raise UserError(f"no policy in {folder}", f"text2grad sft --run.folder {config.run.folder}")
    return config.policy


def policy_name(config: Config, target: str) -> str:
    """The model of a target: a policy of this run, a folder or GGUF file, or one on the hub (`owner/model`).

    Raises:
        UserError: it names none of these.
    """
    if is_gguf(target) or (HUB_NAME.fullmatch(target) and not Path(target).parent.is_dir()):
        return target
    return str(find_policy(config, target))


def find_policy(config: Config, target: str) -> Path:
    """`sft`, the name of a PPO run, a model folder, or the folder of a training run with its `policy` in it."""
    run, own = config.run.folder, Path(target)
    for place in (run / target / "policy", run / "ppo" / target / "policy", own, own / "policy"):
        if place.is_dir() and (place / "tokenizer_config.json").is_file():
            return place
    known = sorted(path.parent.name for path in run.glob("ppo/*/policy"))
    raise UserError(f"no policy {target!r} in {run}", f"known: {', '.join(['sft', *known])}, or a model folder")


def read_feedback(path: Path) -> list[Feedback]:
    """All records of a feedback file; refuses an empty one."""
    if not path.is_file():
        raise UserError(f"no feedback in {path}", "text2grad annotate, or text2grad import, first")
    records = list(read_jsonl(path, Feedback))
    if not records:
        raise UserError(f"{path} holds no records", "text2grad annotate, or text2grad import, first")
    return records
