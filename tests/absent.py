"""Packages hidden from a fresh Python, as if they were not installed."""

from __future__ import annotations

from collections.abc import Iterable

_HIDE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def hiding(packages: Iterable[str]) -> str:
    """Python code that hides these packages from what runs after it."""
    return _HIDE.format(packages=set(packages))
