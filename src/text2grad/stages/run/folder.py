"""The run folder: what every stage finds in it and leaves there."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import torch
import transformers

from text2grad.config import Config, dump_config
from text2grad.durable.processes import Ranks, joined, profile_shards
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.feedback import Feedback, read_jsonl
from text2grad.policy.files.gguf import origin_of
from text2grad.stages.run.results import refuse_unwritable, write_json, write_whole

MODEL_NOTE = "model.json"


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


def read_feedback(path: Path) -> list[Feedback]:
    """All records of a feedback file; refuses an empty one."""
    if not path.is_file():
        raise UserError(f"no feedback in {path}", "text2grad annotate, or text2grad import, first")
    records = list(read_jsonl(path, Feedback))
    if not records:
        raise UserError(f"{path} holds no records", "text2grad annotate, or text2grad import, first")
    return records
