"""List all settings, and suggest the right name for a mistyped one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from text2grad.config.sections import Config
from text2grad.errors import UsageError, closest


@dataclass(frozen=True)
class Setting:
    """A setting such as `ppo.lr`: its key, its type and default as text, and its meaning."""

    key: str
    kind: str
    default: str
    meaning: str


def describe_settings(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting in the order of the sections."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        section = _section(field)
        if section is None or NoneType in union_members(field.annotation):
            meaning = field.description or ""
            yield Setting(prefix + name, _type_text(field.annotation), _default_text(default), meaning)
        if section is not None:
            yield from describe_settings(section, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kinds = [
        kind for kind in union_members(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]
    return kinds[0] if kinds else None


def union_members(annotation: Any) -> set[Any]:
    """Return the types that a union allows; any other annotation is its only member."""
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*(union_members(part) for part in get_args(annotation)))
    return {annotation}


def _type_text(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(_type_text(part) for part in get_args(annotation))
    if get_origin(annotation) is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    if get_origin(annotation) is dict:
        return "sections" if get_origin(get_args(annotation)[1]) is dict else "mapping"
    if get_origin(annotation) is not None:
        return f"list of {_type_text(get_args(annotation)[0])}"
    words = {NoneType: "null", str: "text", Path: "path"}
    name = words.get(annotation, annotation.__name__)
    return "section" if isinstance(annotation, type) and issubclass(annotation, BaseModel) else name


def _default_text(default: Any) -> str:
    if default is None or default is PydanticUndefined:
        return "null" if default is None else "(required)"
    return f"[{', '.join(map(str, default))}]" if isinstance(default, tuple) else str(default)


def section_at(key: str) -> type[BaseModel] | None:
    """Return the class of a dotted section, or None; the empty key is the whole configuration."""
    model: type[BaseModel] | None = Config
    for part in filter(None, key.split(".")):
        model = _section(model.model_fields[part]) if model and part in model.model_fields else None
    return model


def explain(error: ValidationError) -> UsageError:
    """Turn the first problem of a validation into a one-line error with its cure."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        section, dot, name = str(detail["loc"][-1]).rpartition(".")
        cure = f"write {section}: {{{name}: VALUE}} in a file" if dot else _nearest_setting(key)
        return UsageError(f"unknown setting {key!r}", cure)
    if detail["type"] == "missing":
        return UsageError(f"the setting {key!r} is missing", f"set it in the file or with --{key} VALUE")
    expected = detail["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    setting = next((setting for setting in describe_settings() if setting.key == key), None)
    cure = f"{key} is of type {setting.kind}, by default {setting.default}" if setting else ""
    is_section = isinstance(detail["input"], dict)
    value = "" if is_section else f" = {detail['input']!r:.80}"
    return UsageError(f"{key}{value}: {expected}", cure)


_ALIASES = {
    "learning_rate": "lr",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "num_steps": "steps",
    "max_steps": "steps",
    "kl_coef": "kl",
    "train_batch_size": "batch_size",
    "bs": "batch_size",
    "name": "model",
    "model_name": "model",
    "dataset": "data",
    "path": "data",
}
"""Names of settings in other programs -> their names here, in any section."""


def _nearest_setting(key: str) -> str:
    section, _, last = key.rpartition(".")
    siblings = list((section_at(section) or Config).model_fields)
    alias = _ALIASES.get(last)
    if name := alias if alias in siblings else closest(last, siblings):
        return f"did you mean {f'{section}.{name}'.lstrip('.')!r}?"
    namesakes = [setting.key for setting in describe_settings() if setting.key.rpartition(".")[2] == last]
    if namesakes:
        return f"did you mean {' or '.join(map(repr, namesakes))}?"
    return f"{section} has {', '.join(siblings)}" if section else f"sections are {', '.join(siblings)}"
