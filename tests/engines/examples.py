"""The examples that need an engine, run in its environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from places import ROOT


def said_by(name: str, folder: Path) -> list[str]:
    """The lines that an example prints, started in an empty folder."""
    path = ROOT / "examples" / "engines" / f"{name}.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
