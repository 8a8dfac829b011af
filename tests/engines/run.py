"""Make an environment for each engine, and run its tests in it: `make test-plugins`, for a nightly
run.

    python tests/engines/run.py [tinker verifiers verl skyrl] [--folder .venv-plugins] [--index URL]

Versions conflict (verifiers wants openai < 3, verl transformers < 5.11, SkyRL < 5.17), so none
shares ours. What cannot be installed says so, and counts as a failure. The last lines say what
held; the exit code is 1 where one did not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TORCH = next(
    line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line.startswith("torch==")
)
"""The one we are tested with. It is installed first and by itself: `--index` holds builds for the
CPU, is asked for nothing else, and where it cannot be reached, the newest would be a CUDA build of
several GB."""
OURS = ("-e", str(ROOT), "hypothesis", "numpy", TORCH, "transformers>=5.5.3")
"""What our own tests need beside the engine."""


class Engine(NamedTuple):
    """What pip is asked to install, one call for each, and a line with which a Python before 3.12
    starts."""

    installs: Sequence[Sequence[str]]
    before_312: str = ""


ENGINES = {
    # The cookbook asks for newer renderers than every index has; what is used of it needs none.
    "tinker": Engine(
        (
            ("tinker==0.38.0", *OURS),
            ("aiohttp", "blobfile", "chz", "datasets", "pillow", "termcolor", "tiktoken"),
            ("--no-deps", "tinker-cookbook==0.6.1"),
        )
    ),
    "verifiers": Engine((OURS, ("verifiers==0.4.0",))),  # in this order: ours wants openai 3, theirs openai 2
    "verl": Engine((("verl[verl-core]==0.9.1", "cachetools", "uvicorn", "fastapi", *OURS),)),
    # Its trainer and its Tinker server, without vLLM and CUDA. It asks for Python 3.12, and uses
    # one thing of it.
    "skyrl": Engine(
        (
            (*OURS, "transformers<=5.16.1", "tinker==0.38.0"),
            ("jax<1", "flax>=0.12.8", "optax", "peft==0.18.1", "cloudpathlib", "fastapi", "uvicorn", "psutil"),
            ("sqlmodel", "sqlalchemy[asyncio]", "aiosqlite", "zstandard", "httpx", "aiohttp", "orjson", "pybase64"),
            ("ray", "datasets", "jaxtyping", "loguru", "omegaconf", "fsspec", "torchdata", "skyrl-gym==0.4.0"),
            ("--no-deps", "--ignore-requires-python", "skyrl==0.4.0"),
        ),
        before_312="import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-plugins")
    parser.add_argument("--index", default="", help="where pip finds torch, beside the package index")
    chosen = parser.parse_args()
    if unknown := set(chosen.engines) - ENGINES.keys():
        parser.error(f"no engine {', '.join(sorted(unknown))}: {', '.join(ENGINES)}")
    held = {name: problem_of(name, chosen.folder, chosen.index) for name in chosen.engines or ENGINES}
    for name, problem in held.items():
        print(f"{name}: {problem or 'its tests pass'}", flush=True)
    return int(any(held.values()))


def problem_of(name: str, folder: Path, index: str) -> str:
    """What keeps an engine's tests from passing; "" where they do."""
    engine, place = ENGINES[name], folder / name
    python = place / "bin" / "python"
    torch = (TORCH, "--extra-index-url", index) if index else (TORCH,)
    if not (place / ".ready").is_file():
        shutil.rmtree(place, ignore_errors=True)
        if run(sys.executable, "-m", "venv", str(place)):
            return "NO ENVIRONMENT: python -m venv failed"
        for install in (torch, *engine.installs):
            if run(str(python), "-m", "pip", "install", "--quiet", "--retries", "1", *install):
                return f"NOT INSTALLED: pip install {' '.join(install)} failed"
        if engine.before_312 and sys.version_info < (3, 12):
            (packages,) = place.glob("lib/python*/site-packages")
            (packages / "before_312.pth").write_text(engine.before_312 + "\n", "utf-8")
        (place / ".ready").touch()
    tests = map(str, sorted((ROOT / "tests" / "engines").glob(f"test_real_{name}*.py")))
    failed = run(str(python), "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *tests)
    return f"FAILED: pytest ended with {failed}" if failed else ""


def run(*words: str) -> int:
    print("$", " ".join(words), flush=True)
    return subprocess.run(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
