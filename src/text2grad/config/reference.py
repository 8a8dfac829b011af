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


def describe_settings(
    model: type[BaseModel] = Config, prefix: str = "", values: BaseModel | None = None
) -> Iterator[Setting]:
    """Every setting there is, in the order of the sections; `values` are the defaults of this one."""
    for name, field in model.model_fields.items():
        default = getattr(values, name) if values else field.get_default(call_default_factory=True)
        section = _section(field)
        if section is None or NoneType in accepts(field.annotation):
            meaning = (field.description or "").replace("None:", "null:")
            yield Setting(prefix + name, _kind(field.annotation), _shown(default), meaning)
        if section is not None:
            inner = default if isinstance(default, BaseModel) else None
            yield from describe_settings(section, f"{prefix}{name}.", inner)


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
        return "sections"
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
        return UsageError(f"unknown setting {key!r}", _nearest_setting(key))
    if detail["type"] == "missing":
        return UsageError(f"the setting {key!r} is missing", f"set it in the file or with --{key} VALUE")
    expected = detail["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    known = next((each for each in describe_settings() if each.key == key), None)
    cure = f"{key} is of type {known.kind}, by default {known.default}" if known else ""
    is_section = isinstance(detail["input"], dict)
    value = "" if is_section else f" = {detail['input']!r:.80}"
    return UsageError(f"{key}{value}: {expected}", cure)


<<<<<<< HEAD
=======
_RENAMED = {
    "model": ["critic.prompted.model", "critic.reward_model.folder"],
}
"""What became of the settings of `critic` or `annotate` that are in a section of a critic now, by another name."""


class RemovedSetting(NamedTuple):
    """A removed setting: the value it always has now, and what to do where another one is needed."""

    value: Any
    instead: str


_OWN_MODEL = RemovedSetting(
    None, "the run's own policy is trained: name the model as policy.model, in a run of its own"
)
_EXACT = "a reward model is read as it was trained to write; another chat model is critic.prompted"
_FINE_TUNED = ("sft", "reward_model.training")
_SUPERVISED = (*_FINE_TUNED, "scalar_model.training", "unit_model.training", "offline", "dpo.training")
REMOVED: dict[str, RemovedSetting] = {
    "scalar_model.policy": _OWN_MODEL,
    "unit_model.policy": _OWN_MODEL,
    "ppo.weight_decay": RemovedSetting(0.0, "PPO has none"),
    **{
        f"{section}.max_grad_norm": RemovedSetting(1.0, "gradients are clipped to a norm of 1")
        for section in _SUPERVISED
    },
    "ppo.max_grad_norm": RemovedSetting(1.0, "gradients are clipped to a norm of 1"),
    **{
        f"{section}.schedule": RemovedSetting("linear", "training.schedule is that of all")
        for section in _SUPERVISED
    },
    **{f"{section}.warmup": RemovedSetting(0.03, "training.warmup is that of all") for section in _SUPERVISED},
    **{
        f"{section}.weight_decay": RemovedSetting(0.0, "training.weight_decay is that of all")
        for section in _SUPERVISED
    },
    **{f"{section}.max_length": RemovedSetting(None, "it is what the model reads") for section in _SUPERVISED},
    **{f"{section}.checkpoint_every": RemovedSetting(200, "it is run.checkpoint_every") for section in _SUPERVISED},
    **{f"{section}.optimizer": RemovedSetting("adamw", "it is always adamw") for section in _SUPERVISED[2:]},
    "dpo.training.warmup": RemovedSetting(0.1, "training.warmup is that of all"),
    "ppo.checkpoint_every": RemovedSetting(20, "it is run.checkpoint_every"),
    "ppo.samples_every": RemovedSetting(5, "it is always 5"),
    "ppo.entropy_sign": RemovedSetting("bonus", "the sign as printed is an ppo.entropy_coefficient below 0"),
    "reward_model.policy.device": RemovedSetting("auto", "it is policy.device"),
    "reward_model.policy.chat_template": RemovedSetting(None, "it is that of its tokenizer"),
    "reward_model.policy.value_head": RemovedSetting("shared", "a reward model has none"),
    "reward_model.generation.max_turns": RemovedSetting(8, "a critique is one turn"),
    "reward_model.generation.max_length": RemovedSetting(None, "a critique is one turn"),
    "scalar_model.batch_size": RemovedSetting(32, "it is always 32"),
    "unit_model.batch_size": RemovedSetting(32, "it is always 32"),
    "critic.reward_model.validation": RemovedSetting("keep", _EXACT),
    "critic.reward_model.repair": RemovedSetting(False, _EXACT),
    "critic.reward_model.locate": RemovedSetting(None, _EXACT),
    "critic.prompted.vote_share": RemovedSetting(0.5, "the majority"),
    "critic.reward_model.vote_share": RemovedSetting(0.5, "the majority"),
    "ppo.kl_horizon": RemovedSetting(10_000, "it is always 10,000"),
    "annotate.max_characters": RemovedSetting(100_000, "it is always 100,000"),
    "evaluate.bertscore.layer": RemovedSetting(None, "it is that of the bert-score package, else the last"),
    "evaluate.bertscore.baseline": RemovedSetting(
        None, "it is that of the bert-score package for roberta-large, else none"
    ),
    "evaluate.bertscore.batch_size": RemovedSetting(32, "it is always 32"),
}
"""Files of earlier versions name these settings: one with the value it has now is passed over."""


>>>>>>> c6c14c9f (Reference of settings and tests without votes)
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
