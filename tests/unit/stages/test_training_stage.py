"""What training commands share: nothing is written too early, notes, seeds, rates, and what a run
depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from text2grad.config import Config, load_config
from text2grad.config.derive import DataFacts
from text2grad.durable.identity import flatten
from text2grad.errors import UserError
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.train import run_train
from text2grad.stages.training import UNFINISHED, leave_other_engines, prepare_training
from tiny_runs import tiny_model

DATA = DataFacts(examples=8, prompt_tokens=4, target_tokens=4)
PLACES = ["sft", "ppo/mine"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(PolicySettings(model=str(tiny_model(tmp_path_factory.mktemp("model")))))


def config(run: Path, *words: str) -> Config:
    given = ("--task.name", "demo", "--policy.model", "tiny", "--run.threads", "1")
    return load_config(None, [*given, "--run.folder", str(run), *words])


def noted(place: Path) -> Config | None:
    file = place / "config.yaml"
    return load_config(file) if file.is_file() else None


@pytest.mark.parametrize("place", PLACES)
def test_preparing_leaves_no_trace(place: str, tmp_path: Path) -> None:
    prepare_training(config(tmp_path / "run"), "sft", place, "auto")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", PLACES)
def test_settings_are_noted_before_training_and_renewed_only_after_it(
    place: str, tmp_path: Path, policy: Policy
) -> None:
    run = tmp_path / "run"
    own = run / place if place.startswith("ppo/") else run

    def train(seed: int, fails: bool = False) -> None:
        stage = prepare_training(config(run, "--run.seed", str(seed)), "sft", place, "auto")
        with stage.settle(policy, DATA).begin() as options:
            assert (options.folder, options.title, options.seed) == (run / place, Path(place).name, seed)
            assert noted(own) is not None
            if fails:
                raise UserError("it failed")

    def seed_in(folder: Path) -> int | None:
        found = noted(folder)
        return found.run.seed if found else None

    with pytest.raises(UserError, match="it failed"):
        train(1, fails=True)
    assert seed_in(own) == 1, "noted as it begins"
    train(2)
    assert seed_in(own) == 2, "and again when it is done"
    with pytest.raises(UserError, match="it failed"):
        train(3, fails=True)
    assert seed_in(own) == 2, "the settings of a finished run stay while another begins"
    if own != run:
        assert seed_in(run) == 1, "the settings of the run are noted once"


@pytest.mark.parametrize("place", PLACES)
def test_a_policy_of_its_own_name_is_trained_from_the_seed(place: str, tmp_path: Path, policy: Policy) -> None:
    stage = prepare_training(config(tmp_path / "run"), "sft", place, "auto")
    first = torch.get_rng_state()
    torch.rand(3)  # as the making of adapters draws
    later = torch.get_rng_state()
    stage.settle(policy, DATA)
    assert torch.equal(torch.get_rng_state(), first if place.startswith("ppo/") else later)


def test_a_run_depends_on_the_policy_that_was_trained_and_on_what_its_stage_names(
    tmp_path: Path, policy: Policy
) -> None:
    given = config(tmp_path / "run")
    other = given.policy.model_copy(update={"value_head": "separate", "model": "elsewhere"})
    run = prepare_training(given, "ppo", "ppo/mine", "force").settle(policy, DATA)
    with run.begin() as plain:
        assert plain.inputs == flatten(run=given.run, policy=given.policy) and plain.resume == "force"
    with run.begin(other, {"the critic": "abc"}) as named:
        assert {**plain.inputs, "policy.value_head": "separate", "the critic": "abc"} == named.inputs


@pytest.mark.parametrize("engine", UNFINISHED)
@pytest.mark.parametrize("other", UNFINISHED)
def test_an_unfinished_run_of_another_engine_is_not_trained_over(engine: str, other: str, tmp_path: Path) -> None:
    left = tmp_path / "ppo" / "mine" / UNFINISHED[other].replace("*", "checkpoint-10")
    left.parent.mkdir(parents=True)
    left.write_text("{}", encoding="utf-8")
    chosen = config(tmp_path, "--engine.name", engine)
    if engine != other:
        for resume in ("auto", "force"):
            with pytest.raises(UserError, match=f"engine {other}.*--engine {other}.*--restart"):
                leave_other_engines(prepare_training(chosen, "ppo", "ppo/mine", resume), engine)  # type: ignore[arg-type]
    assert left.is_file()
    leave_other_engines(prepare_training(chosen, "ppo", "ppo/mine", "restart"), engine)
    assert left.is_file() == (engine == other)


def test_train_asks_which_engine_began(tmp_path: Path) -> None:
    left = tmp_path / "ppo" / "mine" / UNFINISHED["verl"]
    left.parent.mkdir(parents=True)
    left.write_text("20", encoding="utf-8")
    with pytest.raises(UserError, match="engine verl"):
        run_train(config(tmp_path), "mine")
