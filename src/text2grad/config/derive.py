"""Settings that nobody set, from what is there: the model, the examples, the machine. No torch.

The defaults of `config.sections` suit no model in particular. `derive` replaces those that no file, recipe, preset
or option has set, with a reason for each, and touches no other. The rates are those that worked for adapters on all
linear layers of SmolLM2-135M (39 critiques; the recipe `smollm2`), scaled to other sizes by a rule of thumb.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from text2grad.config.sections import Config
from text2grad.settings import Settings

S = TypeVar("S", bound=Settings)
Stage = Literal["sft", "reward_model", "ppo"]

MEASURED_ON = 135e6
"""Parameters of the model that the rates below were measured on."""
SUPERVISED_LR, PPO_LR = 1e-3, 3e-4
"""Learning rates of adapters on all linear layers of that model."""
SHRINKS, OF_ALL_WEIGHTS = 0.4, 0.1
"""A rate falls with this power of the size; that of all weights is this share of the adapters'."""
LEAST_UPDATES, UPDATES_WITH_STOPPING = {"sft": 100, "reward_model.training": 150}, 300
FEWEST_EPOCHS, MOST_EPOCHS = 2, 20
ACTIVATIONS = 24
"""Numbers of 4 bytes that a layer keeps for the backward pass, for each token and each of its `width`."""
USABLE = 0.5
"""Share of free memory that is planned with."""
MATRIX, DECODING = 0.8, 0.3
"""Shares of the speed of one large product that whole sequences, and tokens one after another, reach."""
GB = 2**30


@dataclass(frozen=True)
class ModelFacts:
    """The model in training: its size, its shape, and whether adapters are trained or all weights."""

    parameters: int
    adapters: bool
    layers: int
    width: int
    weight_bytes: int = 4


@dataclass(frozen=True)
class DataFacts:
    """Examples of a stage, and the mean tokens of their prompts and targets (0: sampled)."""

    examples: int
    prompt_tokens: int
    target_tokens: int = 0


@dataclass(frozen=True)
class MachineFacts:
    """What there is to compute with: `flops` is the measured speed of one large product, a second."""

    device: str
    cores: int
    free_bytes: int
    flops: float


@dataclass(frozen=True)
class Facts:
    """All that settings are derived from."""

    model: ModelFacts
    data: DataFacts
    machine: MachineFacts


class Derived(NamedTuple):
    """A value, and why."""

    value: Any
    reason: str


class Cost(NamedTuple):
    """What a step of PPO takes: seconds and bytes, both roughly."""

    seconds: float
    bytes: float


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


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with some settings replaced, by `section.key`; they count as set, and no others."""
    for key, value in values.items():
        config = _replaced(config, key.split("."), value)
    return config


def _replaced(part: S, path: Sequence[str], value: Any) -> S:
    name, *rest = path
    return part.model_copy(update={name: _replaced(getattr(part, name), rest, value) if rest else value})


def derive(stage: Stage, config: Config, facts: Facts) -> dict[str, Derived]:
    """The settings of a stage that nobody has set, each with its reason."""
    if stage == "ppo":
        return dict(_ppo(config, facts))
    section = {"sft": "sft", "reward_model": "reward_model.training"}[stage]
    stopping = stage == "reward_model" and config.reward_model.early_stopping is not None
    return dict(_supervised(config, section, facts, stopping))


class _Draft:
    """Settings as they are found one after the other: the user's where set, else the derived ones."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._derived: dict[str, Derived] = {}

    def __getitem__(self, key: str) -> Any:
        return self._derived[key].value if key in self._derived else value_at(self._config, key)

    def offer(self, key: str, value: Any, reason: str) -> Iterator[tuple[str, Derived]]:
        if not is_set(self._config, key):
            self._derived[key] = Derived(value, reason)
            yield key, self._derived[key]


def _supervised(config: Config, section: str, facts: Facts, stopping: bool) -> Iterator[tuple[str, Derived]]:
    draft, examples = _Draft(config), facts.data.examples
    counted = f"{examples} examples"
    yield from draft.offer(f"{section}.lr", _rate(SUPERVISED_LR, facts.model), _sized(facts.model))
    batch = 4 if examples < 200 else 8 if examples < 2000 else 16
    yield from draft.offer(f"{section}.batch_size", batch, counted)
    batch = draft[f"{section}.batch_size"]
    wanted = UPDATES_WITH_STOPPING if stopping else LEAST_UPDATES[section]
    epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, math.ceil(wanted * batch / max(1, examples))))
    updates = math.ceil(examples * epochs / batch)
    why = f"{updates} updates" + (" unless stopped early" if stopping else "")
    yield from draft.offer(f"{section}.epochs", float(epochs), why)
    rows = _rows(facts, facts.data.prompt_tokens + facts.data.target_tokens, batch)
    yield from draft.offer(f"{section}.micro_batch_size", rows, _free(facts.machine))


