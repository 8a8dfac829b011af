"""Distinguish configurations that this user's runs recorded from foreign ones.

A run folder may come from anyone, and its `config.yaml` may name a server, which would receive the
user's key and texts, or a module to import. Both are used without asking only if this user's
text2grad wrote the file: its last line is then a digest of the rest under a key that never leaves
the user's state folder.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from text2grad.config.loading import parse_overrides
from text2grad.config.sections import Config
from text2grad.errors import UserError
from text2grad.named import is_import_path
from text2grad.settings import user_state

SIGNED = "# signed by this user's text2grad: "
KEY = "key"


def sign(text: str) -> str:
    """Return a configuration with its signature, or unchanged if no key can be stored."""
    key = _key(create=True)
    return f"{text}{SIGNED}{_digest(key, text)}\n" if key else text


def refuse_foreign_names(file: Path, config: Config, overrides: Sequence[str]) -> None:
    """Refuse an unsigned configuration that names a server or a module.

    `overrides`, settings from the command line, are trusted.

    Raises:
        UserError: the file is not signed by this user and names a server or a module.
    """
    overridden = [key for key, _ in parse_overrides(overrides)]
    foreign = [
        f"{key} {value}"
        for key, value in _leaf_texts("", config.model_dump(mode="json"))
        if _is_foreign(value) and not any(f"{key}.".startswith(f"{name}.") for name in overridden)
    ]
    if foreign and not _is_signed(file.read_text(encoding="utf-8")):
        problem = f"{file} was not written by you on this machine and names {', '.join(foreign)}"
        raise UserError(problem, f"if you trust it, add --trust or set it yourself: --{foreign[0]}")


def _is_foreign(value: str) -> bool:
    """Return True for an address and for a `module:Name` outside this package."""
    return "://" in value or (is_import_path(value) and not value.startswith("text2grad."))


def _leaf_texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (`section.key`, text) for every text in nested settings."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaf_texts(f"{key}.{name}".lstrip("."), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaf_texts(key, inner)


def _is_signed(text: str) -> bool:
    settings, _, digest = text.rpartition(SIGNED)
    key = _key()
    return bool(key) and hmac.compare_digest(_digest(key, settings).encode(), digest.strip().encode())


def _digest(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _key(create: bool = False) -> bytes:
    """Return this user's key; empty if it does not exist and cannot be created."""
    file = user_state() / KEY
    try:
        if create and not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f"{KEY}.{os.getpid()}")
            part.touch(0o600)
            part.write_bytes(secrets.token_bytes(32))
            part.replace(file)  # if two processes race, the last wins: the other's signature is then foreign
        return file.read_bytes()
    except OSError:
        return b""
