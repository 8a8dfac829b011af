"""Which policy a name means: one of the run, a folder, a GGUF file, or one on the hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from text2grad.config import TINY, Config
from text2grad.errors import UserError
from text2grad.policy.files.gguf import is_gguf
from text2grad.policy.settings import PolicySettings

BASE = "base"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def start_policy(config: Config, target: str = "") -> PolicySettings:
    """The policy that a target names (`policy_name`); without one the SFT policy of this run if there is one, else
    the model of the config.
    """
    if target:
        return named_policy(config, target)
    folder = config.run.folder / "sft" / "policy"
    if folder.is_dir():
        return config.policy.model_copy(update={"model": str(folder)})
    if config.policy.model == TINY:
        raise UserError(f"no policy in {folder}", f"text2grad sft --run.folder {config.run.folder}")
    return config.policy


def named_policy(config: Config, target: str) -> PolicySettings:
    """The policy that a target names.

    Raises:
        UserError: it names none.
    """
    return config.policy.model_copy(update={"model": policy_name(config, target)})


def policy_name(config: Config, target: str) -> str:
    """The model of a target: a policy of this run, a folder or GGUF file, or one on the hub (`owner/model`).

    Raises:
        UserError: it names none of these.
    """
    if is_gguf(target) or (HUB_NAME.fullmatch(target) and not Path(target).parent.is_dir()):
        return target
    return str(find_policy(config, target))


def find_policy(config: Config, target: str) -> Path:
    """`sft`, the name of a PPO run, a model folder, or the folder of a training run with its `policy` in it."""
    run, own = config.run.folder, Path(target)
    for place in (run / target / "policy", run / "ppo" / target / "policy", own, own / "policy"):
        if place.is_dir() and (place / "tokenizer_config.json").is_file():
            return place
    known = sorted(path.parent.name for path in run.glob("ppo/*/policy"))
    raise UserError(f"no policy {target!r} in {run}", f"known: {', '.join(['sft', *known])}, or a model folder")


def policies_of(config: Config, names: Sequence[str]) -> list[tuple[str, PolicySettings]]:
    """The named policies; without names, all that the run has.

    Raises:
        UserError: there is no such policy, or the run has none.
    """
    found = list(names) or _of_run(config)
    if not found:
        cure = "--run.folder FOLDER of a run, or --with MODEL (a folder, a hub name, smollm2)"
        raise UserError(f"no policy in {config.run.folder}", cure)
    return [(name, config.policy.model_copy(update={"model": _model(config, name)})) for name in found]


def _of_run(config: Config) -> list[str]:
    run = config.run.folder
    base = [BASE] if (run / BASE).is_dir() or (run.is_dir() and config.policy.model != TINY) else []
    sft = ["sft"] if (run / "sft" / "policy").is_dir() else []
    return [*base, *sft, *sorted(path.parent.name for path in run.glob("ppo/*/policy"))]


def _model(config: Config, name: str) -> str:
    if name != BASE:
        return policy_name(config, name)
    if config.policy.model != TINY:
        return config.policy.model
    folder = config.run.folder / BASE
    if not folder.is_dir():
        raise UserError(f"no base model in {folder}", f"text2grad sft --run.folder {config.run.folder}")
    return str(folder)
