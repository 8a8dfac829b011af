"""Base classes of settings, access by dotted name, and the user's folders. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from text2grad.errors import InvalidFields, first_error

S = TypeVar("S", bound="Settings")


class Fields(BaseModel):
    """Base of models whose constructor reports the first invalid field in one line.

    Raises:
        InvalidFields: from the constructor; `model_validate` raises pydantic's error.
    """

    if not TYPE_CHECKING:  # checkers know the fields from the annotations

        def __init__(self, /, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise InvalidFields(type(self).__name__, first_error(error)) from None

        __init__.__pydantic_base_init__ = True  # as in BaseModel: nested models are made without it


class Settings(Fields):
    """Base of all settings: immutable, without unknown keys or numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class TinyShape:
    """The shape of a model made from scratch, and of its tokenizer.

    `hidden`: hidden size; `layers`, `heads`: numbers of each; `feed_forward`: intermediate size.
    `longest`: maximum characters of a token. `phrases`: a token may hold several words; False for
    text whose quotes begin at any word.
    """

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 352
    longest: int = 24
    phrases: bool = True


MAY_CHANGE: dict[str, Any] = {"may_change": True}
"""Mark (`json_schema_extra`) of a field that may differ when a run is resumed.

It does not affect results, or its content has a separate digest.
"""


def is_set(config: Settings, key: str) -> bool:
    """Return True if a file, recipe, preset or option has set `section.key`."""
    part: Any = config
    for name in key.split("."):
        names = part.model_fields_set if isinstance(part, Settings) else part if isinstance(part, Mapping) else ()
        if name not in names:
            return False
        part = part[name] if isinstance(part, Mapping) else getattr(part, name)
    return True


def value_at(config: Settings, key: str) -> Any:
    """Return the value of `section.key`."""
    part: Any = config
    for name in key.split("."):
        part = part[name] if isinstance(part, Mapping) else getattr(part, name)
    return part


def with_values(config: S, values: Mapping[str, Any]) -> S:
    """Return a configuration with settings replaced by `section.key`; only these become set."""
    for key, value in values.items():
        config = _replaced(config, key.split("."), value)
    return config


def _replaced(part: S, path: Sequence[str], value: Any) -> S:
    name, *inner = path
    return part.model_copy(update={name: _replaced(getattr(part, name), inner, value) if inner else value})


def user_cache() -> Path:
    """Return our folder for reproducible files, in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "text2grad"


def user_state() -> Path:
    """Return our folder for files that must be kept, in XDG_STATE_HOME or ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "text2grad"
