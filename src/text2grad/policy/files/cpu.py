"""What this machine's CPU is slow at, and its memory."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from text2grad.errors import warn_once

CPU_INFO = Path("/proc/cpuinfo")
FAST = {"amx_bf16", "avx512_bf16", "bf16"}
"""Flags of CPUs that multiply in bfloat16: x86, x86, and aarch64."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt: bytes kept at the end of the heap, and the size of a block with pages of its own."""
KEPT, LARGEST, LARGEST_BEFORE_2_35 = 2**31 - 1, 2**30, 2**25
"""What they are set to; glibc before 2.35 refuses a larger block."""


def warn_of_slow_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Say, once, that a CPU without instructions for a half type computes slowly in it."""
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return
    if dtype is torch.bfloat16 and not (CPU_INFO.is_file() and not FAST & _flags()):
        return
    name = str(dtype).removeprefix("torch.")
    warn_once(f"warning: this CPU has no instructions for {name}: it will be slow (--policy.dtype float32)")


def _flags() -> set[str]:
    lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))]
    return set(" ".join(found).split())


def reuse_memory() -> None:
    """Have glibc keep what is freed for the next tensor, instead of fetching zeroed pages anew for each large one.

    docs/LOG.md has what it saves.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's own
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        if not mallopt(M_MMAP_THRESHOLD, LARGEST):
            mallopt(M_MMAP_THRESHOLD, LARGEST_BEFORE_2_35)
