"""Derive unset settings from model, data and hardware. No torch.

The defaults of `config.sections` suit no model in particular. `derive` replaces those that no file,
recipe, preset or option has set, with a reason for each, and touches no other. The rates are for
adapters on all linear layers of SmolLM2-135M, scaled to other sizes by a rule of thumb; `RULES`
says which of them were measured.
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
    """Where the settings of a stage are; the rate of adapters on a model of `MEASURED_ON`
    parameters; the updates that it takes at least, in no fewer and no more passes over its data
    than these; and whether it reads a frozen copy of the model beside it."""

    section: str
    lr: float
    updates: int = 100
    fewest: int = 2
    most: int = 20
    reference: bool = False


RULES: dict[Supervised, Rule] = {
    "sft": Rule("sft", 1e-3),
    "reward_model": Rule("reward_model.training", 1e-3, updates=150),
    "offline": Rule("offline", 3e-4, reference=True),
}
"""The stages that learn from a fixed set of examples.

The rates of `sft` and `reward_model` were measured (39 critiques; the recipe `smollm2`). That of
`offline` is PPO's; on 48 replies it is better than 1e-3.
"""
FEW_ANSWERS, POOR_OF_FEW = 200, 4.0
"""Where `offline` has fewer answers, their poor words have this weight. Measured on 48 answers
(lab/book)."""
LEAST_LOSS = 0.1
"""Nats a token at which SFT ends where `train` samples from it. Of 48 short answers the loss falls
from 0.35 to 0.015 within 7 updates; 14 leave one answer to nearly every prompt, and 100 would
follow (lab/book). Of fewer than `FEW_ANSWERS` nothing is sampled: they are for
`train --offline`."""
PPO_LR = 3e-4
"""Of adapters on the same model; measured."""
MEASURED_ON = 135e6
"""Parameters of the model that these rates are for."""
SHRINKS, OF_ALL_WEIGHTS = 0.4, 0.1
"""A rate falls with this power of the size; that of all weights is this share of the adapters'."""
UPDATES_OF_TAGGER = 300
"""Of a reward model whose head marks the answer. Measured on 134 critiques, two seeds: after 100
updates it finds 0 and 0.22 of the good tokens, after 300 0.19 and 0.62 (lab/book)."""
ACTIVATIONS = 24
"""Numbers of 4 bytes that a layer keeps for the backward pass, for each token and each of its
`width`."""
USABLE = 0.5
"""Share of the memory that is planned with."""
GB = 2**30


@dataclass(frozen=True)
class ModelFacts:
    """The model in training: its size, its shape, and whether adapters are trained or all
    weights."""

    parameters: int
    adapters: bool
    layers: int
    width: int
    weight_bytes: int = 4


@dataclass(frozen=True)
class DataFacts:
    """Examples of a stage, and the mean tokens of their prompts and targets (0: sampled).

    An example that is a pair of answers has the tokens of both sequences.
    """

    examples: int
    prompt_tokens: int
    target_tokens: int = 0


@dataclass(frozen=True)
class MachineFacts:
    """What there is to compute with."""

    device: str
    memory_bytes: int


@dataclass(frozen=True)
class Facts:
    """All that settings are derived from."""

    model: ModelFacts
    data: DataFacts
    machine: MachineFacts


class DerivedValue(NamedTuple):
    """A value, and why."""

    value: Any
    reason: str


def derive(stage: Stage, config: Config, facts: Facts) -> dict[str, DerivedValue]:
    """The unset settings of a stage, derived, each with its reason."""
    values = _ppo(config, facts) if stage == "ppo" else _supervised(stage, config, facts)
    return {key: DerivedValue(value, reason) for key, value, reason in values if not is_set(config, key)}


def section_of(stage: Stage) -> str:
    """Where the settings of a stage are: a section, or a section of one."""
    return "ppo" if stage == "ppo" else RULES[stage].section


Values = Iterator[tuple[str, Any, str]]
"""Settings, each with its value and the reason."""


