"""Estimate how long the steps of `improve` take and how much memory they need. No torch, and
nothing is loaded.

The work is counted in floating point operations from the number of tokens, and divided by what this
machine was measured to do. The constants are set for SmolLM2-135M, and no command measures one of
them alone; `python benchmarks/improve.py --train FOLDER` prints the minutes of a run beside the
estimate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from text2grad.config.derive import MEASURED_ON, DataFacts, Facts, MachineFacts, ModelFacts, Supervised, derive
from text2grad.config.sections import TINY, Config
from text2grad.durable.machine import total_memory
from text2grad.feedback import Example, Feedback, Message, conversation_text
from text2grad.settings import value_at

CHARACTERS, TEMPLATE = 3.6, 30
"""Characters of a token, and tokens of a chat template around a prompt."""
FORWARD, BACKWARD, WEIGHTS = 2, 2, 2
"""Operations for each token and parameter: forward, back through the layers, back to trained
weights."""
TRAINED, SAMPLED = 0.75, 0.3
"""Share of the measured speed that training, and sampling token by token, reach."""
FIRST, START = 15.0, 4.0
"""Seconds in which all packages are loaded, and in which each step loads its model."""
ENDS_EARLY = 0.6
"""Share of its updates after which sft ends where its loss is low enough (`sft.least_loss`)."""
AT_ONCE = 10
"""Tokens of a prompt that are read in the time of one that is sampled."""
COPIES, PACKAGES = 3, 2.3
"""Memory: the size of the weights times this, and GiB for packages and activations."""
SMOLLM2_LAYERS, SMOLLM2_WIDTH = 30, 576
TINY_FACTS = ModelFacts(1_000_000, False, 2, 128)
"""A round size for the tiny model, whose work takes little compared with loading the packages."""


@dataclass(frozen=True)
class Estimate:
    """The time of all steps and the memory of the largest."""

    minutes: float
    gigabytes: float

    @property
    def words(self) -> str:
        """`9 minutes, 3 GB`."""
        minutes = max(1, round(self.minutes))
        return f"{minutes} minute{'s' * (minutes != 1)}, {max(1, round(self.gigabytes))} GB"


def estimate(
    config: Config,
    training: Sequence[Example],
    heldout: Sequence[Example],
    records: Sequence[Feedback],
    steps: Sequence[str],
    speed: float,
) -> Estimate:
    """Estimate the steps `sft` and `offline`, and an evaluation of each policy and of the base
    model.

    `speed`: floating point operations in a second, of products of matrices in the policy's type.
    """
    model = _facts_of_model(config)
    seconds = FIRST
    learned: list[tuple[Supervised, list[tuple[Message, ...]], list[str]]] = [
        ("sft", [example.prompt for example in training], [example.reference for example in training]),
        ("offline", [record.prompt for record in records], [str(record.response) for record in records]),
    ]
    for stage, prompts, answers in learned:
        if stage not in steps:
            continue
        prompt_lengths = [len(conversation_text(prompt)) / CHARACTERS + TEMPLATE for prompt in prompts]
        target_lengths = [len(answer) / CHARACTERS for answer in answers]
        count = max(1, len(prompt_lengths))
        facts = DataFacts(
            len(prompt_lengths), round(sum(prompt_lengths) / count), round(sum(target_lengths) / count)
        )
        tokens = sum(prompt_lengths) + sum(target_lengths)
        ended = ENDS_EARLY if stage == "sft" and config.sft.least_loss is None and len(steps) > 1 else 1.0
        passes = ended * _passes(stage, config, Facts(model, facts, MachineFacts("cpu", total_memory())))
        operations = FORWARD + BACKWARD + (0 if model.adapters else WEIGHTS)
        operations += FORWARD if stage == "offline" else 0  # the frozen reference
        seconds += START + passes * tokens * operations * model.parameters / (TRAINED * speed)
    prompt_tokens = sum(len(conversation_text(example.prompt)) / CHARACTERS + TEMPLATE for example in heldout)
    answer_tokens = len(heldout) * config.generation.max_new_tokens
    sampled = (len(steps) + 1) * (1 + config.evaluate.samples) * (prompt_tokens / AT_ONCE + answer_tokens)
    seconds += START * (len(steps) + 1) + sampled * FORWARD * model.parameters / (SAMPLED * speed)
    weights = model.parameters * (2 if config.policy.dtype in ("bfloat16", "float16") else 4)
    return Estimate(seconds / 60, COPIES * weights / 2**30 + PACKAGES)


def _passes(stage: Supervised, config: Config, facts: Facts) -> float:
    """Passes over the data, as they will be derived."""
    key = f"{stage}.epochs"
    derived = derive(stage, config, facts) if config.policy.model != TINY else {}
    return float(derived[key].value if key in derived else value_at(config, key))


def _facts_of_model(config: Config) -> ModelFacts:
    """The size of a model as far as it is known without loading it: by its folder, else by its
    name."""
    adapters = config.policy.lora is not None
    name = config.policy.model
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
