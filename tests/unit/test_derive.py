"""Settings that nobody set: what is derived from which facts, that nothing set is touched; what a
step costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from text2grad.config import Config, find_config, load_config
from text2grad.config.derive import (
    GB,
    RULES,
    DataFacts,
    Facts,
    MachineFacts,
    ModelFacts,
    Stage,
    Supervised,
    derive,
    section_of,
)
from text2grad.settings import is_set, value_at, with_values

SMOLLM2 = ModelFacts(parameters=135_000_000, adapters=True, layers=30, width=576)
LAPTOP = MachineFacts("cpu", memory_bytes=16 * GB)
MAILS = Facts(SMOLLM2, DataFacts(examples=39, prompt_tokens=300, target_tokens=150), LAPTOP)
SUPERVISED: list[Any] = list(RULES)
STAGES: list[Any] = [*RULES, "ppo"]
FLOOR = "sft.least_loss"
WEIGHT = "credit.poor_weight"


def config(*settings: str) -> Config:
    bare = ("--task.name", "qa", "--policy.model", "smollm2", "--policy.lora.r", "16")
    return load_config(None, [*bare, *settings])


def values(stage: Any, settings: Config, facts: Facts) -> dict[str, Any]:
    return {key.rpartition(".")[2]: each.value for key, each in derive(stage, settings, facts).items()}


def test_every_stage_has_a_rule_and_a_section() -> None:
    assert set(RULES) == set(get_args(Supervised)) and set(STAGES) == set(get_args(Stage))
    for stage in STAGES:
        assert value_at(config(), f"{section_of(stage)}.lr") > 0


@pytest.mark.parametrize(
    ("stage", "lr", "epochs", "updates"),
    [("sft", 1e-3, 11.0, 108), ("reward_model", 1e-3, 16.0, 156), ("offline", 3e-4, 11.0, 108)],
)
def test_forty_examples_get_the_measured_values(stage: Any, lr: float, epochs: float, updates: int) -> None:
    found, section = derive(stage, config(), MAILS), section_of(stage)
    assert {key: found[key] for key in found.keys() - {WEIGHT, FLOOR}} == {
        f"{section}.lr": (lr, "adapters on 135M parameters"),
        f"{section}.batch_size": (4, "39 examples"),
        f"{section}.epochs": (epochs, f"{updates} updates"),
        f"{section}.micro_batch_size": (4, "16 GB of memory"),
    }


def test_poor_words_of_few_answers_weigh_more_where_nothing_is_sampled() -> None:
    assert derive("offline", config(), MAILS)[WEIGHT] == (4.0, "39 answers")
    many = replace(MAILS, data=replace(MAILS.data, examples=200))
    assert WEIGHT not in derive("offline", config(), many)
    assert WEIGHT not in derive("offline", config("--credit.poor_weight", "1"), MAILS)
    assert all(WEIGHT not in derive(stage, config(), MAILS) for stage in STAGES if stage != "offline")


def test_a_set_value_is_never_derived_even_its_default() -> None:
    for stage in SUPERVISED:
        keys = ("lr", "batch_size", "epochs", "micro_batch_size")
        for key in keys:
            found = set(values(stage, config(f"--{section_of(stage)}.{key}", "1"), MAILS))
            assert found - {"poor_weight", "least_loss"} == {*keys} - {key}
    words = ["--ppo.lr", "1e-6", "--ppo.rollouts", "64", "--generation.batch_size", "64"]
    derived = set(derive("ppo", config(*words), MAILS))
    assert derived and not derived & {word.removeprefix("--") for word in words[::2]}


@pytest.mark.parametrize("name", ["demo", "function_summaries", "slf5k", "kodcode", "ultrafeedback"])
def test_presets_fix_rates_batches_and_steps(name: str) -> None:
    preset = load_config(find_config(name))
    for stage in ("sft", "reward_model", "ppo"):
        left = set(derive(stage, preset, MAILS))  # type: ignore[arg-type]
        assert left <= {"generation.batch_size"}, name


def test_sft_ends_early_only_before_sampling_and_with_unset_epochs() -> None:
    """A reward model is for many remarks; few are learned from offline, which samples nothing."""
    many = replace(MAILS, data=replace(MAILS.data, examples=200))
    asked = ("--critic.kind", "program")
    assert FLOOR not in derive("sft", config(), MAILS)
    for settings, facts in ((config(), many), (config(*asked), MAILS)):
        assert derive("sft", settings, facts)[FLOOR].value == 0.1
    assert FLOOR not in derive("sft", config("--sft.epochs", "2"), many)
    assert FLOOR not in derive("sft", config("--sft.least_loss", "null"), many)
    assert config().sft.least_loss is None and FLOOR not in derive("offline", config(), MAILS)


def test_dependent_values_use_the_users_setting() -> None:
    found = derive("sft", config("--sft.batch_size", "13"), MAILS)
    assert found["sft.epochs"] == (20.0, "60 updates")
    assert found["sft.micro_batch_size"].value == 8, "the largest power of two in a batch of 13"


def test_more_examples_get_larger_batches_and_fewer_epochs() -> None:
    """A head that marks takes as many updates of fewer critiques."""
    marks = config("--reward_model.kind", "tagger", "--reward_model.training.batch_size", "4")
    for examples, batch, epochs in (
        *((8, 4, 20.0), (199, 4, 3.0), (200, 8, 4.0), (1999, 8, 2.0), (2000, 16, 2.0)),
        *((201, None, 6.0), (402, None, 3.0), (603, None, 2.0)),
    ):
        facts = replace(MAILS, data=replace(MAILS.data, examples=examples))
        found = values("sft", config(), facts) if batch else values("reward_model", marks, facts)
        assert (found.get("batch_size"), found["epochs"]) == (batch, epochs)


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

    tight = replace(MAILS, machine=replace(LAPTOP, memory_bytes=4 * GB))
    none = replace(MAILS, machine=replace(LAPTOP, memory_bytes=0))
    long = replace(MAILS, data=replace(MAILS.data, prompt_tokens=4000))
    assert rows(none) == 1 < rows(tight) < rows(MAILS) and rows(long) < rows(MAILS)
    assert rows(replace(MAILS, model=replace(SMOLLM2, adapters=False))) <= rows(MAILS)


def test_a_frozen_copy_takes_memory_only_without_adapters() -> None:
    def rows(stage: Any, adapters: bool) -> int:
        model, data = replace(SMOLLM2, adapters=adapters), replace(MAILS.data, examples=2000)
        machine = replace(LAPTOP, memory_bytes=int(14.9 * GB))
        return int(values(stage, config(), Facts(model, data, machine))["micro_batch_size"])

    assert rows("offline", adapters=False) < rows("sft", adapters=False)
    assert rows("offline", adapters=True) == rows("sft", adapters=True)


def test_rollouts_are_whole_groups() -> None:
    grouped = config("--ppo.samples_per_prompt", "64")
    assert values("ppo", grouped, MAILS)["rollouts"] == 64
    assert values("ppo", config("--ppo.samples_per_prompt", "8"), MAILS)["rollouts"] == 32
    gpu = replace(MAILS, machine=replace(LAPTOP, device="cuda"))
    assert values("ppo", config(), gpu)["rollouts"] == 64


def test_derived_values_fit_the_configuration() -> None:
    for stage in STAGES:
        found = derive(stage, config(), MAILS)
        full = with_values(config(), {key: each.value for key, each in found.items()})
        assert Config.model_validate(full.model_dump()) == full
        assert all(is_set(full, key) and value_at(full, key) == each.value for key, each in found.items())
        assert not is_set(full, "ppo.gamma") and not is_set(full, "training.warmup")
