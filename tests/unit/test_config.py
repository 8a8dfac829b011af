"""Configurations: the presets, the strict reader, overrides, and the way back to YAML."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from places import ROOT
from text2grad.config import (
    PRESETS,
    Config,
    describe_settings,
    dump_config,
    find_config,
    laid_over,
    load_config,
    preset_names,
    recipe_names,
)
from text2grad.data.files import hub_data
from text2grad.errors import EXIT_USAGE, UsageError
from text2grad.settings import is_set

MINIMAL = "task: {name: demo}\npolicy: {model: tiny}\n"


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return path


def usage_error(path: Path | list[Path] | None, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_code == EXIT_USAGE
    message = str(caught.value)
    assert "\n" not in message
    return message


# The presets


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_by_name_and_from_the_folder(name: str) -> None:
    by_name = load_config(find_config(name))
    from_folder = load_config(find_config(str(ROOT / "configs" / f"{name}.yaml")))
    assert by_name == from_folder
    assert by_name.run.folder == Path("runs") / name


def test_the_presets_are_one_set_of_files() -> None:
    assert preset_names() == [
        *("demo", "function_summaries", "human_qa", "kodcode", "own", "slf5k", "ultrafeedback"),
    ]
    assert {path.resolve() for path in PRESETS.glob("*.yaml")} == set((ROOT / "configs").glob("*.yaml"))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = pyproject["tool"]["setuptools"]["package-data"]["text2grad"]
    assert {"configs/*.yaml", "configs/recipes/*.yaml"} <= set(packaged)


# Configurations laid over each other


@pytest.mark.parametrize("name", [name for name in recipe_names() if name not in ("smollm2", "mistral")])
def test_a_recipe_is_laid_over_any_preset_and_changes_credit_and_ppo_alone(name: str) -> None:
    for preset in preset_names():
        before = load_config(find_config(preset))
        after = load_config([find_config(preset), find_config(name)])
        assert before.model_dump(exclude={"credit", "ppo"}) == after.model_dump(exclude={"credit", "ppo"})
        assert (before.ppo.steps, before.ppo.lr) == (after.ppo.steps, after.ppo.lr)


def test_the_papers_recipe_over_the_demo() -> None:
    config = load_config([find_config("demo"), find_config("paper")], ["--ppo.steps", "3"])
    assert (config.ppo.advantage, config.ppo.gamma, config.ppo.lam, config.ppo.kl_target) == ("gae", 1.0, 0.95, 6.0)
    assert (config.credit.weighting, config.credit.outcome_weight, config.credit.poor_weight) == ("token", 0.0, 1.0)
    assert config.ppo.steps == 3


def test_the_scalar_recipe_over_the_demo_is_its_other_run() -> None:
    demo = load_config(find_config("demo"))
    config = load_config([find_config("demo"), find_config("scalar")])
    assert config == laid_over(demo, "scalar")
    assert (config.credit.scheme, config.ppo.gamma) == ("last_token", 1.0)
    changed = {"gamma", "kl_coefficient"}
    assert config.ppo.model_dump(exclude=changed) == demo.ppo.model_dump(exclude=changed)


def test_without_a_word_the_demos_recipe_is_used() -> None:
    """What won on the embedded task is the default; only rates and sizes are the demo's own."""
    demo, silent = (
        load_config(find_config("demo")),
        Config.model_validate({"task": {"name": "demo"}, "policy": {"model": "tiny"}}),
    )
    assert silent.credit == demo.credit
    own = {"steps", "lr", "mini_batches", "micro_batch_size"}
    assert silent.ppo.model_dump(exclude=own) == demo.ppo.model_dump(exclude=own)


