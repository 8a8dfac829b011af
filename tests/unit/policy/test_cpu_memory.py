"""Memory that is handed back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from text2grad.policy.files.cpu import give_back_memory


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


FAULTS = """
import resource, sys
from text2grad.policy.files.cpu import reuse_memory
if sys.argv[1] == "reuse":
    reuse_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(20):
    bytearray(2**26)
print(faults() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_what_is_freed_is_used_again_without_fetching_it_anew() -> None:
    """Twenty blocks of 64 MB, one after the other: 16,384 pages each, of which bytearray writes every one."""

    def faults(how: str) -> int:
        said = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return int(said.stdout)

    assert faults("reuse") < 0.2 * faults("as_it_is")
