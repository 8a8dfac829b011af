"""Memory that is handed back to the system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from text2grad.policy.cpu import give_back_memory


def resident_mb() -> int:
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) >> 10


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_what_is_held_back_below_something_in_use_is_given_back() -> None:
    held = [bytearray(2048) for _ in range(100_000)]  # 200 MB of the heap
    last = bytearray(2048)  # above them, so that the heap cannot shrink
    before = resident_mb()
    del held
    give_back_memory()
    assert len(last) == 2048 and before - resident_mb() > 120
