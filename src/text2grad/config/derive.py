"""Derive unset settings from the model, the data and the hardware. Imports no torch.

The defaults of `config.sections` are not tuned to any model. `derive` replaces those that no file,
recipe, preset or option has set, gives a reason for each, and touches no other. The learning rates
are for adapters on all linear layers of SmolLM2-135M and are scaled to other sizes by a rule of
thumb. The docstring of `RULES` lists the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from text2grad.config.sections import Config
from text2grad.settings import is_set, value_at

Supervised = Literal["sft", "reward_model", "offline"]
Stage = Literal[Supervised, "ppo"]


class Rule(NamedTuple):
    """Defaults of a supervised stage.

    `section` holds its settings. `lr` is for adapters on a model of `MEASURED_ON` parameters. The
    stage makes at least `min_updates` updates, within `min_epochs` and `max_epochs` passes over its
    data. `has_reference`: it also runs a frozen copy of the model.
    """

    section: str
    lr: float
    min_updates: int = 100
    min_epochs: int = 2
    max_epochs: int = 20
    has_reference: bool = False


RULES: dict[Supervised, Rule] = {
    "sft": Rule("sft", 1e-3),
    "reward_model": Rule("reward_model.training", 1e-3, min_updates=150),
    "offline": Rule("offline", 3e-4, has_reference=True),
}
"""The stages that learn from a fixed set of examples.

The rates of `sft` and `reward_model` were measured (39 critiques; the recipe `smollm2`). The rate
of `offline` is that of PPO; on 48 replies it is better than 1e-3.
"""
FEW_ANSWERS, FEW_ANSWERS_POOR_WEIGHT = 200, 4.0
"""Weight of poor words in `offline` with fewer than `FEW_ANSWERS` answers. Measured on 48 answers
(lab/book)."""
LEAST_LOSS = 0.1
"""Loss, in nats per token, at which SFT ends if `train` samples from the result.

With 48 short answers the loss falls from 0.35 to 0.015 within 7 updates. After 14 of the planned
100, nearly every prompt has a single answer left (lab/book). With fewer than `FEW_ANSWERS` records
nothing is sampled: use `train --offline`.
"""
PPO_LR = 3e-4
"""Learning rate of PPO for adapters on the same model; measured."""
MEASURED_ON = 135e6
"""Parameters of the model that the learning rates were measured on."""
SIZE_EXPONENT, FULL_WEIGHTS_FACTOR = 0.4, 0.1
"""Learning rates fall with this power of the model size; training all weights uses this share."""
TAGGER_UPDATES = 300
"""Minimum updates of a reward model of the kind `tagger`.

Measured on 134 critiques with two seeds: 100 updates find 0 and 0.22 of the good tokens, 300 find
0.19 and 0.62 (lab/book).
"""
ACTIVATIONS = 24
"""Numbers of 4 bytes kept for the backward pass, per layer, token and unit of `width`."""
USABLE_MEMORY = 0.5
"""Share of the memory that batch sizes are planned for."""
GB = 2**30


@dataclass(frozen=True)
class ModelFacts:
    """The model in training: its size, its shape, and if adapters or all weights are trained."""

    parameters: int
    adapters: bool
    layers: int
    width: int
    weight_bytes: int = 4


@dataclass(frozen=True)
class DataFacts:
    """The number of examples of a stage, and the mean tokens of a prompt and a target (0: sampled).

    An example that is a pair of answers has the tokens of both sequences.
    """

    examples: int
    prompt_tokens: int
    target_tokens: int = 0


@dataclass(frozen=True)
class MachineFacts:
    """The hardware: the type of device and the size of its memory."""

    device: str
    memory_bytes: int


@dataclass(frozen=True)
class Facts:
    """Everything that settings are derived from."""

    model: ModelFacts
    data: DataFacts
    machine: MachineFacts


class DerivedValue(NamedTuple):
    """A derived value and the reason for it."""

    value: Any
    reason: str


def derive(stage: Stage, config: Config, facts: Facts) -> dict[str, DerivedValue]:
    """Return the derived values of a stage's unset settings, by `section.key`."""
    values = _ppo(config, facts) if stage == "ppo" else _supervised(stage, config, facts)
    return {key: DerivedValue(value, reason) for key, value, reason in values if not is_set(config, key)}


def section_of(stage: Stage) -> str:
    """Return the dotted name of the section with a stage's settings."""
    return "ppo" if stage == "ppo" else RULES[stage].section


Values = Iterator[tuple[str, Any, str]]
"""Settings by `section.key`, with value and reason."""