def _supervised(stage: Supervised, config: Config, facts: Facts) -> Values:
    rule, examples = RULES[stage], facts.data.examples
    section, least = rule.section, rule.updates
    if stage == "reward_model" and config.reward_model.tags:
        least = UPDATES_OF_TAGGER
    yield f"{section}.lr", _rate(rule.lr, facts.model), _sized(facts.model)
    derived = 4 if examples < 200 else 8 if examples < 2000 else 16
    yield f"{section}.batch_size", derived, f"{examples} examples"
    batch = _chosen(config, f"{section}.batch_size", derived)
    epochs = min(rule.most, max(rule.fewest, math.ceil(least * batch / max(1, examples))))
    yield f"{section}.epochs", float(epochs), f"{math.ceil(examples * epochs / batch)} updates"
    tokens = facts.data.prompt_tokens + facts.data.target_tokens
    yield f"{section}.micro_batch_size", _rows(facts, tokens, batch, rule.reference), _memory(facts.machine)
    sampled = config.critic.kind != "reward_model" or examples >= FEW_ANSWERS
    if stage == "sft" and sampled and not is_set(config, "sft.epochs"):
        yield "sft.least_loss", LEAST_LOSS, "nats a token, where answers still differ, which train samples"
    if stage == "offline" and examples < FEW_ANSWERS:
        yield "credit.poor_weight", POOR_OF_FEW, f"{examples} answers"


def _ppo(config: Config, facts: Facts) -> Values:
    machine, group = facts.machine, config.ppo.samples_per_prompt
    yield "ppo.lr", _rate(PPO_LR, facts.model), _sized(facts.model)
    device, rollouts = ("CPU", 32) if machine.device == "cpu" else ("GPU", 64)
    derived = math.ceil(rollouts / group) * group
    yield "ppo.rollouts", derived, f"a {device}"
    most = _chosen(config, "ppo.rollouts", derived)
    tokens = facts.data.prompt_tokens + config.generation.max_new_tokens
    yield "ppo.micro_batch_size", _rows(facts, tokens, most, True), _memory(machine)
    judged = tokens + config.reward_model.max_new_tokens  # a critique is sampled behind the prompt and the answer
    yield "generation.batch_size", _read_rows(facts, judged, most), _memory(machine)


def _chosen(config: Config, key: str, derived: int) -> int:
    """The user's value where it is set, else the derived one."""
    return int(value_at(config, key)) if is_set(config, key) else derived


def _rate(lr: float, model: ModelFacts) -> float:
    """The rate for a model of this size, to one digit."""
    rate = lr * min(1.0, (MEASURED_ON / model.parameters) ** SHRINKS)
    return float(f"{rate if model.adapters else rate * OF_ALL_WEIGHTS:.0e}")


def _rows(facts: Facts, tokens: int, most: int, reference: bool) -> int:
    """Examples that a forward and backward pass has room for: a power of two, at most `most`."""
    return _power_of_two(_room(facts, reference) / (max(1, tokens) * _kept_bytes(facts.model)), most)


def _read_rows(facts: Facts, tokens: int, most: int) -> int:
    """Sequences that can be sampled at a time: keys and values of every layer are kept."""
    each = 2 * facts.model.layers * facts.model.width * facts.model.weight_bytes
    return _power_of_two(_room(facts, True) / (max(1, tokens) * each), most)


def _power_of_two(count: float, most: int) -> int:
    return int(min(2 ** math.floor(math.log2(max(1.0, count))), 2 ** math.floor(math.log2(max(1, most)))))


def _room(facts: Facts, reference: bool) -> float:
    """Bytes for activations, beside the weights, what the optimizer keeps of all of them, and their
    frozen copy.

    Where adapters are trained the last two are small: what they adapt is the reference.
    """
    model = facts.model
    weights = model.parameters * model.weight_bytes
    usable = USABLE * (facts.machine.memory_bytes - weights)
    if model.adapters:
        return max(0.0, usable)
    return max(0.0, usable - 12.0 * model.parameters - (weights if reference else 0))


def _kept_bytes(model: ModelFacts) -> float:
    """Bytes that the backward pass needs, for each token."""
    return 4.0 * ACTIVATIONS * model.layers * model.width


def _sized(model: ModelFacts) -> str:
    millions = model.parameters / 1e6
    size = f"{millions:.0f}M" if millions < 1000 else f"{millions / 1000:.1f}B"
    return f"adapters on {size} parameters" if model.adapters else f"all {size} parameters"


def _memory(machine: MachineFacts) -> str:
    return f"{machine.memory_bytes / GB:.0f} GB of memory"
