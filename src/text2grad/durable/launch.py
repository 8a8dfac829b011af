"""Join the processes that `torchrun` or `accelerate launch` has started: only their environment is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from text2grad.durable.processes import PATIENCE, Ranks
from text2grad.errors import UserError


@contextmanager
def joined(sharded: bool) -> Iterator[Ranks]:
    """Join the other processes that the environment names; alone where it names none.

    Within, a `UserError` is shown by the first process alone, unless only another knows of it.

    Raises:
        UserError: the environment is incomplete, or this process has no GPU where others have one.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    _begin()
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), sharded)
    try:
        yield ranks
    except UserError as error:
        error.shown = ranks.first or ranks.broken
        raise
    finally:
        dist.destroy_process_group()


def _begin() -> None:
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and {', '.join(missing)} not set",
            "start with torchrun or accelerate launch, or unset WORLD_SIZE",
        )
    backend = "gloo"
    if torch.cuda.is_available():
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise UserError(f"process {os.environ['RANK']} has no GPU", "start one process for each GPU")
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=PATIENCE)


def profile_shards() -> bool:
    """Return True if the profile of `accelerate launch` asks for split weights (FSDP, DeepSpeed ZeRO 1 to 3).

    Raises:
        UserError: it asks to keep weights or moments in the CPU's memory or on a disk.
    """
    environment = os.environ
    offloads = [environment.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{what}_DEVICE") for what in ("OPTIMIZER", "PARAM")]
    if environment.get("FSDP_OFFLOAD_PARAMS") == "true" or any(device not in (None, "none") for device in offloads):
        raise UserError("the profile asks for offload, which is not done here", "take it out of the profile")
    if environment.get("ACCELERATE_USE_DEEPSPEED") == "true":
        return environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2") != "0"
    return environment.get("ACCELERATE_USE_FSDP") == "true"
