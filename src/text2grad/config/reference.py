"""The reference of all settings, and what a mistyped one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from text2grad.config.sections import Config
from text2grad.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """One line of the reference: `ppo.lr`, its type and default in words, and what it means."""

    key: str
    kind: str
    default: str
    meaning: str


def describe_settings(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Setting]:
    """Every setting there is, in the order of the sections."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        section = _section(field)
        if section is None or NoneType in accepts(field.annotation):
            meaning = (field.description or "").replace("None:", "null:")
            yield Setting(prefix + name, _kind(field.annotation), _shown(default), meaning)
        if section is not None:
            yield from describe_settings(section, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kinds = [kind for kind in accepts(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return kinds[0] if kinds else None


def accepts(annotation: Any) -> set[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*(accepts(part) for part in get_args(annotation)))
    return {annotation}


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(_kind(part) for part in get_args(annotation))
    if get_origin(annotation) is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    if get_origin(annotation) is dict:
        return "sections" if get_origin(get_args(annotation)[1]) is dict else "mapping"
    if get_origin(annotation) is not None:
        return f"list of {_kind(get_args(annotation)[0])}"
    words = {NoneType: "null", str: "text", Path: "path"}
    name = words.get(annotation, annotation.__name__)
    return "section" if isinstance(annotation, type) and issubclass(annotation, BaseModel) else name


def _shown(default: Any) -> str:
    if default is None or default is PydanticUndefined:
        return "null" if default is None else "(required)"
    return f"[{', '.join(map(str, default))}]" if isinstance(default, tuple) else str(default)


def suggestion(word: str, known: Sequence[str], prefix: str = "") -> str:
    """`did you mean 'x'?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {prefix + near[0]!r}?" if near else ""


def section_at(key: str) -> type[BaseModel] | None:
    """The model behind a dotted section; the whole configuration is the section without a name."""
    model: type[BaseModel] | None = Config
    for part in filter(None, key.split(".")):
        model = _section(model.model_fields[part]) if model and part in model.model_fields else None
    return model


def explain(error: ValidationError) -> UsageError:
    """The first problem as one line."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        section, dot, name = str(detail["loc"][-1]).rpartition(".")
        cure = f"write {section}: {{{name}: VALUE}} in a file" if dot else _nearest_setting(key)
        return UsageError(f"unknown setting {key!r}", cure)
    if detail["type"] == "missing":
        return UsageError(f"the setting {key!r} is missing", f"set it in the file or with --{key} VALUE")
    expected = detail["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    known = next((each for each in describe_settings() if each.key == key), None)
    cure = f"{key} is of type {known.kind}, by default {known.default}" if known else ""
    is_section = isinstance(detail["input"], dict)
    value = "" if is_section else f" = {detail['input']!r:.80}"
    return UsageError(f"{key}{value}: {expected}", cure)


_ELSEWHERE = {
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
"""What settings are called in other programs -> what they are called here, in whatever section."""


def _nearest_setting(key: str) -> str:
    section, _, last = key.rpartition(".")
    siblings = list((section_at(section) or Config).model_fields)
    if (ours := _ELSEWHERE.get(last)) in siblings:
        return f"did you mean {f'{section}.{ours}'.lstrip('.')!r}?"
    if near := suggestion(last, siblings, f"{section}." if section else ""):
        return near
    namesakes = [setting.key for setting in describe_settings() if setting.key.rpartition(".")[2] == last]
    if namesakes:
        return f"did you mean {' or '.join(map(repr, namesakes))}?"
    return f"{section} has {', '.join(siblings)}" if section else f"sections are {', '.join(siblings)}"
