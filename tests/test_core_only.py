"""The core does without torch what it promises to: the script that `make wheel WHEEL_EXTRAS=`
runs, with torch hidden from it."""

from __future__ import annotations

import subprocess
import sys

from absent import hiding
from places import ROOT
from text2grad.errors import EXTRAS


def test_the_core_works_where_nothing_of_training_is_installed() -> None:
    code = hiding(package for package, extra in EXTRAS.items() if extra == "train")
    code += "import runpy\nrunpy.run_path('core_only.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT / "tests"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok  ") == 5
