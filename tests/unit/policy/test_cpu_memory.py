"""Memory that is used again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

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
