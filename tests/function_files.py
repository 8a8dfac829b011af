"""Python files whose functions have docstrings, for the tests of tasks on them."""

from __future__ import annotations

import random
from pathlib import Path


def packages(root: Path, count: int = 12) -> Path:
    """Files of functions whose docstrings share no four words."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    for index in range(count):
        texts = [["".join(rng.choices(letters, k=5)) for _ in range(12)] for _ in range(5)]
        functions = [
            f'def {text[0]}(path):\n    """Count {" ".join(text[1:4])}.\n\n    {" ".join(text[4:])}.\n    """\n'
            for text in texts
        ]
        (root / f"pack{index}.py").write_text("\n".join(functions), encoding="utf-8")
    return root
