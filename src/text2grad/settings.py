"""The base of all settings, look-up by name, and the user's folders. No torch."""

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
    """Base of what is made of fields: made in Python of what does not fit, it names the first
    mistake in one line.

    Raises:
        InvalidFields: from the class itself; `model_validate` raises as pydantic does.
    """

    if not TYPE_CHECKING:  # checkers know the fields from the annotations

        def __init__(self, /, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise InvalidFields(type(self).__name__, first_error(error)) from None

        __init__.__pydantic_base_init__ = True  # as of BaseModel: what is nested is made without it


class Settings(Fields):
    """Base of all settings: immutable, unknown keys refused, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class TinyShape:
    """The size of a model made from scratch, and the tokens of its tokenizer.

    `hidden`: the size of its states; `layers`: of its trunk; `heads`: of attention; `feed_forward`:
    the size within a layer. `longest`: characters of a token. `phrases`: a token may hold several
    words; False for text whose quotes begin at any word.
    """

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 352
    longest: int = 24
    phrases: bool = True


MAY_CHANGE: dict[str, Any] = {"may_change": True}
"""Marks a field (`json_schema_extra`) that a resumed run may find changed: it says how a run is run
and not what comes of it, or what it says has a digest of its own."""


def is_set(config: Settings, key: str) -> bool:
    """Whether a file, recipe, preset or option has set `section.key`."""
    part: Any = config
    for name in key.split("."):
        given = part.model_fields_set if isinstance(part, Settings) else part if isinstance(part, Mapping) else ()
        if name not in given:
            return False
        part = part[name] if isinstance(part, Mapping) else getattr(part, name)
    return True


def value_at(config: Settings, key: str) -> Any:
    """The value of `section.key`."""
    part: Any = config
    for name in key.split("."):
        part = part[name] if isinstance(part, Mapping) else getattr(part, name)
    return part


def with_values(config: S, values: Mapping[str, Any]) -> S:
    """The configuration with some settings replaced, by `section.key`; they count as set, and no
    others."""
    for key, value in values.items():
        config = _replaced(config, key.split("."), value)
    return config


def _replaced(part: S, path: Sequence[str], value: Any) -> S:
    name, *rest = path
    return part.model_copy(update={name: _replaced(getattr(part, name), rest, value) if rest else value})


def user_cache(program: str = "text2grad") -> Path:
    """The folder in which a program keeps what it can make again: below XDG_CACHE_HOME, or
    ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / program


def user_state(program: str = "text2grad") -> Path:
    """The folder in which a program keeps what it must not lose: below XDG_STATE_HOME, or
    ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / program
