"""Threads and memory come from the machine and its limits, and not from what else it is doing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from text2grad.durable import machine
from text2grad.durable.machine import count_cores, derive_threads, total_memory

GB = 2**30
CASES: dict[str, tuple[str, dict[str, str], int, int]] = {
    "no groups": ("", {}, 8, 16),
    "version 2": ("0::/box/inner\n", {"box/inner/cpu.max": "300000 100000", "box/memory.max": str(4 * GB)}, 3, 4),
    "version 2, no limit": ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, 8, 16),
    "version 1": (
        "4:memory:/box\n2:cpu,cpuacct:/box\n",
        {
            "cpu/box/cpu.cfs_quota_us": "250000",
            "cpu/box/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(2 * GB),
            "memory/box/memory.limit_in_bytes": "9223372036854771712",
        },
        2,
        2,
    ),
    "version 1, no limit": (
        "2:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        8,
        16,
    ),
    "half a core": ("0::/\n", {"cpu.max": "50000 100000"}, 1, 16),
}


@pytest.fixture(autouse=True)
def eight_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16 * GB // 4096}.__getitem__)
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_cores_and_memory_are_those_that_the_groups_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {}
    for name, (groups, files, cores, memory) in CASES.items():
        monkeypatch.setattr(machine, "CGROUPS", tmp_path / name)
        contents = {tmp_path / "proc" / "self" / "cgroup": groups}
        contents |= {tmp_path / name / file: text for file, text in files.items()}
        for path, text in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        measured = count_cores(), total_memory() / GB
        if measured != (cores, memory):
            wrong[name] = measured
    assert not wrong


@pytest.mark.parametrize(
    ("declared", "cores", "threads"), [("3", 8, 3), ("", 8, 4), ("0", 8, 4), ("many", 2, 2), ("", 1, 1)]
)
def test_the_variable_of_openmp_wins_where_it_is_a_number(
    declared: str, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", declared)
    monkeypatch.setattr("text2grad.durable.machine.count_cores", lambda: cores)
    assert derive_threads()[0] == threads
