"""Resolve the configuration before a stage trains: unset settings are derived once, reported and kept.

The same command in the same folder finds what was kept (`derived.json`) while model and data are what they were,
whatever memory is free by then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch
from pydantic import ValidationError

from text2grad.config import TINY, Config
from text2grad.config.derive import (
    DataFacts,
    DerivedValue,
    Facts,
    MachineFacts,
    ModelFacts,
    Stage,
    derive,
    section_of,
)
from text2grad.durable.processes import Ranks
from text2grad.durable.run import CHECKPOINTS, ResumeMode
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.model import Policy
from text2grad.settings import is_set, with_values
from text2grad.stages.run.results import write_json
from text2grad.train.pairs import Pair

DERIVED_FILE = "derived.json"
DERIVED_AGAIN = "remove it: they are derived again"
COUNTED = 64
"""Examples whose tokens are counted, of many."""


def resolved_config(
    config: Config, stage: Stage, place: Path, policy: Policy, data: DataFacts, resume: ResumeMode, ranks: Ranks
) -> Config:
    """The configuration with a value for every setting of the stage; each of several processes calls this.

    `place` is the folder of the stage. What was derived for the models that SFT and `train-reward` left in the run
    is taken over too, so that the run's configuration says it. A tiny model is made for its preset and gets
    nothing; neither does a run that began before its settings were derived.

    Raises:
        UserError: what was kept cannot be read, or does not fit the configuration.
    """
    if config.policy.model == TINY:
        return config
    with ranks.barrier():
        own = _values(config, stage, place, policy, data, resume) if ranks.first else {}
        found = _of_other_stages(config, stage) | own
    return with_values(config, ranks.broadcast(found))


def _of_other_stages(config: Config, stage: Stage) -> dict[str, Any]:
    """What was derived for the other models of the run."""
    kept = [config.run.folder / name / DERIVED_FILE for name in ("sft", "reward_model")]
    found = {key: each.value for path in kept for key, each in (_read(path, {}, config) or {}).items()}
    return {key: value for key, value in found.items() if not key.startswith(f"{section_of(stage)}.")}


def _values(
    config: Config, stage: Stage, place: Path, policy: Policy, data: DataFacts, resume: ResumeMode
) -> dict[str, Any]:
    """The derived values by setting: those that were kept, or new ones, which are kept. Says so on stderr."""
    kept = place / DERIVED_FILE
    if resume != "restart" and (place / CHECKPOINTS).is_dir() and not kept.is_file():
        return {}
    facts = Facts(model_facts(policy), data, machine_facts(policy))
    same = {"stage": stage, "model": asdict(facts.model), "data": asdict(data)}
    found = _read(kept, same, config)
    if found is None:
        found = derive(stage, config, facts)
        settings = {key: list(each) for key, each in found.items()}
        write_json(kept, {"from": {**same, "machine": asdict(facts.machine)}, "settings": settings})
    for line in derivation_lines(found, kept):
        print(line, file=sys.stderr)
    return {key: each.value for key, each in found.items()}


def _read(kept: Path, same: Mapping[str, Any], config: Config) -> dict[str, DerivedValue] | None:
    """What was kept and nobody has set since, unless it was derived for another stage, from another model or data.

    Raises:
        UserError: it cannot be read, or does not fit the configuration.
    """
    if not kept.is_file():
        return None
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        if any(found["from"].get(name, value) != value for name, value in same.items()):
            return None
        settings = {key: DerivedValue(*each) for key, each in found["settings"].items() if not is_set(config, key)}
        full = with_values(config, {key: each.value for key, each in settings.items()})
        Config.model_validate(full.model_dump(warnings=False))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise UserError(f"{kept} does not fit: {where}: {problem['msg']}", DERIVED_AGAIN) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{kept} is not a list of derived settings", DERIVED_AGAIN) from error
    return settings


def derivation_lines(chosen: Mapping[str, DerivedValue], kept: Path) -> list[str]:
    """What was derived and why, and where it is kept."""
    if not chosen:
        return []
    words = ", ".join(f"{key} {each.value:g} ({each.reason})" for key, each in chosen.items())
    where = f"  kept in {kept}; any can be set: --{next(iter(chosen))} VALUE"
    return [f"derived settings: {words}", where]


def model_facts(policy: Policy) -> ModelFacts:
    """The size and shape of a policy in training."""
    config = policy.model.config.get_text_config()
    weights = list(policy.model.parameters())
    adapters = any(not weight.requires_grad for weight in weights)
    counted = sum(weight.numel() for weight in weights if weight.requires_grad != adapters)
    return ModelFacts(
        parameters=counted,
        adapters=adapters,
        layers=int(config.num_hidden_layers),
        width=policy.hidden_size,
        weight_bytes=weights[0].element_size(),
    )


def machine_facts(policy: Policy) -> MachineFacts:
    """Free memory where the policy lives."""
    device = policy.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return MachineFacts(device.type, torch.get_num_threads(), int(free))


def facts_of_pairs(policy: Policy, pairs: Sequence[Pair]) -> DataFacts:
    """How many pairs there are to learn, and their mean tokens, counted on the first ones."""
    first = pairs[:COUNTED]
    prompts = [len(encode_prompt(policy.tokenizer, pair.prompt)) for pair in first]
    targets = [len(encode_target(policy.tokenizer, pair.target)) for pair in first]
    return DataFacts(len(pairs), _mean(prompts), _mean(targets))


def facts_of_prompts(policy: Policy, examples: Sequence[Example]) -> DataFacts:
    """How many prompts there are to answer, and their mean tokens, counted on the first ones."""
    first = examples[:COUNTED]
    return DataFacts(len(examples), _mean([len(encode_prompt(policy.tokenizer, each.prompt)) for each in first]))


def _mean(counts: Sequence[int]) -> int:
    return round(sum(counts) / max(1, len(counts)))
