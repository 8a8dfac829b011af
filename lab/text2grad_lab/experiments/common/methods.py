"""The methods of an experiment that the lab's `compare` runs: a preset with recipes and settings laid over it.

A method is named by its parts, joined by +: `text2grad` and `scalar` alone, or `scalar+values`,
`poor_half+kl_0.05`. A part is a recipe that comes with the package (`scalar`, `grpo`, `paper`) or one of `PARTS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from text2grad.config import Config, recipe_names
from text2grad_lab.compare.methods import METHODS

PARTS: dict[str, dict[str, object]] = {
    "text2grad": {},
    "values": {"ppo.advantage": "gae", "ppo.value_lr": 1e-3},
    "no_warmup": {"ppo.value_warmup": 0},
    "returns": {"ppo.advantage": "returns"},
    "k1": {"ppo.kl": "k1"},
    "separate_critic": {"policy.value_head": "separate"},
    "group": {"ppo.advantage": "group", "ppo.samples_per_prompt": 4},
    "group_of_8": {"ppo.advantage": "group", "ppo.samples_per_prompt": 8},
    "eight": {"ppo.samples_per_prompt": 8},
    "unmasked": {"ppo.mask_truncated": False},  # answers that run into the token limit are learned from
    "unequal": {"ppo.samples_per_prompt": 8, "ppo.drop_equal_groups": True},
    "shared": {"ppo.lost_groups": "shared"},  # blame, where all answers to a prompt fail
    "paid": {"ppo.lost_groups": "paid"},  # there as anywhere
    "spread_score": {"credit.scheme": "spread_score"},
    "span": {"credit.weighting": "span"},
    "balanced": {"credit.weighting": "balanced"},
    "linear_decay": {"credit.scheme": "text2grad_lab.baselines.schemes:linear_decay"},
    "token_importance": {"credit.scheme": "text2grad_lab.baselines.schemes:token_importance"},
    "nouns_verbs": {"credit.scheme": "text2grad_lab.baselines.schemes:nouns_verbs"},
    "no_verdict": {"credit.outcome_weight": 0.0},
    "verdict_0.5": {"credit.outcome_weight": 0.5},
    "verdict_2": {"credit.outcome_weight": 2.0},
    "verdict_signs": {"credit.scheme": "text2grad_lab.schemes:verdict_signs"},
    "poor_half": {"credit.poor_weight": 0.5},
    "poor_quarter": {"credit.poor_weight": 0.25},
    "gamma_1": {"ppo.gamma": 1.0},
    "gamma_0.9": {"ppo.gamma": 0.9},
    "gamma_0.5": {"ppo.gamma": 0.5},
    "lam_1": {"ppo.lam": 1.0},
    "definition_1": {"ppo.gamma": 0.0, "ppo.lam": 0.0},
    "full_kl": {"ppo.kl": "full", "ppo.kl_coefficient": 0.4},
    **{
        f"kl_{coefficient}": {"ppo.kl_coefficient": coefficient} for coefficient in (0.01, 0.05, 0.1, 0.2, 0.4, 0.8)
    },
    **{
        f"lr_{rate}": {"ppo.lr": float(rate)} for rate in ("0.00003", "0.0001", "0.00015", "0.0003", "0.0006")
    },  # a rate of its own
    "whiten": {"ppo.normalisation": "whiten"},
    "not_normalised": {"ppo.normalisation": "none"},
    "linear": {"ppo.schedule": "linear"},
    "constant": {"ppo.schedule": "constant"},
    "grounded": {"reward_model.grounded": "on"},  # its quotes are forced into place
}
Preset = Callable[[Sequence[str], Sequence[str]], Config]
"""Recipes and options that are laid over a preset -> the configuration."""
SECTIONS = ("policy", "reward_model", "critic", "credit", "ppo")
NAMED = ("methods", "curves", "rates")
"""What a comparison tells method by method."""


def method(name: str) -> str:
    """A method's name, if all of its parts are known."""
    if unknown := set(name.split("+")) - PARTS.keys() - set(recipe_names()):
        known = ", ".join([*PARTS, *recipe_names()])
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}; known: {known}")
    return name


def method_of(
    arm: str, folder: Path, preset: Preset, more: Mapping[str, Mapping[str, object]] | None = None
) -> str:
    """What `compare` calls a method: its name there, or a recipe file, written here, with all of its parts.

    `more`: parts beside `PARTS`.
    """
    if arm in METHODS:
        return arm
    parts, known = arm.split("+"), {**PARTS, **(more or {})}
    changes = {key: value for part in parts for key, value in known.get(part, {}).items()}
    words = [f"--{key}={value}" for key, value in changes.items()]
    return written(arm, folder, preset([part for part in parts if part in recipe_names()], words))


def written(arm: str, folder: Path, whole: Config) -> str:
    """The recipe file of a method: what is set in the sections that methods differ in."""
    path: Path = folder / "methods" / f"{file_name(arm)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = whole.model_dump(mode="json", include=set(SECTIONS), exclude_unset=True)
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return str(path)


def file_name(arm: str) -> str:
    """What the recipe file of a method is called, and so its run."""
    return arm.replace("+", "-")


def by_arm(found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a comparison under the names that methods have here."""
    named = {part: {name.replace("-", "+"): row for name, row in found[part].items()} for part in NAMED}
    return {**found, **named, "collapsed": [each.replace("-", "+") for each in found["collapsed"]]}
