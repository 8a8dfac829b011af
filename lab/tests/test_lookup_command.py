"""The task `lookup` through the command line: sampling, critiques, training and evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Command

from text2grad.feedback import BETWEEN_TURNS, Feedback, Transcript, conversation_of, turns_of
from text2grad.jsonl import read_jsonl

SMALL = (
    *("--config", "text2grad_lab:lookup", "--task.limit", "96"),
    *("--sft.epochs", "8", "--sft.lr", "2e-2"),
    *("--ppo.steps", "1", "--ppo.rollouts", "8", "--ppo.max_kl", "null"),
    *("--evaluate.limit", "2", "--evaluate.samples", "1", "--generation.max_turns", "3"),
    *("--annotate.prompts", "4", "--annotate.samples_per_prompt", "2", "--annotate.heldout", "1"),
)
CRITIC = ("--annotate.critic", "text2grad_lab.tasks.lookup:LookupCritic")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from text2grad.cli import main

    run_folder = tmp_path_factory.mktemp("lookup")
    for words in (["sft"], ["annotate", *CRITIC]):
        with pytest.raises(SystemExit) as exit_info:
            main([*words, *SMALL, "--run.folder", str(run_folder)])
        assert not exit_info.value.code, words
    return run_folder


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_answers_are_stored_as_conversations_with_token_ids_per_turn(folder: Path) -> None:
    records = list(read_jsonl(folder / "feedback.jsonl", Feedback))
    assert len(records) == 8
    several = [record for record in records if isinstance(record.response, Transcript)]
    assert several, "some have several turns"
    for record in several:
        assert len(record.meta["token_ids"]) == len(turns_of(record.response))
        assert any(message.role == "tool" for message in conversation_of(record.response))
    records_on_disk = rows(folder / "feedback.jsonl")
    turns = [turn for row in records_on_disk for turn in row["response"] if row["response"]]
    assert all(turn["role"] and "content" in turn for turn in turns)


@pytest.mark.parametrize(
    "recipe", [(), ("--config", "scalar"), ("--config", "grpo")], ids=["ours", "scalar", "grpo"]
)
def test_a_step_of_each_method(folder: Path, command: Command, recipe: tuple[str, ...]) -> None:
    name = recipe[-1] if recipe else "ours"
    ended = command("train", "--name", name, *SMALL[:2], *recipe, *SMALL[2:], "--run.folder", folder)
    assert ended.code == 0, ended.err
    (metrics,) = rows(folder / "ppo" / name / "metrics.jsonl")
    assert metrics["turns"] > 1 and metrics["critic_failed"] == 0
    strips = rows(folder / "ppo" / name / "samples.jsonl")
    assert any(isinstance(strip["response"], list) for strip in strips), "some have several turns"
    for strip in strips:
        plain = [{"role": "assistant", "content": strip["response"]}]
        messages = strip["response"] if isinstance(strip["response"], list) else plain
        policy_text = "".join(message["content"] for message in messages if message["role"] == "assistant")
        assert "".join(strip["tokens"]) == policy_text and len(strip["tokens"]) == len(strip["reward"])


def test_evaluate_plays_episodes(folder: Path, command: Command) -> None:
    ended = command("evaluate", "sft", *SMALL, "--run.folder", folder, "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out.splitlines()[-1])
    (file,) = (folder / "evaluation").glob("*/sft.answers.json")
    answers = [row["response"] for row in json.loads(file.read_text("utf-8"))]
    assert len(answers) == 2 and any(BETWEEN_TURNS in answer for answer in answers), answers
    assert 0 <= summary["sampled_pass"] <= 1


def test_a_reward_model_of_turns_is_trained_gated_and_used(folder: Path, command: Command) -> None:
    small = ("--reward_model.training.epochs", "1", "--reward_model.max_new_tokens", "48")
    ended = command("train-reward", "--reward_model.label_weight", "1", *small, *SMALL, "--run.folder", folder)
    assert ended.code == 0, ended.err
    figures = json.loads((folder / "reward_model" / "gate.json").read_text("utf-8"))["figures"]
    assert figures["heldout"] > 0 and figures["fresh"] + figures["spoiled"] + figures["unreadable"] > 0
    fresh = list(read_jsonl(folder / "evaluation" / "reward_model.fresh.jsonl", Feedback))
    assert any(isinstance(record.response, Transcript) for record in fresh), "the gate plays episodes"
    against = ("--critic.kind", "reward_model", "--critic.reward_model.gate", "false")
    ended = command("train", "--name", "judged", *small, *SMALL, *against, "--run.folder", folder)
    assert ended.code == 0, ended.err
    (metrics,) = rows(folder / "ppo" / "judged" / "metrics.jsonl")
    assert metrics["turns"] > 1 and metrics["critic_failed"] < 1


def test_offline_training_learns_from_transcripts(folder: Path, command: Command) -> None:
    words = ("train", "--name", "off", "--offline", folder / "feedback.jsonl", "--offline.epochs", "1")
    ended = command(*words, *SMALL, "--run.folder", folder)
    assert ended.code == 0 and "answers: 8" in ended.err, ended.err
