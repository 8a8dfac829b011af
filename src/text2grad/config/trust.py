"""Tell the configurations that this user's runs recorded from those of strangers.

A run folder can come from anybody, and its `config.yaml` may name a server, which would get the
user's key and texts, or a module to import. Both are followed without a question only in a file
that this user's text2grad wrote: its last line is a digest of the rest under a key that never
leaves the user's state folder.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from text2grad.config.loading import pairs_of
from text2grad.config.sections import Config
from text2grad.errors import UserError
from text2grad.named import is_own_name
from text2grad.settings import user_state

SIGNED = "# signed by this user's text2grad: "
KEY = "key"


def sign(text: str) -> str:
    """Return a configuration with its signature; as it was where no key can be kept."""
    key = _key(create=True)
    return f"{text}{SIGNED}{_digest(key, text)}\n" if key else text


def refuse_foreign_names(file: Path, config: Config, overrides: Sequence[str]) -> None:
    """Refuse a configuration, read from `file` with `overrides`, that makes this machine do what a
    stranger wrote.

    Settings that the command line gives are the user's.

    Raises:
        UserError: the file is not signed by this user, and names a server or a module.
    """
    overridden = [key for key, _ in pairs_of(overrides)]
    foreign = [
        f"{key} {value}"
        for key, value in _leaves("", config.model_dump(mode="json"))
        if _reaches_out(value) and not any(f"{key}.".startswith(f"{name}.") for name in overridden)
    ]
    if foreign and not _is_signed(file.read_text(encoding="utf-8")):
        problem = f"{file} was not written by you on this machine, and names {', '.join(foreign)}"
        raise UserError(problem, f"if you trust it: --trust, or give it yourself: --{foreign[0]}")


def _reaches_out(value: str) -> bool:
    """True for an address, and for `module:Name` outside this package."""
    return "://" in value or (is_own_name(value) and not value.startswith("text2grad."))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of nested settings by `section.key`."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}".lstrip("."), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(key, inner)


def _is_signed(text: str) -> bool:
    settings, _, digest = text.rpartition(SIGNED)
    key = _key()
    return bool(key) and hmac.compare_digest(_digest(key, settings).encode(), digest.strip().encode())


def _digest(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _key(create: bool = False) -> bytes:
    """Return the key of this user; empty if there is none, or none can be written."""
    file = user_state() / KEY
    try:
        if create and not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f"{KEY}.{os.getpid()}")
            part.touch(0o600)
            part.write_bytes(secrets.token_bytes(32))
            part.replace(file)  # of two processes the last wins: what the first signed is a stranger's
        return file.read_bytes()
    except OSError:
        return b""
