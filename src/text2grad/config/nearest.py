"""How the settings of a run differ from those of the preset that they are nearest to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from text2grad.config.loading import find_config, load_config, preset_names
from text2grad.errors import UserError

OF_A_RUN = ("run.", "task.seed")
"""Settings that differ from run to run."""
MOST = 12
"""Settings that are named."""


def difference_from_preset(run: Path) -> str:
    """For example `demo, and ppo.lr 0.001`; empty where the run has no readable settings."""
    try:
        own = dict(_leaves(load_config(run / "config.yaml").model_dump(mode="json")))
    except UserError:
        return ""
    apart = {name: [key for key, value in own.items() if preset.get(key) != value] for name, preset in _presets()}
    name = min(apart, key=lambda each: len(apart[each]))
    named = [f"{key} {own[key]}" for key in apart[name][:MOST]]
    more = [f"{len(apart[name]) - MOST} more"] if len(apart[name]) > MOST else []
    return f"preset {name}" + (f", but {', '.join([*named, *more])}" if named else "")


@cache
def _presets() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    configs = ((name, load_config(find_config(name))) for name in preset_names())
    return tuple((name, dict(_leaves(config.model_dump(mode="json")))) for name, config in configs)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{key}.{name}".lstrip("."))
    elif not key.startswith(OF_A_RUN):
        yield key, value
