"""The cores and memory that this process may use.

Training results depend on both: the order of sums on the number of threads, and the size of a pass
on the memory. So the current load of the machine is ignored.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from text2grad.json_text import split_lines

MOST_THREADS = 4
"""More threads gain little for models small enough to train on a CPU."""
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def derive_threads() -> tuple[int, str]:
    """Return the number of torch threads, and the reason for it."""
    if (declared := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(declared):
        return int(declared), "OMP_NUM_THREADS"
    cores = count_cores()
    return min(MOST_THREADS, cores), f"{cores} cores"


def count_cores() -> int:
    """Return the number of cores that affinity and cgroup quotas allow, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [*_limits("cpu", "cpu.max"), *_limits("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return max(1, math.floor(min([cores, *(quota / period for quota, period in quotas)])))


def total_memory() -> int:
    """Return the memory of the machine or of the cgroup, the smaller one, in bytes."""
    limits = [*_limits("memory", "memory.max"), *_limits("memory", "memory.limit_in_bytes")]
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min([installed, *(limit for limit, *_ in limits)]))


def _limits(controller: str, *names: str) -> Iterator[list[float]]:
    """Yield the numbers in the files `names` of this process's cgroup (v1 or v2) and its parents.

    A missing limit is "max" in v2; in v1 it is -1 or a number larger than any machine.
    """
    for line in split_lines(_read_or_empty(PROC / "self" / "cgroup")):  # id:controllers:path
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = CGROUPS / controller if controllers else CGROUPS
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            words = " ".join(_read_or_empty(group / folder / name) for name in names).split()
            if words and all(word.isdecimal() for word in words):
                yield [float(word) for word in words]


def _read_or_empty(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
