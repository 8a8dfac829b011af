"""Shared steps of training commands: settings on disk, seeds, engines, and the inputs of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from text2grad.config import Config, load_config
from text2grad.config.derive import DataFacts
from text2grad.durable.identity import flatten
from text2grad.durable.run import ResumeMode
from text2grad.engines.settings import EngineName
from text2grad.errors import UserError
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.train import run_train
from text2grad.stages.training import UNFINISHED, prepare_training, refuse_other_engines
from tiny_runs import tiny_model

DATA = DataFacts(examples=8, prompt_tokens=4, target_tokens=4)
PLACES = ["sft", "ppo/mine"]
ENGINES: tuple[EngineName, ...] = ("local", "trl", "verl")
RESUME: tuple[ResumeMode, ...] = ("auto", "force")


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
def test_prepare_training_writes_nothing(place: str, tmp_path: Path) -> None:
    prepare_training(config(tmp_path / "run"), "sft", place, "auto")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", PLACES)
def test_settings_are_written_before_training_and_again_after_it(
    place: str, tmp_path: Path, policy: Policy
) -> None:
    run = tmp_path / "run"
    own = run / place if place.startswith("ppo/") else run

    def train(seed: int, fails: bool = False) -> None:
        stage = prepare_training(config(run, "--run.seed", str(seed)), "sft", place, "auto")
        with stage.finalise(policy, DATA).begin() as options:
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
def test_named_policies_train_from_the_seed(place: str, tmp_path: Path, policy: Policy) -> None:
    stage = prepare_training(config(tmp_path / "run"), "sft", place, "auto")
    first = torch.get_rng_state()
    torch.rand(3)  # as the making of adapters draws
    later = torch.get_rng_state()
    stage.finalise(policy, DATA)
    assert torch.equal(torch.get_rng_state(), first if place.startswith("ppo/") else later)


def test_inputs_include_the_starting_policy_and_those_of_the_stage(tmp_path: Path, policy: Policy) -> None:
    given = config(tmp_path / "run")
    other = given.policy.model_copy(update={"value_head": "separate", "model": "elsewhere"})
    run = prepare_training(given, "ppo", "ppo/mine", "force").finalise(policy, DATA)
    with run.begin() as plain:
        assert plain.inputs == flatten(run=given.run, policy=given.policy) and plain.resume == "force"
    with run.begin(other, {"the critic": "abc"}) as named:
        assert {**plain.inputs, "policy.value_head": "separate", "the critic": "abc"} == named.inputs


@pytest.mark.parametrize("engine", UNFINISHED)
@pytest.mark.parametrize("other", UNFINISHED)
def test_an_unfinished_run_of_another_engine_is_refused(engine: str, other: str, tmp_path: Path) -> None:
    left = tmp_path / "ppo" / "mine" / UNFINISHED[other].replace("*", "checkpoint-10")
    left.parent.mkdir(parents=True)
    left.write_text("{}", encoding="utf-8")
    chosen = config(tmp_path, "--engine.name", engine)
    if engine != other:
        for resume in RESUME:
            with pytest.raises(UserError, match=f"engine {other}.*--restart"):
                refuse_other_engines(prepare_training(chosen, "ppo", "ppo/mine", resume, engines=ENGINES))
    assert left.is_file()
    refuse_other_engines(prepare_training(chosen, "ppo", "ppo/mine", "restart", engines=ENGINES))
    assert left.is_file() == (engine == other)


def test_train_refuses_an_unfinished_run_of_another_engine(tmp_path: Path) -> None:
    left = tmp_path / "ppo" / "mine" / UNFINISHED["verl"]
    left.parent.mkdir(parents=True)
    left.write_text("20", encoding="utf-8")
    with pytest.raises(UserError, match="engine verl"):
        run_train(config(tmp_path), "mine")


def test_an_unsupported_engine_is_replaced_by_the_local_one_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = prepare_training(config(tmp_path, "--engine.name", "trl"), "reward_model", "reward_model", "auto")
    assert stage.engine == "local" and "trl" in capsys.readouterr().err