def test_a_later_file_replaces_settings_and_leaves_their_neighbours(minimal: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(
        "ppo: {lr: 1e-3, steps: 3}\npolicy: {lora: {r: 4, targets: [q_proj, v_proj]}}\n", encoding="utf-8"
    )
    second.write_text("ppo: {lr: 2e-3}\npolicy: {lora: {targets: [o_proj]}}\n", encoding="utf-8")
    config = load_config([minimal, first, second])
    assert (config.ppo.lr, config.ppo.steps) == (2e-3, 3)
    assert config.policy.lora is not None
    assert (config.policy.lora.r, config.policy.lora.targets) == (4, ("o_proj",))
    assert load_config([minimal, second, first]).ppo.lr == 1e-3


@pytest.mark.parametrize("name", ["slf5k", "kodcode", "ultrafeedback"])
def test_the_papers_recipe_keeps_the_kl_that_table_10_has_for_a_data_set(name: str) -> None:
    preset, both = (load_config([find_config(n) for n in names]) for names in ([name], [name, "paper"]))
    assert (both.ppo.kl_coefficient, both.ppo.kl_target) == PAPER[name][3:5]
    assert both.credit == preset.credit
    assert laid_over(preset, "paper") == both


@pytest.mark.parametrize("name", ["slf5k", "kodcode", "ultrafeedback", "human_qa", "function_summaries"])
def test_the_scalar_recipe_leaves_the_kl_alone(name: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("ppo: {kl_coefficient: 0.123}\n", encoding="utf-8")
    both = load_config([find_config(name), own, find_config("scalar")])
    assert (both.credit.scheme, both.ppo.kl_coefficient) == ("last_token", 0.123)
    demo = load_config([find_config("demo"), find_config("scalar")])
    assert demo.ppo.kl_coefficient == 0.2


@pytest.mark.parametrize("name", ["human_qa"])
def test_a_models_recipe_over_a_preset(name: str) -> None:
    both = load_config([find_config(name), find_config("smollm2")])
    assert (both.policy.model, both.policy.dtype, both.reward_model.shared) == ("smollm2", "bfloat16", True)
    assert both.task == load_config(find_config(name)).task


@pytest.mark.parametrize("name", ["slf5k", "kodcode", "ultrafeedback"])
def test_table_5_of_the_paper_is_another_policy_and_nothing_else(name: str) -> None:
    preset, both = (load_config([find_config(n) for n in names]) for names in ([name], [name, "mistral"]))
    assert both.policy.model == "mistralai/Mistral-7B-Instruct-v0.2"
    policy = preset.policy.model_copy(update={"model": both.policy.model})
    assert both == preset.model_copy(update={"policy": policy})


def test_a_file_is_laid_over_the_recipe_it_names(minimal: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("recipe: paper\nppo: {lam: 0.5}\ntask: {name: code}\n", encoding="utf-8")
    config = load_config([minimal, own])
    assert (config.ppo.lam, config.ppo.gamma, config.ppo.kl_coefficient, config.ppo.kl_target) == (
        0.5,
        1.0,
        0.07,
        1.0,
    )


PAPER = {
    # lr, schedule, batch, kl coefficient, kl target, steps = 4 epochs x training prompts / batch, response tokens
    "slf5k": (1e-6, "linear", 12, 0.2, 6.0, round(4 * 5_000 / 12), 89),
    "kodcode": (5e-7, "cosine", 8, 0.07, 1.0, 4 * 9_000 // 8, 256),
    "ultrafeedback": (1e-6, "cosine", 8, 0.05, 3.0, 4 * 12_544 // 8, 512),
}


@pytest.mark.parametrize("name", PAPER)
def test_table_10_of_the_paper(name: str) -> None:
    config = load_config(find_config(name))
    ppo = config.ppo
    assert (
        ppo.lr,
        ppo.schedule,
        ppo.rollouts,
        ppo.kl_coefficient,
        ppo.kl_target,
        ppo.steps,
        config.generation.max_new_tokens,
    ) == PAPER[name]
    assert (ppo.epochs, ppo.mini_batches, ppo.micro_batch_size, ppo.kl) == (4, 1, 1, "full")
    assert ppo.advantage == "gae"
    assert (ppo.gamma, ppo.lam) == (1.0, 0.95)
    assert (config.credit.scheme, config.credit.weighting) == ("spans", "token")
    assert config.credit.outcome_weight == 0.0


def test_what_unmarked_text_earns_is_said_and_differs_on_programs() -> None:
    """Section 4.6 and the published code pay +1 for it on KodCode; section 3.3, and every default, nothing."""
    assert {name: load_config(find_config(name)).credit.unlabelled for name in PAPER} == {
        "slf5k": 0.0,
        "kodcode": 1.0,
        "ultrafeedback": 0.0,
    }
    assert "unlabelled: 1.0" in find_config("kodcode").read_text("utf-8")


@pytest.mark.parametrize("name", PAPER)
def test_four_epochs_are_four_over_the_prompts_that_are_trained_on(name: str) -> None:
    published = {"slf5k": 5_000, "kodcode": 10_000, "ultrafeedback": 64_000}[name]
    config = load_config(find_config(name))
    training = published * (1 - config.task.heldout_share)
    if hub_data(config.task.data).heldout:  # the data set comes with prompts to measure on
        training = published
    if config.task.split is not None:
        training *= config.task.split[-1]
    passes = config.ppo.steps * config.ppo.rollouts / training
    assert passes == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize("name", PAPER)
def test_the_presets_of_the_paper_warm_a_value_function_up_and_say_what_they_are(name: str) -> None:
    path = find_config(name)
    ppo = load_config(path).ppo
    assert ppo.value_lr is not None and ppo.value_lr >= 100 * ppo.lr and ppo.warmup_steps == 5
    for file in (path, find_config("paper")):
        assert re.search(r"^# .*collapsed on every\s", file.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", PAPER)
def test_table_9_of_the_paper(name: str) -> None:
    config = load_config(find_config(name))
    model, training = config.policy, config.reward_model.training
    assert model.lora is not None
    assert config.reward_model.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert model.dtype == "bfloat16"  # the paper's float16 needs a loss scaling
    assert config.reward_model.max_new_tokens >= 2 * 256
    assert (model.lora.r, model.lora.dropout) == (16, 0.1)
    assert model.lora.targets == ("q_proj", "v_proj")
    assert (training.lr, config.training.weight_decay, training.epochs) == (1e-5, 3e-7, 2)
    assert training.batch_size == 8


@pytest.mark.parametrize(
    ("name", "task", "data", "policy"),
    [
        ("slf5k", "summarization", "JeremyAlain/SLF5K", "meta-llama/Llama-3.1-8B-Instruct"),
        ("kodcode", "code", "KodCode/KodCode-Light-RL-10K", "meta-llama/Llama-3.1-8B-Instruct"),
        ("ultrafeedback", "qa", "openbmb/UltraFeedback", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ],
)
def test_what_the_paper_trained_on_what(name: str, task: str, data: str, policy: str) -> None:
    config = load_config(find_config(name))
    assert (config.task.name, config.task.data, config.policy.model) == (task, data, policy)


# The way there and back


@pytest.mark.parametrize("name", preset_names())
def test_a_dumped_configuration_loads_back_equal(name: str, tmp_path: Path) -> None:
    config = load_config(find_config(name), ["--ppo.value_lr", ".inf", "--policy.model", "1e5", "--run.seed", "7"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config
    assert (config.ppo.value_lr, config.policy.model, config.run.seed) == (math.inf, "1e5", 7)


def test_what_nobody_set_can_be_left_out_and_stays_unset(tmp_path: Path) -> None:
    config = load_config(find_config("demo"), ["--run.seed", "7"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(laid_over(config, "scalar"), only_set=True), encoding="utf-8")
    again = load_config(path)
    assert again == laid_over(config, "scalar") and again.ppo.gamma == 1.0
    assert is_set(again, "run.seed") and is_set(again, "ppo.gamma") and is_set(again, "ppo.lr")
    assert not is_set(again, "ppo.mask_truncated") and not is_set(again, "run.parallel")


# Overrides


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--ppo.lr", "1e-4"], "ppo.lr", 1e-4),
        (["--ppo.lr=3E-5"], "ppo.lr", 3e-5),
        (["--ppo.lr", "1e-4", "--ppo.lr", "2e-4"], "ppo.lr", 2e-4),
        (["--ppo.kl_target", "null"], "ppo.kl_target", None),
        (["--reward_model.training.lr", "1e-4"], "reward_model.training.lr", 1e-4),
        (["--reward_model.model", "some/model"], "reward_model.model", "some/model"),
        (["--policy.lora.targets", "[q_proj, o_proj]"], "policy.lora.targets", ("q_proj", "o_proj")),
        (["--run.folder", "2026"], "run.folder", Path("2026")),
        (["--policy.model", "~"], "policy.model", "~"),
        (["--policy.model=a=b: c"], "policy.model", "a=b: c"),
        (["--task.seed", "-1"], "task.seed", -1),
    ],
)
def test_overrides(minimal: Path, words: list[str], key: str, value: object) -> None:
    found: object = load_config(minimal, words)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_an_override_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL + "ppo: {lr: 1e-3, steps: 3}\n", encoding="utf-8")
    config = load_config(path, ["--ppo.lr", "2e-3"])
    assert (config.ppo.lr, config.ppo.steps) == (2e-3, 3)
    assert config.ppo.rollouts == Config(task=config.task, policy=config.policy).ppo.rollouts


# The reference of settings


def test_every_setting_is_listed_once_and_can_be_set() -> None:
    keys = [setting.key for setting in describe_settings()]
    assert len(keys) == len(set(keys)) > 80
    assert {"task.name", "reward_model.training.lr", "credit.scheme", "evaluate.limit"} <= set(keys)
    defaults = {setting.key: setting.default for setting in describe_settings()}
    assert (defaults["policy.model"], defaults["ppo.kl_coefficient"]) == ("(required)", "0.4")


# The packaging that the commands of the README stand on


def test_every_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["train"], *extras["dev"]]:
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            assert requirement.extras <= set(extras)
            continue
        pin = pins.get(requirement.name.lower().replace("_", "-"))
        assert pin and requirement.specifier.contains(pin), line


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_on_and_off_are_words_although_yaml_reads_them_as_booleans(word: str) -> None:
    config = load_config(PRESETS / "demo.yaml", ["--reward_model.grounded", word])
    assert config.reward_model.grounded == word


def test_a_section_that_contradicts_itself_is_named_and_not_printed() -> None:
    with pytest.raises(UsageError) as raised:
        load_config(find_config("demo"), ["--ppo.advantage", "group"])
    said = "ppo: advantage group compares answers to one prompt: set samples_per_prompt to 4"
    assert str(raised.value) == said
