"""Cores and memory that this process may use, whatever else the machine is doing.

A trained result depends on both: the order of sums on the threads, the size of a pass on the
memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from text2grad.json_text import split_lines

MOST_THREADS = 4
"""More threads gain little with models that a CPU trains."""
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def derive_threads() -> tuple[int, str]:
    """Return the threads of torch, and the reason."""
    if (declared := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(declared):
        return int(declared), "OMP_NUM_THREADS"
    cores = count_cores()
    return min(MOST_THREADS, cores), f"{cores} cores"


def count_cores() -> int:
    """Return the cores that affinity and the quota of a cgroup allow, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [*_limits("cpu", "cpu.max"), *_limits("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return max(1, math.floor(min([cores, *(quota / period for quota, period in quotas)])))


def total_memory() -> int:
    """Return the bytes of memory of the machine, or of the cgroup if that has fewer."""
    limits = [*_limits("memory", "memory.max"), *_limits("memory", "memory.limit_in_bytes")]
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min([installed, *(limit for limit, *_ in limits)]))


def _limits(controller: str, *names: str) -> Iterator[list[float]]:
    """Numbers of the files `names` of this process's cgroup and of those above it, version 2 or 1.

    Without a limit: version 2 says "max", version 1 -1 or a number beyond any machine.
    """
    for line in split_lines(_read(PROC / "self" / "cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = CGROUPS / controller if controllers else CGROUPS
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            words = " ".join(_read(group / folder / name) for name in names).split()
            if words and all(word.isdecimal() for word in words):
                yield [float(word) for word in words]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
