"""Estimates of `improve` count what is trained and sampled, and halve on a machine twice as
fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from human_data import small_config
from text2grad.config.estimate import FORWARD, IMPORT_SECONDS, LOAD_SECONDS, SAMPLING_SPEED, TINY_FACTS, estimate
from text2grad.config.sections import Config
from text2grad.feedback import Critique, Example, Feedback, Message, Source
from text2grad.settings import with_values

SPEED = 1e9


def seconds(config: Config, *steps: str, speed: float = SPEED, **values: int) -> float:
    """The estimated seconds beyond those of loading packages and models."""
    config = with_values(config, {name.replace("__", "."): value for name, value in values.items()})
    prompt = (Message(role="user", content="Describe the lamp."),)
    example = Example(id="a", prompt=prompt, reference="It is 30 cm wide." * 20)
    record = Feedback.of(example, str(example.reference), Critique(text=""), Source(kind="human"))
    expected = estimate(config, [example] * 8, [example] * 2, [record] * 8, steps, speed)
    return 60 * expected.minutes - IMPORT_SECONDS - LOAD_SECONDS * (2 * len(steps) + 1)


def test_work_grows_with_passes_steps_and_sampled_tokens(tmp_path: Path) -> None:
    config = small_config(tmp_path, "--sft.epochs", "2", "--offline.epochs", "2")
    sft = seconds(config, "sft")
    assert seconds(config, "sft", speed=2 * SPEED) == pytest.approx(sft / 2)
    assert 0 < sft < seconds(config, "sft", "offline")
    once, thrice = (seconds(config, "sft", sft__epochs=epochs) for epochs in (1, 3))
    assert 0 < thrice - sft == pytest.approx(sft - once)
    tokens = config.generation.max_new_tokens
    longer = seconds(config, "sft", generation__max_new_tokens=2 * tokens)
    sampled = 2 * 2 * (1 + config.evaluate.samples) * tokens  # two questions, two policies, greedy and sampled
    assert longer - sft == pytest.approx(sampled * FORWARD * TINY_FACTS.parameters / (SAMPLING_SPEED * SPEED))
