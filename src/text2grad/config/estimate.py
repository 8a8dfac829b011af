"""Estimate the time and memory of the steps of `improve`, without loading a model.

Floating point operations are counted from the number of tokens, and divided by the measured speed
of the machine. The constants were set on SmolLM2-135M; `python benchmarks/improve.py --train RUN`
prints estimated and measured minutes. No torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from text2grad.config.derive import MEASURED_ON, DataFacts, Facts, MachineFacts, ModelFacts, Supervised, derive
from text2grad.config.sections import TINY, Config
from text2grad.durable.machine import total_memory
from text2grad.feedback import Example, Feedback, Message, conversation_text
from text2grad.settings import value_at

CHARACTERS_PER_TOKEN, TEMPLATE_TOKENS = 3.6, 30
FORWARD, BACKWARD, WEIGHT_GRADIENTS = 2, 2, 2
"""Operations per token and parameter: forward, back through the layers, back to trained weights."""
TRAINING_SPEED, SAMPLING_SPEED = 0.55, 0.24
"""Share of the measured speed that training, and sampling token by token, reach."""
IMPORT_SECONDS, LOAD_SECONDS = 15.0, 4.0
"""Seconds to import all packages, and to load the model in each step."""
EARLY_STOP = 0.6
"""Share of its updates after which sft usually reaches `sft.least_loss`."""
PREFILL_SPEEDUP = 10
"""Prompt tokens that are read in the time of one sampled token."""
WEIGHT_COPIES, PACKAGES_GIB = 3, 2.3
"""Memory: the size of the weights times the first, plus GiB for packages and activations."""
SMOLLM2_LAYERS, SMOLLM2_WIDTH = 30, 576
TINY_FACTS = ModelFacts(1_000_000, False, 2, 128)
"""A round size for the tiny model, whose work takes little compared with importing packages."""


@dataclass(frozen=True)
class Estimate:
    """Time and memory of a run.

    `seconds` has the time of each step by its name, `update_seconds` that of one update of each
    training step.
    """

    seconds: Mapping[str, float]
    update_seconds: Mapping[str, float]
    gigabytes: float

    @property
    def minutes(self) -> float:
        """The time of all steps."""
        return sum(self.seconds.values()) / 60

    @property
    def words(self) -> str:
        """`9 minutes, 3 GB`."""
        return f"{minutes_in_words(self.minutes)}, {max(1, round(self.gigabytes))} GB"


def minutes_in_words(minutes: float) -> str:
    """Return `1 minute` or `9 minutes`, at least one."""
    count = max(1, round(minutes))
    return f"{count} minute{'s' * (count != 1)}"


def estimate(
    config: Config,
    training: Sequence[Example],
    heldout: Sequence[Example],
    records: Sequence[Feedback],
    steps: Sequence[str],
    speed: float,
) -> Estimate:
    """Estimate the training steps, and an evaluation of each policy and of the base model.

    `speed` is in floating point operations per second, of matrix products in the policy's dtype.
    """
    model = _facts_of_model(config)
    seconds = {"import": IMPORT_SECONDS}
    update_seconds: dict[str, float] = {}
    data: list[tuple[Supervised, list[tuple[Message, ...]], list[str]]] = [
        ("sft", [example.prompt for example in training], [example.reference for example in training]),
        ("offline", [record.prompt for record in records], [str(record.response) for record in records]),
    ]
    for stage, prompts, answers in data:
        if stage not in steps:
            continue
        prompt_tokens = sum(map(_prompt_tokens, prompts))
        target_tokens = sum(map(len, answers)) / CHARACTERS_PER_TOKEN
        count = max(1, len(prompts))
        facts = DataFacts(len(prompts), round(prompt_tokens / count), round(target_tokens / count))
        settings = _settings(stage, config, Facts(model, facts, MachineFacts("cpu", total_memory())))
        epochs, batch_size = settings[f"{stage}.epochs"], settings[f"{stage}.batch_size"]
        operations = FORWARD + BACKWARD + (0 if model.adapters else WEIGHT_GRADIENTS)
        operations += FORWARD if stage == "offline" else 0  # the frozen reference
        tokens = prompt_tokens + target_tokens
        one_pass = tokens * operations * model.parameters / (TRAINING_SPEED * speed)
        passes = epochs * (1.0 if settings.get(f"{stage}.least_loss") is None else EARLY_STOP)
        seconds[stage] = LOAD_SECONDS + passes * one_pass
        update_seconds[stage] = one_pass * min(1.0, batch_size / count)
    sampled_tokens = len(heldout) * config.generation.max_new_tokens
    read_tokens = sum(_prompt_tokens(example.prompt) for example in heldout) / PREFILL_SPEEDUP
    rounds = 1 + config.evaluate.samples  # greedy, and sampled
    sampling = rounds * (read_tokens + sampled_tokens) * FORWARD * model.parameters / (SAMPLING_SPEED * speed)
    seconds |= {f"evaluate {name}": LOAD_SECONDS + sampling for name in ("base", *steps)}
    weights = model.parameters * (2 if config.policy.dtype in ("bfloat16", "float16") else 4)
    return Estimate(seconds, update_seconds, WEIGHT_COPIES * weights / 2**30 + PACKAGES_GIB)


def _prompt_tokens(prompt: Sequence[Message]) -> float:
    return len(conversation_text(prompt)) / CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS


def _settings(stage: Supervised, config: Config, facts: Facts) -> dict[str, Any]:
    """Return the settings that decide how long a training step takes, derived where unset."""
    derived = derive(stage, config, facts) if config.policy.model != TINY else {}
    names = ["epochs", "batch_size", *(["least_loss"] if stage == "sft" else [])]
    keys = [f"{stage}.{name}" for name in names]
    return {key: derived[key].value if key in derived else value_at(config, key) for key in keys}


def _facts_of_model(config: Config) -> ModelFacts:
    """Return the size of the base model by its folder, else by its name."""
    adapters = config.policy.lora is not None
    name = config.policy.model
    adapter = Path(name) / "adapter_config.json"
    if adapter.is_file():
        name = str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    if name == TINY:
        return replace(TINY_FACTS, adapters=adapters)
    folder = Path(name)
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")] if folder.is_dir() else []
    if sizes:
        described = folder / "config.json"
        shape = json.loads(described.read_text(encoding="utf-8")) if described.is_file() else {}
        width, layers = int(shape.get("hidden_size", 1024)), int(shape.get("num_hidden_layers", 24))
        half = str(shape.get("torch_dtype", shape.get("dtype", ""))) in ("bfloat16", "float16")
        return ModelFacts(round(sum(sizes) / (2 if half else 4)), adapters, layers, width)
    match = re.search(r"(\d+(?:\.\d+)?)\s*([BbMm])(?![a-z])", name)
    parameters = float(match[1]) * (1e9 if match[2] in "Bb" else 1e6) if match else MEASURED_ON
    return ModelFacts(round(parameters), adapters, SMOLLM2_LAYERS, SMOLLM2_WIDTH)