def _supervised(stage: Supervised, config: Config, facts: Facts) -> Values:
    rule, examples = RULES[stage], facts.data.examples
    section, min_updates = rule.section, rule.min_updates
    if stage == "reward_model" and config.reward_model.tags:
        min_updates = TAGGER_UPDATES
    yield f"{section}.lr", _scale_lr(rule.lr, facts.model), _describe_model(facts.model)
    derived = 4 if examples < 200 else 8 if examples < 2000 else 16
    yield f"{section}.batch_size", derived, f"{examples} examples"
    batch = _set_or_derived(config, f"{section}.batch_size", derived)
    epochs = min(rule.max_epochs, max(rule.min_epochs, math.ceil(min_updates * batch / max(1, examples))))
    yield f"{section}.epochs", float(epochs), f"{math.ceil(examples * epochs / batch)} updates"
    tokens = facts.data.prompt_tokens + facts.data.target_tokens
    rows = _trainable_rows(facts, tokens, batch, rule.has_reference)
    yield f"{section}.micro_batch_size", rows, _describe_memory(facts.machine)
    is_sampled = config.critic.kind != "reward_model" or examples >= FEW_ANSWERS
    if stage == "sft" and is_sampled and not is_set(config, "sft.epochs"):
        yield "sft.least_loss", LEAST_LOSS, "nats per token; below it, samples hardly differ"
    if stage == "offline" and examples < FEW_ANSWERS:
        yield "credit.poor_weight", FEW_ANSWERS_POOR_WEIGHT, f"{examples} answers"


def _ppo(config: Config, facts: Facts) -> Values:
    machine, group = facts.machine, config.ppo.samples_per_prompt
    yield "ppo.lr", _scale_lr(PPO_LR, facts.model), _describe_model(facts.model)
    device, rollouts = ("CPU", 32) if machine.device == "cpu" else ("GPU", 64)
    derived = math.ceil(rollouts / group) * group
    yield "ppo.rollouts", derived, f"a {device}"
    max_rows = _set_or_derived(config, "ppo.rollouts", derived)
    tokens = facts.data.prompt_tokens + config.generation.max_new_tokens
    yield "ppo.micro_batch_size", _trainable_rows(facts, tokens, max_rows, True), _describe_memory(machine)
    judged_tokens = tokens + config.reward_model.max_new_tokens  # the critique follows prompt and answer
    yield "generation.batch_size", _sampled_rows(facts, judged_tokens, max_rows), _describe_memory(machine)


def _set_or_derived(config: Config, key: str, derived: int) -> int:
    return int(value_at(config, key)) if is_set(config, key) else derived


def _scale_lr(lr: float, model: ModelFacts) -> float:
    """Scale a learning rate to the size of the model, rounded to one digit."""
    scaled = lr * min(1.0, (MEASURED_ON / model.parameters) ** SIZE_EXPONENT)
    return float(f"{scaled if model.adapters else scaled * FULL_WEIGHTS_FACTOR:.0e}")


def _trainable_rows(facts: Facts, tokens: int, max_rows: int, has_reference: bool) -> int:
    """Return how many examples fit in one forward and backward pass, as a power of two."""
    bytes_per_token = 4.0 * ACTIVATIONS * facts.model.layers * facts.model.width
    return _power_of_two(_free_bytes(facts, has_reference) / (max(1, tokens) * bytes_per_token), max_rows)


def _sampled_rows(facts: Facts, tokens: int, max_rows: int) -> int:
    """Return how many sequences can be sampled at once with the keys and values of every layer."""
    bytes_per_token = 2 * facts.model.layers * facts.model.width * facts.model.weight_bytes
    return _power_of_two(_free_bytes(facts, True) / (max(1, tokens) * bytes_per_token), max_rows)


def _power_of_two(count: float, most: int) -> int:
    return int(min(2 ** math.floor(math.log2(max(1.0, count))), 2 ** math.floor(math.log2(max(1, most)))))


def _free_bytes(facts: Facts, has_reference: bool) -> float:
    """Return the bytes left for activations.

    The weights are subtracted, and if all of them are trained also the optimizer state and a frozen
    reference. Adapters keep little state, and their base model is the reference.
    """
    model = facts.model
    weights = model.parameters * model.weight_bytes
    usable = USABLE_MEMORY * (facts.machine.memory_bytes - weights)
    if model.adapters:
        return max(0.0, usable)
    return max(0.0, usable - 12.0 * model.parameters - (weights if has_reference else 0))


def _describe_model(model: ModelFacts) -> str:
    millions = model.parameters / 1e6
    size = f"{millions:.0f}M" if millions < 1000 else f"{millions / 1000:.1f}B"
    return f"adapters on {size} parameters" if model.adapters else f"all {size} parameters"


def _describe_memory(machine: MachineFacts) -> str:
    return f"{machine.memory_bytes / GB:.0f} GB of memory"
