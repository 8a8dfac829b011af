"""Programs that try to pass without solving the task, or to touch the machine. For tests and benchmarks.

`{out}` is a folder everybody may write to, `{port}` a port of 127.0.0.1 where somebody listens (TCP and UDP).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TESTS = (
    "from solution import f\n\ndef test_two():\n    assert f(2) == 4\n\ndef test_three():\n    assert f(3) == 9\n"
)
CLOSE = "from solution import f\n\ndef test_two():\n    assert abs(f(2) - 4.0) < 1e-6\n"
CALLBACK = "from solution import f\n\nSECRET = 4\n\ndef test_two():\n    assert f(lambda: SECRET and None) == 4\n"
STAR = (
    "from pytest import approx\nfrom solution import *\n\ndef test_two():\n    assert isinstance(f(2), int)\n"
    "    assert sorted([f(2), 5]) == [4, 5]\n    assert all([f(2) == approx(4)])\n"
)
ARRAY = (
    "import numpy as np\nfrom solution import f\n\ndef test_two():\n"
    "    np.testing.assert_allclose(f(2), np.array([4.0]))\n"
)


@dataclass(frozen=True)
class Hostile:
    """A program, and the tests it must not pass."""

    name: str
    code: str
    tests: str


def read_hostile(file: Path) -> tuple[Hostile, ...]:
    """The programs of a file: a line `=== name | tests` begins each."""
    found = []
    for section in file.read_text(encoding="utf-8").split("\n=== ")[1:]:
        title, _, code = section.partition("\n")
        name, tests = title.split(" | ")
        found.append(Hostile(name, code.strip() + "\n", globals()[tests]))
    return tuple(found)


HOSTILE = read_hostile(Path(__file__).parents[1] / "data" / "hostile.txt")
