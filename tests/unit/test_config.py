"""Configurations: the presets, the strict reader, overrides, and the way back to YAML."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from places import ROOT
from text2grad.cli import main
from text2grad.config import (
    PRESETS,
    Config,
    describe_settings,
    dump_config,
    find_config,
    load_config,
    preset_names,
    recipe_names,
    with_recipe,
)
from text2grad.data.files import hub_data
from text2grad.errors import EXIT_USAGE, UsageError
from text2grad.settings import is_set, value_at

MINIMAL = "task: {name: demo}\npolicy: {model: tiny}\n"


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return path


PAPER = {
    # lr, schedule, batch, kl coefficient, kl target, steps = 4 epochs x training prompts / batch,
    # response tokens
    "slf5k": (1e-6, "linear", 12, 0.2, 6.0, round(4 * 5_000 / 12), 89),
    "kodcode": (5e-7, "cosine", 8, 0.07, 1.0, 4 * 9_000 // 8, 256),
    "ultrafeedback": (1e-6, "cosine", 8, 0.05, 3.0, 4 * 12_544 // 8, 512),
}
TRAINED_ON = {
    # published prompts, task, data, policy
    "slf5k": (5_000, "summarization", "JeremyAlain/SLF5K", "meta-llama/Llama-3.1-8B-Instruct"),
    "kodcode": (10_000, "code", "KodCode/KodCode-Light-RL-10K", "meta-llama/Llama-3.1-8B-Instruct"),
    "ultrafeedback": (64_000, "qa", "openbmb/UltraFeedback", "meta-llama/Meta-Llama-3-8B-Instruct"),
}


def named(*names: str) -> Config:
    return load_config([find_config(name) for name in names])


# The presets


def test_presets_are_part_of_the_package() -> None:
    assert preset_names() == [
        "demo",
        "function_summaries",
        "human_qa",
        "kodcode",
        "own",
        "quick",
        "slf5k",
        "ultrafeedback",
    ]
    assert {path.resolve() for path in PRESETS.glob("*.yaml")} == set((ROOT / "configs").glob("*.yaml"))
    for name in preset_names():
        assert named(name) == load_config(find_config(str(ROOT / "configs" / f"{name}.yaml")))
        assert named(name).run.folder == Path("runs") / name
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = pyproject["tool"]["setuptools"]["package-data"]["text2grad"]
    assert {"configs/*.yaml", "configs/recipes/*.yaml"} <= set(packaged)


@pytest.mark.parametrize("name", PAPER)
def test_the_presets_of_the_paper(name: str) -> None:
    """Tables 9 and 10, and what was trained on what."""
    config, (prompts, *trained_on) = named(name), TRAINED_ON[name]
    ppo, credit = config.ppo, config.credit
    table_10 = (ppo.lr, ppo.schedule, ppo.rollouts, ppo.kl_coefficient, ppo.kl_target, ppo.steps)
    assert (*table_10, config.generation.max_new_tokens) == PAPER[name]
    assert (ppo.epochs, ppo.mini_batches, ppo.micro_batch_size, ppo.kl) == (4, 1, 1, "full")
    assert (ppo.advantage, ppo.gamma, ppo.lam) == ("gae", 1.0, 0.95)
    assert (credit.scheme, credit.weighting, credit.outcome_weight) == ("spans", "token", 0.0)
    assert credit.unlabelled == float(name == "kodcode"), "section 4.6; section 3.3 and every default: nothing"
    assert [config.task.name, config.task.data, config.policy.model] == trained_on
    training = prompts if hub_data(config.task.data).heldout else prompts * (1 - config.task.heldout_share)
    training *= 1 if config.task.split is None else config.task.split[-1]
    assert ppo.steps * ppo.rollouts / training == pytest.approx(4, rel=1e-3), "four epochs"
    assert ppo.value_lr is not None and ppo.value_lr >= 100 * ppo.lr and ppo.warmup_steps == 5

    model, learning = config.policy, config.reward_model.training
    assert (config.reward_model.model, model.dtype) == ("meta-llama/Llama-3.1-8B-Instruct", "bfloat16")
    assert model.lora is not None
    assert (model.lora.r, model.lora.dropout, model.lora.targets) == (16, 0.1, ("q_proj", "v_proj"))
    assert (learning.lr, config.training.weight_decay, learning.epochs, learning.batch_size) == (1e-5, 3e-7, 2, 8)
    assert config.reward_model.max_new_tokens >= 2 * 256


# Configurations laid over each other


@pytest.mark.parametrize("name", [name for name in recipe_names() if name not in ("smollm2", "mistral")])
def test_a_recipe_overrides_only_credit_and_ppo_of_a_preset(name: str) -> None:
    for preset in preset_names():
        before, after = named(preset), named(preset, name)
        assert before.model_dump(exclude={"credit", "ppo"}) == after.model_dump(exclude={"credit", "ppo"})
        assert (before.ppo.steps, before.ppo.lr) == (after.ppo.steps, after.ppo.lr)
        assert with_recipe(before, name) == after


def test_the_recipes_over_the_demo_and_its_defaults() -> None:
    demo, paper, scalar = named("demo"), named("demo", "paper"), named("demo", "scalar")
    assert (paper.ppo.advantage, paper.ppo.gamma, paper.ppo.lam, paper.ppo.kl_target) == ("gae", 1.0, 0.95, 6.0)
    assert (paper.credit.weighting, paper.credit.outcome_weight, paper.credit.poor_weight) == ("token", 0.0, 1.0)
    assert (scalar.credit.scheme, scalar.ppo.gamma, scalar.ppo.kl_coefficient) == ("last_token", 1.0, 0.2)
    changed = {"gamma", "kl_coefficient"}
    assert scalar.ppo.model_dump(exclude=changed) == demo.ppo.model_dump(exclude=changed)
    default = load_config(None, ["--task.name", "demo", "--policy.model", "tiny"])
    own = {"steps", "lr", "mini_batches", "micro_batch_size"}
    assert default.credit == demo.credit
    assert default.ppo.model_dump(exclude=own) == demo.ppo.model_dump(exclude=own)


def test_a_later_file_overrides_single_settings(minimal: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("ppo: {lr: 1e-3, steps: 3}\npolicy: {lora: {r: 4, targets: [q_proj, v_proj]}}\n")
    second.write_text("ppo: {lr: 2e-3}\npolicy: {lora: {targets: [o_proj]}}\n")
    config = load_config([minimal, first, second])
    assert (config.ppo.lr, config.ppo.steps) == (2e-3, 3)
    assert config.policy.lora is not None
    assert (config.policy.lora.r, config.policy.lora.targets) == (4, ("o_proj",))
    assert load_config([minimal, second, first]).ppo.lr == 1e-3


@pytest.mark.parametrize("name", PAPER)
def test_recipes_over_the_presets_of_the_paper(name: str) -> None:
    preset, paper, mistral = named(name), named(name, "paper"), named(name, "mistral")
    assert (paper.ppo.kl_coefficient, paper.ppo.kl_target) == PAPER[name][3:5], "of the data set, by table 10"
    assert paper.credit == preset.credit
    policy = preset.policy.model_copy(update={"model": "mistralai/Mistral-7B-Instruct-v0.2"})
    assert mistral == preset.model_copy(update={"policy": policy}), "table 5: another policy and nothing else"


def test_recipes_over_files_and_presets(minimal: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    for name in (*PAPER, "human_qa", "function_summaries"):
        own.write_text("ppo: {kl_coefficient: 0.123}\n", encoding="utf-8")
        both = load_config([find_config(name), own, find_config("scalar")])
        assert (both.credit.scheme, both.ppo.kl_coefficient) == ("last_token", 0.123), "it leaves the KL alone"
    own.write_text("recipe: paper\nppo: {lam: 0.5}\ntask: {name: code}\n", encoding="utf-8")
    ppo = load_config([minimal, own]).ppo  # a file is laid over the recipe that it names
    assert (ppo.lam, ppo.gamma, ppo.kl_coefficient, ppo.kl_target) == (0.5, 1.0, 0.07, 1.0)
    both = named("human_qa", "smollm2")
    assert (both.policy.model, both.policy.dtype, both.reward_model.shared) == ("smollm2", "auto", True)
    assert both.task == named("human_qa").task


# The way there and back


@pytest.mark.parametrize("name", preset_names())
def test_a_dumped_configuration_loads_back_equal(name: str, tmp_path: Path) -> None:
    config = load_config(
        find_config(name), ["--ppo.value_lr", "1e-300", "--policy.model", "1e5", "--run.seed", "7"]
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config
    assert (config.ppo.value_lr, config.policy.model, config.run.seed) == (1e-300, "1e5", 7)


def test_unset_settings_can_be_omitted_and_stay_unset(tmp_path: Path) -> None:
    config = load_config(find_config("demo"), ["--run.seed", "7"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(with_recipe(config, "scalar"), only_set=True), encoding="utf-8")
    again = load_config(path)
    assert again == with_recipe(config, "scalar") and again.ppo.gamma == 1.0
    assert is_set(again, "run.seed") and is_set(again, "ppo.gamma") and is_set(again, "ppo.lr")
    assert not is_set(again, "ppo.mask_truncated") and not is_set(again, "run.loggers")


# Overrides


OVERRIDES: list[tuple[list[str], str, object]] = [
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
    # words, although YAML reads two of them as booleans
    *((["--reward_model.grounded", word], "reward_model.grounded", word) for word in ("on", "off", "auto")),
]


def test_overrides(minimal: Path) -> None:
    for words, key, value in OVERRIDES:
        assert value_at(load_config(minimal, words), key) == value, words


def test_a_section_that_contradicts_itself_is_named_and_not_printed() -> None:
    with pytest.raises(UsageError, match=r"ppo: advantage group .*set samples_per_prompt") as raised:
        load_config(find_config("demo"), ["--ppo.advantage", "group"])
    assert raised.value.exit_code == EXIT_USAGE and len(str(raised.value)) < 120


# The packaging that the commands of the README stand on


def test_every_dependency_is_pinned_within_its_range() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)
    extras = project["optional-dependencies"]
    installed = [line for extra in ("train", "evaluate", "grounded", "page", "trl") for line in extras[extra]]
    for line in [*project["dependencies"], *installed, *settings["dependency-groups"]["dev"]]:
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            assert requirement.extras <= set(extras)
            continue
        pin = pins.get(requirement.name.lower().replace("_", "-"))
        assert pin and requirement.specifier.contains(pin), line


@pytest.mark.parametrize(
    ("key", "value"),
    [("sft.epochs", "inf"), ("credit.poor_weight", "nan"), ("run.seed", str(2**32)), ("run.threads", "100000")],
)
def test_invalid_numbers_are_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_config(find_config("demo"), [f"--{key}", value])
    assert key in str(refused.value)


def test_a_dotted_key_of_a_file_is_written_as_a_section(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("task: {name: demo}\npolicy: {model: tiny}\nrun.seed: 3\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        load_config(tmp_path / "c.yaml")
    assert "'run.seed'" in str(refused.value) and "run: {seed: VALUE}" in str(refused.value)


def test_fields_of_an_engine_are_a_mapping() -> None:
    words = [
        "--engine.name",
        "trl",
        "--engine.trl.use_vllm",
        "true",
        "--engine.verl.python",
        "/opt/verl/bin/python",
    ]
    engine = load_config(find_config("demo"), words).engine
    assert (engine.name, engine.trl, engine.verl.python) == (
        "trl",
        {"use_vllm": True},
        Path("/opt/verl/bin/python"),
    )
    kinds = {each.key: each.kind for each in describe_settings()}
    assert (kinds["engine.trl"], kinds["extra"]) == ("mapping", "sections")


def test_the_short_form_names_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", "--engine", "loacl", "--run.folder", str(tmp_path)])
    assert left.value.code == EXIT_USAGE and "engine.name" in capsys.readouterr().err
