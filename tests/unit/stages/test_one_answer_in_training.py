"""A policy that has one answer to each prompt has nothing to compare: said, and stopped, in the
first step."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from human_data import corrected_file, small_config
from text2grad.errors import UserError
from text2grad.stages.intake import run_import
from text2grad.stages.sft import run_sft
from text2grad.stages.train import run_train
from text2grad.train.watch.steps import check_variety

SURE = {"same_answers": 1.0, "entropy": 0.003}


@pytest.mark.parametrize(
    ("samples", "metrics", "refused", "line"),
    [
        ("4", SURE, r"all 4 answers to each prompt are the same \(entropy 0\.003 nats", ""),
        ("4", {"same_answers": 1.0, "entropy": 0.3}, "", "little to compare"),  # by chance, of a few short answers
        ("4", {"same_answers": 0.9, "entropy": 0.003}, "", ""),
        ("4", {"entropy": 0.02}, "", ""),  # one answer to each prompt: nobody knows
        ("1", {"entropy": 0.003}, "the policy has one answer to each prompt", ""),
    ],
)
def test_the_first_step_of_a_policy_with_one_answer_stops_the_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    samples: str,
    metrics: dict[str, float],
    refused: str,
    line: str,
) -> None:
    look = check_variety(small_config(tmp_path, "--ppo.samples_per_prompt", samples).ppo)
    assert look is not None
    with pytest.raises(UserError, match=refused) if refused else nullcontext():
        look(0, metrics)
    printed = capsys.readouterr().err
    assert line in printed and bool(printed) == bool(line)
    look(1, SURE)  # later it may be what training has come to


def test_through_the_stage_answers_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    """At a temperature next to 0 a policy has one answer, whatever it is sure of."""
    config = small_config(
        tmp_path / "run",
        *("--ppo.samples_per_prompt", "4", "--ppo.rollouts", "8", "--ppo.steps", "2"),
        *("--generation.temperature", "1e-4", "--critic.kind", "reference"),
    )
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    with pytest.raises(UserError, match="all 4 answers to each prompt are the same"):
        run_train(config, "text2grad")
    assert not (config.run.folder / "ppo" / "text2grad" / "policy").exists()


STILL = ("--ppo.steps", "4", "--ppo.value_warmup", "5", "--ppo.advantage", "gae")


def test_steps_that_are_all_warm_up_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all ppo\.steps \(4\) would be warm-up .* \(--ppo\.value_warmup 1"):
        run_train(small_config(tmp_path, *STILL), "text2grad")
