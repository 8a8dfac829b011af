"""Prompt files: the bundled ones, or user files."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from text2grad.errors import UserError


def read_prompt(name: str) -> str:
    """Read a prompt file: `name` is a stem in tasks/prompts, or the path of another text file.

    Args:
        name: a stem in tasks/prompts, or the path of another text file.

    Returns:
        The text of the prompt.

    Raises:
        UserError: there is no such file.
    """
    folder = resources.files("text2grad.tasks") / "prompts"
    names = sorted(file.name.removesuffix(".txt") for file in folder.iterdir() if file.name.endswith(".txt"))
    if name in names:
        return (folder / f"{name}.txt").read_text(encoding="utf-8")
    if not name.endswith(".txt") and not Path(name).is_file():
        raise UserError(f"unknown prompt {name!r}", f"one of {', '.join(names)}, or the path of a text file")
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the prompt {name}", "check the path; it must be UTF-8 text") from error


def prompt_version(name: str) -> str:
    """Return `name@hash` of a prompt file; the hash of the text tells old feedback from new."""
    return format_version(Path(name).stem, read_prompt(name))


def format_version(name: str, text: str) -> str:
    """Return `name@hash` of the text of a prompt."""
    return f"{name}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