def _ppo(config: Config, facts: Facts) -> Iterator[tuple[str, Derived]]:
    draft = _Draft(config)
    yield from draft.offer("ppo.lr", _rate(PPO_LR, facts.model), _sized(facts.model))
    group = config.ppo.samples_per_prompt
    wanted = 32 if facts.machine.device == "cpu" else 64
    yield from draft.offer("ppo.rollouts", math.ceil(wanted / group) * group, f"a {_kind(facts.machine)}")
    answer, critique = config.generation.max_new_tokens, config.reward_model.generation.max_new_tokens
    tokens, most = facts.data.prompt_tokens + answer, draft["ppo.rollouts"]
    yield from draft.offer("ppo.micro_batch_size", _rows(facts, tokens, most), _free(facts.machine))
    yield from draft.offer("generation.batch_size", _read_rows(facts, tokens, most), _free(facts.machine))
    judged = tokens + answer + critique
    key = "reward_model.generation.batch_size"
    yield from draft.offer(key, _read_rows(facts, judged, most), _free(facts.machine))


def _rate(measured: float, model: ModelFacts) -> float:
    """The rate for a model of this size, to one digit."""
    rate = measured * min(1.0, (MEASURED_ON / model.parameters) ** SHRINKS)
    return float(f"{rate if model.adapters else rate * OF_ALL_WEIGHTS:.0e}")


def _rows(facts: Facts, tokens: int, most: int) -> int:
    """Sequences that a forward and backward pass has room for: a power of two, at most `most`."""
    return _power_of_two(_room(facts) / (max(1, tokens) * _kept_bytes(facts.model)), most)


def _read_rows(facts: Facts, tokens: int, most: int) -> int:
    """Sequences that can be sampled at a time: keys and values of every layer are kept."""
    each = 2 * facts.model.layers * facts.model.width * facts.model.weight_bytes
    return _power_of_two(_room(facts) / (max(1, tokens) * each), most)


def _power_of_two(count: float, most: int) -> int:
    return int(min(2 ** math.floor(math.log2(max(1.0, count))), 2 ** math.floor(math.log2(max(1, most)))))


def _room(facts: Facts) -> float:
    """Bytes for activations: the weights are in memory already, what the optimizer keeps of all of them is not."""
    return max(0.0, USABLE * facts.machine.free_bytes - _states(facts.model))


def _states(model: ModelFacts) -> float:
    """Bytes of gradients and moments; of adapters they do not count."""
    return 0.0 if model.adapters else 12.0 * model.parameters


def _kept_bytes(model: ModelFacts) -> float:
    """Bytes that the backward pass needs, for each token."""
    return 4.0 * ACTIVATIONS * model.layers * model.width


def step_cost(config: Config, facts: Facts) -> Cost:
    """What a step of PPO takes with these settings, within a factor of about two."""
    ppo, size = config.ppo, facts.model.parameters
    answer, critique = config.generation.max_new_tokens, config.reward_model.generation.max_new_tokens / 2
    read = facts.data.prompt_tokens / ppo.samples_per_prompt + answer
    backward = 4 if facts.model.adapters else 6
    passes = 2 * 3 + backward * ppo.epochs  # sampling's prompt or the critic's, policy, reference; then updates
    matrix = ppo.rollouts * read * passes * size / MATRIX
    decoded = ppo.rollouts * (answer + critique) * 2 * size / DECODING
    rows = min(ppo.micro_batch_size, ppo.rollouts)
    width = facts.data.prompt_tokens + answer
    kept = rows * width * _kept_bytes(facts.model)
    weights = 2.0 * size * facts.model.weight_bytes
    return Cost((matrix + decoded) / facts.machine.flops, weights + _states(facts.model) + kept)


def _sized(model: ModelFacts) -> str:
    millions = model.parameters / 1e6
    size = f"{millions:.0f}M" if millions < 1000 else f"{millions / 1000:.1f}B"
    return f"adapters on {size} parameters" if model.adapters else f"all {size} parameters"


def _kind(machine: MachineFacts) -> str:
    return "CPU" if machine.device == "cpu" else "GPU"


def _free(machine: MachineFacts) -> str:
    return f"{machine.free_bytes / GB:.0f} GB free"
