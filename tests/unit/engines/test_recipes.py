"""The recipes of docs/engines.md: every configuration is accepted by its engine, and is the
example's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from blocks import fenced, in_code
from places import ROOT
from text2grad.cli import main
from text2grad.config import Config, load_config
from text2grad.durable.run import RunOptions
from tiny_runs import tiny_model
from word_task import Words

PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
RECIPES = dict(zip(("one_card", "trl_eight_cards", "verl_cluster"), fenced(PAGE, "yaml"), strict=True))


class Asked(Words):
    """A task as a configuration names it."""

    def __init__(self, settings: Any) -> None:
        """Take no setting."""


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPES[request.param], encoding="utf-8")
    return request.param, file


def test_a_recipe_is_the_example_that_the_page_names(recipe: tuple[str, Path]) -> None:
    name, file = recipe
    example = ROOT / "examples" / f"{name}.yaml"
    assert f"../examples/{name}.yaml" in PAGE
    assert yaml.safe_load(file.read_text("utf-8")) == yaml.safe_load(example.read_text("utf-8"))


def test_a_recipe_is_accepted_by_its_engine(
    recipe: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, file = recipe
    config = load_config(file)
    accepted = {"one_card": accepted_here, "trl_eight_cards": accepted_by_trl, "verl_cluster": accepted_by_verl}
    accepted[name](config, file, tmp_path)
    out = capsys.readouterr().out
    if name == "verl_cluster":
        told = yaml.safe_load(out.partition("VERL_USE_EXTERNAL_MODULES=")[0])
        assert told["data"]["train_batch_size"] == 128
        assert told["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] == 4
        assert "trainer.n_gpus_per_node=8" in out and "actor_rollout_ref.rollout.agent.num_workers=8" in out


def accepted_here(config: Config, file: Path, place: Path) -> None:
    """By the local loop: adapters, and a reward model that shares their weights."""
    assert config.engine.name == "local" and config.policy.lora and config.reward_model.shared
    assert config.ppo.rollouts % config.ppo.samples_per_prompt == 0
    assert config.critic.reward_model.base_url is None


def accepted_by_trl(config: Config, file: Path, place: Path) -> None:
    """By TRL's own class, with all fields but those that want a GPU here."""
    pytest.importorskip("trl", reason="pip install 'text2grad[trl]'")
    from text2grad.engines.trl.fields import make_args, plan_passes, refuse_unfit, shared_fields

    refuse_unfit(config.engine.trl, config.ppo, config.generation)
    shape = plan_passes(config.ppo, 8)
    assert shape == (8, 4)
    fields = {**config.engine.trl, "use_vllm": False, "bf16": False}
    alone = shape._replace(passes=8 * shape.passes)
    shared = shared_fields(RunOptions(place, "recipe"), alone, torch.device("cpu"))
    args = make_args(fields, config.ppo, config.generation, shared)
    assert (args.num_generations, args.steps_per_generation, args.vllm_mode) == (8, 64, "colocate")


def accepted_by_verl(config: Config, file: Path, place: Path) -> None:
    """By `train --plan`, with another model and task."""
    words = ["train", "--config", str(file), "--plan", "--run.folder", str(place / "run"), "--task.data", ""]
    words += ["--task.name", f"{__name__}:Asked", "--policy.model", str(tiny_model(place / "start", 1024))]
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0


def test_what_to_watch_is_logged() -> None:
    """Every metric that a recipe names is one of docs/metrics.md, and each recipe names some."""
    watched = re.findall(r"^\*\*Watch\*\* (.*?)\n\n", PAGE + "\n\n", flags=re.DOTALL | re.MULTILINE)
    known = set(in_code(METRICS, r"[a-z_0-9*]+"))
    for paragraph in watched:
        names = set(in_code(paragraph, r"[a-z_0-9*]+_[a-z_0-9*]+|kl"))
        assert len(names) > 3 and names - known == set()
    assert len(watched) == len(RECIPES)


def test_lines_are_short() -> None:
    assert [line for line in PAGE.splitlines() if len(line) > 100] == []
