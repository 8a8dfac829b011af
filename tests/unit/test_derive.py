"""Settings that nobody set: what is derived from which facts, that nothing set is touched; what a step costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from text2grad.config import Config, find_config, load_config
from text2grad.config.derive import (
    GB,
    DataFacts,
    Facts,
    MachineFacts,
    ModelFacts,
    derive,
    is_set,
    step_cost,
    value_at,
    with_values,
)

SMOLLM2 = ModelFacts(parameters=135_000_000, adapters=True, layers=30, width=576)
LAPTOP = MachineFacts("cpu", cores=2, free_bytes=16 * GB, flops=140e9)
MAILS = Facts(SMOLLM2, DataFacts(examples=39, prompt_tokens=300, target_tokens=150), LAPTOP)


def config(*settings: str) -> Config:
    bare = ("--task.name", "qa", "--policy.model", "smollm2", "--policy.lora.r", "16")
    return load_config(None, [*bare, *settings])


def values(stage: Any, settings: Config, facts: Facts) -> dict[str, Any]:
    return {key.rpartition(".")[2]: each.value for key, each in derive(stage, settings, facts).items()}


def test_forty_critiques_get_what_was_measured_on_them() -> None:
    found = derive("reward_model", config(), MAILS)
    assert found["reward_model.training.lr"] == (1e-3, "adapters on 135M parameters")
    assert found["reward_model.training.batch_size"] == (4, "39 examples")
    assert found["reward_model.training.epochs"] == (16.0, "156 updates")
    assert found["reward_model.training.micro_batch_size"] == (4, "16 GB free")


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        ("reward_model", ["--reward_model.training.lr", "1e-5", "--reward_model.training.batch_size", "8"]),
        ("sft", ["--sft.lr", "1e-5", "--sft.epochs", "2"]),
        ("ppo", ["--ppo.lr", "1e-6", "--ppo.rollouts", "64", "--generation.batch_size", "64"]),
    ],
)
def test_what_is_set_is_never_derived_even_to_its_default(stage: Any, settings: list[str]) -> None:
    given = {word.removeprefix("--") for word in settings[::2]}
    derived = set(derive(stage, config(*settings), MAILS))
    assert derived and not derived & given


@pytest.mark.parametrize("name", ["demo", "function_summaries", "slf5k", "kodcode", "ultrafeedback"])
def test_of_a_preset_no_rate_batch_or_number_of_steps_is_derived(name: str) -> None:
    preset = load_config(find_config(name))
    for stage in ("sft", "reward_model", "ppo"):
        left = set(derive(stage, preset, MAILS))  # type: ignore[arg-type]
        assert left <= {"generation.batch_size", "reward_model.generation.batch_size"}, name


def test_what_follows_from_a_setting_follows_from_the_users() -> None:
    found = derive("sft", config("--sft.batch_size", "13"), MAILS)
    assert found["sft.epochs"] == (20.0, "60 updates")
    assert found["sft.micro_batch_size"].value == 8, "the largest power of two in a batch of 13"


def test_early_stopping_leaves_room_to_stop() -> None:
    found = derive("reward_model", config("--reward_model.early_stopping.every", "10"), MAILS)
    assert found["reward_model.training.epochs"] == (20.0, "195 updates unless stopped early")


@pytest.mark.parametrize(
    ("examples", "batch", "epochs"), [(8, 4, 20.0), (199, 4, 3.0), (200, 8, 4.0), (1999, 8, 2.0), (2000, 16, 2.0)]
)
def test_more_examples_get_larger_batches_and_fewer_epochs(examples: int, batch: int, epochs: float) -> None:
    facts = replace(MAILS, data=replace(MAILS.data, examples=examples))
    found = values("sft", config(), facts)
    assert (found["batch_size"], found["epochs"]) == (batch, epochs)


def test_larger_models_and_all_weights_get_lower_rates() -> None:
    large = replace(SMOLLM2, parameters=8_000_000_000)
    every = replace(SMOLLM2, adapters=False)
    rates = [values("sft", config(), replace(MAILS, model=model))["lr"] for model in (SMOLLM2, large, every)]
    assert rates == [1e-3, 2e-4, 1e-4]
    small = replace(SMOLLM2, parameters=1_000_000)
    assert values("sft", config(), replace(MAILS, model=small))["lr"] == 1e-3, "no higher than was measured"


def test_less_memory_and_longer_texts_get_smaller_passes() -> None:
    def rows(facts: Facts) -> int:
        return int(values("ppo", config(), facts)["micro_batch_size"])

    tight = replace(MAILS, machine=replace(LAPTOP, free_bytes=4 * GB))
    none = replace(MAILS, machine=replace(LAPTOP, free_bytes=0))
    long = replace(MAILS, data=replace(MAILS.data, prompt_tokens=4000))
    assert rows(none) == 1 < rows(tight) < rows(MAILS) and rows(long) < rows(MAILS)
    assert rows(replace(MAILS, model=replace(SMOLLM2, adapters=False))) <= rows(MAILS)


def test_rollouts_are_whole_groups() -> None:
    grouped = config("--ppo.samples_per_prompt", "64")
    assert values("ppo", grouped, MAILS)["rollouts"] == 64
    assert values("ppo", config("--ppo.samples_per_prompt", "8"), MAILS)["rollouts"] == 32
    gpu = replace(MAILS, machine=replace(LAPTOP, device="cuda"))
    assert values("ppo", config(), gpu)["rollouts"] == 64


def test_derived_values_fit_the_configuration() -> None:
    for stage in ("sft", "reward_model", "ppo"):
        found = derive(stage, config(), MAILS)  # type: ignore[arg-type]
        full = with_values(config(), {key: each.value for key, each in found.items()})
        assert Config.model_validate(full.model_dump()) == full
        assert all(is_set(full, key) and value_at(full, key) == each.value for key, each in found.items())
        assert not is_set(full, "ppo.gamma")


def test_the_temperature_of_critiques_survives_a_derived_batch() -> None:
    full = with_values(config(), {"reward_model.generation.batch_size": 2})
    assert (full.reward_model.generation.temperature, full.reward_model.generation.batch_size) == (0.0, 2)


def test_a_step_costs_in_proportion_and_more_where_all_weights_are_trained() -> None:
    whole = config("--ppo.rollouts", "64", "--ppo.micro_batch_size", "64")
    few = config("--ppo.rollouts", "16", "--ppo.micro_batch_size", "16")
    assert step_cost(whole, MAILS).seconds == pytest.approx(4 * step_cost(few, MAILS).seconds)
    assert step_cost(whole, MAILS).bytes > 3 * step_cost(few, MAILS).bytes
    every = replace(MAILS, model=replace(SMOLLM2, adapters=False))
    assert step_cost(few, every) > step_cost(few, MAILS)


def test_the_cost_of_the_step_that_was_measured() -> None:
    """docs/LOG.md: 8 prompts x 4 answers of 150 + 30 tokens took 25 s at 160 GFLOP/s, without a critic."""
    settings = config(
        *("--ppo.rollouts", "32", "--ppo.samples_per_prompt", "4", "--ppo.epochs", "1"),
        *("--generation.max_new_tokens", "30", "--reward_model.generation.max_new_tokens", "1"),
    )
    facts = Facts(SMOLLM2, DataFacts(8, 150), replace(LAPTOP, flops=160e9))
    assert 25.4 / 2 < step_cost(settings, facts).seconds < 25.4 * 2
