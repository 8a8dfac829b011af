"""Prompts as text files: those beside the tasks, or one of your own."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from text2grad.errors import UserError


def read_prompt(name: str) -> str:
    """Read a prompt file.

    Args:
        name: a stem in tasks/prompts, or the path of a text file of your own.

    Returns:
        Its text.

    Raises:
        UserError: there is no such file.
    """
    folder = resources.files("text2grad.tasks") / "prompts"
    names = sorted(file.name.removesuffix(".txt") for file in folder.iterdir() if file.name.endswith(".txt"))
    if name in names:
        return (folder / f"{name}.txt").read_text(encoding="utf-8")
    if not name.endswith(".txt") and not Path(name).is_file():
        raise UserError(f"unknown prompt {name!r}", f"one of {', '.join(names)}, or a text file of your own")
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the prompt {name}", "check the path; it must be UTF-8 text") from error


def prompt_version(name: str) -> str:
    """`name@hash` of a prompt file: changes with its text, so that old feedback is never mistaken
    for new.

    Raises:
        UserError: there is no such file.
    """
    return version_of(Path(name).stem, read_prompt(name))


def version_of(name: str, text: str) -> str:
    """Return `name@hash` of the text of a prompt."""
    return f"{name}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
