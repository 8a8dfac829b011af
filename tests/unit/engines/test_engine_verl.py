"""`train --engine verl` where there is no verl: what is written for it, what is refused, and what
comes back."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from text2grad.align import CreditSettings
from text2grad.cli import main
from text2grad.durable.run import save_policy
from text2grad.engines import verl
from text2grad.engines.settings import VerlSettings
from text2grad.errors import EXIT_FAILED, EXIT_TERMINATED, EXIT_USAGE, UsageError, UserError
from text2grad.feedback import Example, Message
from text2grad.policy.load import load_policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.train.ppo_settings import PPOSettings
from tiny_runs import tiny_model
from word_task import Words

EXAMPLES = [Example(id=str(n), prompt=(Message(role="user", content=f"say {n}"),), reference="r") for n in range(3)]


class Told(Words):
    """A task as a configuration names it."""

    def __init__(self, settings: Any) -> None:
        """Take no setting."""


def job(place: Path, model: str = "org/model", lora: Any = None, options: Any = None, **ppo: Any) -> verl.Job:
    return verl.Job(
        place=place,
        policy=PolicySettings(model=model, lora=lora, value_head="separate"),
        ppo=PPOSettings(**{"steps": 4, "rollouts": 8, "samples_per_prompt": 2, "micro_batch_size": 3, **ppo}),
        credit=CreditSettings(poor_weight=2.0),
        generation=GenerationSettings(max_new_tokens=16, temperature=0.7),
        verl=VerlSettings(options=options or {}),
        seed=5,
        settings="run: {seed: 5}\n",
        critic="here:critic",
        environment="",
        prompt_tokens=12,
    )


def test_the_objective_is_ours_in_verls_words(tmp_path: Path) -> None:
    told = verl.configuration(job(tmp_path / "a", clip_high=0.28, epochs=3, mini_batches=2, lr=1e-5, steps=7))
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    expected = {
        "algorithm.adv_estimator": "text2grad",
        "trainer.v1.trainer_mode": "text2grad",
        "trainer.total_training_steps": 7,
        "data.train_batch_size": 4,
        "data.shuffle": False,
        "data.max_response_length": 16,
        f"{actor}.ppo_mini_batch_size": 2,
        f"{actor}.ppo_micro_batch_size_per_gpu": 2,
        f"{actor}.ppo_epochs": 3,
        f"{actor}.clip_ratio_low": 0.2,
        f"{actor}.clip_ratio_high": 0.28,
        f"{actor}.loss_agg_mode": "token-mean",
        f"{actor}.optim.lr": 1e-5,
        f"{actor}.optim.weight_decay": 0.0,
        f"{actor}.grad_clip": 1.0,
        f"{rollout}.n": 2,
        f"{rollout}.temperature": 0.7,
        "critic.enable": False,
    }
    assert {key: told[key] for key in expected} == expected
    assert told[f"{actor}.clip_ratio_c"] > 1e6, "a second clip that the local loop does not have"
    assert "mixed_precision" in str(told), "float32 is computed in float32"


def test_a_value_function_is_configured_where_there_is_one(tmp_path: Path) -> None:
    told = verl.configuration(job(tmp_path, advantage="gae", value_lr=1e-3, value_warmup=2))
    assert told["critic.enable"] and told["critic.optim.lr"] == 1e-3 and told["critic.cliprange_value"] == 0.2
    assert told["trainer.critic_warmup"] == 3, "verl counts steps from 1 and begins at this one"


@pytest.mark.parametrize("beta", [0, 1])
def test_the_reference_is_loaded_without_a_penalty_too(tmp_path: Path, beta: float) -> None:
    """The KL is reported, and `ppo.max_kl` stops a run that has diverged."""
    assert verl.configuration(job(tmp_path, kl_coefficient=beta))["algorithm.use_kl_in_reward"] is True


def test_adapters_are_verls_of_the_same_shape(tmp_path: Path) -> None:
    told = verl.configuration(job(tmp_path, lora=LoraSettings(r=4, targets=("q_proj",))))
    shape = {key: told[f"actor_rollout_ref.model.{key}"] for key in ("lora_rank", "lora_alpha", "target_modules")}
    assert shape == {"lora_rank": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


def test_files_are_written_that_say_it_all(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    made = job(tmp_path / "ppo" / "mine")
    verl.write_inputs(made, EXAMPLES)
    told = yaml.safe_load((made.folder / "ppo.yaml").read_text("utf-8"))
    assert told["defaults"] == ["ppo_trainer", "_self_"]
    assert told["actor_rollout_ref"]["rollout"]["n"] == 2
    assert told["text2grad"]["credit"]["poor_weight"] == 2.0 and told["text2grad"]["critic"] == "here:critic"
    (loop,) = yaml.safe_load((made.folder / "loop.yaml").read_text("utf-8"))
    assert loop == {"name": "text2grad", "_target_": "text2grad.engines.verl_side.CriticLoop"}
    assert (made.folder / "settings.yaml").read_text("utf-8") == made.settings
    rows = parquet.read_table(made.folder / "prompts.parquet").to_pylist()
    asked = [Example.model_validate_json(row["extra_info"]["example"]) for row in rows]
    assert len(rows) == 4 * 4 and rows[0]["prompt"] == [{"role": "user", "content": asked[0].prompt[0].content}]
    assert sorted(example.id for example in asked[:3]) == ["0", "1", "2"], "every prompt once in a pass"
    assert [row["extra_info"]["index"] for row in rows] == [*range(16)]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kl": "full"}, "ppo.kl"),
        ({"kl_target": 1.0}, "ppo.kl_target"),
        ({"schedule": "linear"}, "ppo.schedule"),
        ({"heldout_every": 2}, "ppo.heldout_every"),
        ({"keep_every": 2}, "ppo.keep_every"),
        ({"mini_batches": 3}, "ppo.mini_batches"),
        ({"options": {"trainer.n_gpus_per_node": 3}}, "3 GPUs"),
        ({"options": {"trainer": {"nnodes": "two"}}}, "trainer"),
    ],
)
def test_settings_that_verl_cannot_honour(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as refused:
        verl.refuse_unfit(job(tmp_path, **settings))
    assert named in str(refused.value) and refused.value.cure


def test_a_value_function_on_the_policys_trunk(tmp_path: Path) -> None:
    made = job(tmp_path, advantage="gae")
    verl.refuse_unfit(made)
    shared = made.policy.model_copy(update={"value_head": "shared"})
    with pytest.raises(UserError) as refused:
        verl.refuse_unfit(verl.Job(**{**vars(made), "policy": shared}))
    assert "policy.value_head" in str(refused.value)


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("actor_rollout_ref.actor.ppo_epochs", "ppo.epochs"),
        ("+actor_rollout_ref.actor.clip_ratio_c", ""),
        ("algorithm.gamma", "ppo.gamma"),
        ("actor_rollout_ref.rollout.temperature", "generation.temperature"),
        ("critic.optim.lr", "ppo.value_lr"),
        ("trainer.v1.trainer_mode", "ppo.advantage"),
        ("reward.reward_model.enable", "critic.kind"),
    ],
)
def test_options_that_would_change_what_is_learned(option: str, setting: str) -> None:
    *sections, last = option.split(".")
    nested: Any = {last: 1}
    for section in reversed(sections):
        nested = {section: nested}
    for options in ({option: 1}, nested):
        with pytest.raises(UsageError) as refused:
            verl.user_options(options)
        assert option in str(refused.value) and setting in str(refused.value)


def test_every_key_of_the_objective_is_refused(tmp_path: Path) -> None:
    """What is written for verl is either means, which may be set, or refused."""
    means = ("val_", "num_workers", "micro_batch", "device", "seed", "strategy", "mixed_precision", "save_contents")
    means += ("tensor_model", "calculate_log_probs", "dtype", "load_format", "rollout.name", "env_vars", "logger")
    means += ("nnodes", "n_gpus", "project_name", "experiment_name", "test_freq", "save_freq", "ckpt_to_keep")
    for key in verl.configuration(job(tmp_path, advantage="gae", lora=LoraSettings())):
        if not any(part in key for part in means):
            with pytest.raises(UsageError):
                verl.user_options({key: 1})


def test_options_become_words_of_the_command(tmp_path: Path) -> None:
    options = {"trainer": {"nnodes": 2, "n_gpus_per_node": 1}, "+a.b": [1, "x"], "c": "it's", "d": None, "e": True}
    words = verl.command(job(tmp_path, options=options), "/opt/python")
    assert words[:3] == ["/opt/python", "-m", "verl.trainer.main_ppo"]
    assert words[-6:] == [
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=1",
        '+a.b=[1, "x"]',
        r"c='it\'s'",
        "d=null",
        "e=true",
    ]


def fake_python(path: Path, lines: str) -> str:
    """A program that answers as a Python would."""
    path.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ('echo \'["0.8.0", "0.2.0"]\'', "0.8.0"),
        ("echo '[null, null]'", "no verl"),
        ("echo '[\"0.9.1\", null]'", "no text2grad"),
        ('echo \'["0.9.1", "0.0.1"]\'', "0.0.1"),
        ("echo hello", "no Python"),
        ("exit 3", "no Python"),
    ],
)
def test_a_python_that_cannot_run_it(tmp_path: Path, answer: str, named: str) -> None:
    with pytest.raises(UserError) as refused:
        verl.check_python(fake_python(tmp_path / "python", answer))
    assert (named in str(refused.value) and "pip install" in str(refused.value)) or "Python" in named


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        verl.check_python(str(tmp_path / "none"))
    assert refused.value.exit_code == EXIT_FAILED


def test_a_run_that_began_otherwise_is_not_resumed(tmp_path: Path) -> None:
    made = job(tmp_path / "mine")
    made.checkpoints.mkdir(parents=True)
    (made.checkpoints / verl.LATEST).write_text("2", "utf-8")
    (made.folder / "ppo.yaml").write_text(verl.render_config(made), "utf-8")
    verl.refuse_other_settings(made)
    verl.refuse_other_settings(job(tmp_path / "mine", max_failed=0.1))
    with pytest.raises(UserError) as refused:
        verl.refuse_other_settings(job(tmp_path / "mine", lr=1e-3))
    assert "optim.lr" in str(refused.value) and "--restart" in str(refused.value)


TRAINS = """import json, os, pathlib, sys, time
place = pathlib.Path(sys.argv[sys.argv.index("--config-dir") + 1])
(place / "pid").write_text(str(os.getpid()))
time.sleep(float(os.environ.get("SLEEPS", "0")))
hf = place / "checkpoints" / "global_step_4" / "actor" / "huggingface"
hf.mkdir(parents=True)
(hf / "config.json").write_text("{}")
(place / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(os.environ.get("ENDS", "4"))
with open(place.parent / "metrics.jsonl", "a") as file:
    for step in range(4):
        file.write(json.dumps({"step": step, "score": 0.5}) + "\\n")
assert "text2grad.engines.verl_side" in os.environ["VERL_USE_EXTERNAL_MODULES"]
if told := os.environ.get("TELLS"):
    (place / "problem.json").write_text(told)
print("Some.Error: that went wrong")
sys.exit(int(os.environ.get("FAILS", "0")))
"""


@pytest.fixture
def ready(tmp_path: Path) -> tuple[verl.Job, str]:
    """A job, and a Python that plays verl."""
    (tmp_path / "trains.py").write_text(TRAINS, "utf-8")
    python = fake_python(tmp_path / "python", f'exec {sys.executable} {tmp_path / "trains.py"} "$@"')
    return job(tmp_path / "ppo" / "mine", str(tiny_model(tmp_path / "start"))), python


def test_what_comes_back_is_a_folder_like_any_other(ready: tuple[verl.Job, str]) -> None:
    made, python = ready
    verl.train(made, EXAMPLES, python)
    names = {path.name for path in (made.place / "policy").iterdir()}
    assert {"config.json", "tokenizer.json", "manifest.json"} <= names
    rows = [json.loads(line) for line in (made.place / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert not made.checkpoints.exists()


def test_another_adapter_is_another_start(tmp_path: Path) -> None:
    adapter, weights = tmp_path / "adapter", []
    for seed in (0, 1):
        torch.manual_seed(seed)
        policy = load_policy(PolicySettings(model=str(tiny_model(tmp_path / "base")), lora=LoraSettings(r=2)))
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight)
        save_policy(policy, adapter)
        made = job(tmp_path / "mine", str(adapter))
        verl.write_start(made)
        weights.append(load_file(Path(made.start) / "model.safetensors"))
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert "lora" not in "".join(weights[0]), "the adapter is merged"


def test_a_run_that_fails_says_why_and_leaves_no_policy(
    ready: tuple[verl.Job, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, python = ready
    for variables, named in (
        ({"FAILS": "1"}, "that went wrong"),
        ({"FAILS": "1", "TELLS": '{"problem": "9 of 9 critiques failed", "cure": "mend it"}'}, "9 of 9"),
        ({"ENDS": "2", "TELLS": ""}, "2 of 4"),
    ):
        monkeypatch.setenv("FAILS", "0")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError) as refused:
            verl.train(made, EXAMPLES, python, "restart")
        assert named in str(refused.value) and not (made.place / "policy").exists()


def test_a_signal_ends_verl_as_well(ready: tuple[verl.Job, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made, python = ready
    monkeypatch.setenv("SLEEPS", "60")
    asked = Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    asked.start()
    with pytest.raises(SystemExit) as left:
        verl.train(made, EXAMPLES, python)
    assert left.value.code == EXIT_TERMINATED
    running = int((made.folder / "pid").read_text("utf-8"))
    with pytest.raises(ProcessLookupError):
        os.kill(running, 0)


def train_words(place: Path) -> list[str]:
    words = ["train", "--engine", "verl", "--run.folder", str(place / "run"), "--name", "mine", "--config", "own"]
    words += ["--task.name", f"{__name__}:Told", "--task.data", "", "--critic.kind", "word_task:Finder"]
    words += ["--policy.model", str(tiny_model(place / "start")), "--policy.lora", "null"]
    return [*words, "--generation.max_new_tokens", "8", "--ppo.rollouts", "8", "--ppo.samples_per_prompt", "1"]


def test_the_command_plans_without_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*train_words(tmp_path), "--plan", "--engine.verl.options.trainer.nnodes", "2"])
    out = capsys.readouterr().out
    assert left.value.code == 0 and "ppo_trainer" in out and "verl.trainer.main_ppo" in out
    assert "trainer.nnodes=2" in out
    assert (tmp_path / "run" / "ppo" / "mine" / "verl" / "prompts.parquet").is_file()
    assert not (tmp_path / "run" / "ppo" / "mine" / "policy").exists()


def test_the_command_reports_signs_of_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(job: verl.Job, *_: Any) -> None:
        (job.place / "metrics.jsonl").write_text('{"step": 0, "unmatched_share": 0.5}\n')

    monkeypatch.setattr(verl, "check_python", lambda *_: None)
    monkeypatch.setattr(verl, "train", train)
    with pytest.raises(SystemExit) as left:
        main(train_words(tmp_path))
    assert left.value.code == 0 and "warning: 50.0% of the quotes" in capsys.readouterr().err


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "train",
        "--config",
        "own",
        "--run.folder",
        str(tmp_path / "run"),
        "--task.name",
        f"{__name__}:Told",
        "--task.data",
        "",
    ]
    common += ["--policy.model", str(tiny_model(tmp_path / "start")), "--generation.max_new_tokens", "8"]
    finder = ["--critic.kind", "word_task:Finder"]
    for words, code, named in (
        ([*finder, "--plan"], EXIT_USAGE, "--engine verl"),
        (["--engine", "verl", "--critic.kind", "reward_model"], EXIT_FAILED, "base_url"),
        ([*finder, "--engine", "verl", "--engine.verl.python", str(tmp_path / "none")], EXIT_FAILED, "verl.python"),
        ([*finder, "--engine", "verl", "--engine.verl.python", sys.executable], EXIT_FAILED, "no verl"),
        (
            [*finder, "--engine", "verl", "--plan", "--engine.verl.options.algorithm.gamma", "1"],
            EXIT_USAGE,
            "ppo.gamma",
        ),
    ):
        with pytest.raises(SystemExit) as left:
            main([*common, *words])
        said = capsys.readouterr().err
        assert left.value.code == code and named in said, said
    assert not (tmp_path / "run" / "ppo").exists()
