"""The base of all settings, look-up by name, the YAML they are written in, and the user's cache. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

DEEPEST_YAML, MOST_YAML = 50, 100_000
"""Levels, and values with every alias written out, of a YAML text that is read."""


S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Base of all settings: immutable, unknown keys refused.

    A section that is given in part keeps the rest of its own default, not of its class.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {name: _over(defaults.get(name), value) for name, value in given.items()}


def _over(default: object, given: Any) -> Any:
    """What is given of a section, over what its default says otherwise than its class does."""
    if not (isinstance(given, dict) and isinstance(default, Settings)):
        return given
    own = {name: getattr(default, name) for name in default.model_fields_set}
    return own | {name: _over(own.get(name), value) for name, value in given.items()}


MAY_CHANGE: dict[str, Any] = {"may_change": True}
"""Marks a field (`json_schema_extra`) that a resumed run may find changed: it says how a run is run and not what
comes of it, or what it says has a digest of its own."""


def is_set(config: Settings, key: str) -> bool:
    """Whether a file, recipe, preset or option has set `section.key`."""
    part: Any = config
    for name in key.split("."):
        if not isinstance(part, Settings) or name not in part.model_fields_set:
            return False
        part = getattr(part, name)
    return True


def value_at(config: Settings, key: str) -> Any:
    """The value of `section.key`."""
    part: Any = config
    for name in key.split("."):
        part = getattr(part, name)
    return part


def with_values(config: S, values: Mapping[str, Any]) -> S:
    """The configuration with some settings replaced, by `section.key`; they count as set, and no others."""
    for key, value in values.items():
        config = _replaced(config, key.split("."), value)
    return config


def _replaced(part: S, path: Sequence[str], value: Any) -> S:
    name, *rest = path
    return part.model_copy(update={name: _replaced(getattr(part, name), rest, value) if rest else value})


def user_cache(program: str = "text2grad") -> Path:
    """The folder in which a program keeps what it can make again: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / program


class YAMLMistakeError(ValueError):
    """What is wrong with a YAML text, and in which line (from 1), where that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, read strictly: no Python objects, no key twice.

    `1:30` is text and `010` is ten; YAML 1.1 reads them in base 60 and base 8.

    Raises:
        YAMLMistakeError: it is not such a text, is nested deeper than `DEEPEST_YAML`, or has more than `MOST_YAML`
            values.
    """
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        _check_size(node)
        return loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YAMLMistakeError(str(error.problem), line) from error
    except yaml.YAMLError as error:
        raise YAMLMistakeError(str(error).splitlines()[0]) from error
    except RecursionError:
        raise YAMLMistakeError("nested too deeply") from None


class _StrictLoader(yaml.SafeLoader):
    """YAML without Python objects, repeated keys, and numbers in base 60 or 8."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class above
        first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] not in ("int", "float")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # the 31st of February, a number of thousands of digits
            problem = f"not a value: {str(error).partition(';')[0]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"),
    list("-+0123456789"),
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _check_size(root: yaml.Node | None) -> None:
    """Refuse what is nested too deeply, or grows without end when its aliases are written out."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > DEEPEST_YAML:
            raise YAMLMistakeError("nested too deeply")
        if count > MOST_YAML:
            raise YAMLMistakeError(f"more than {MOST_YAML:,} values")
        if isinstance(node, yaml.MappingNode):
            waiting += [(each, depth + 1) for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(each, depth + 1) for each in node.value]
