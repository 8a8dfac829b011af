"""What `train` does beside each step: what it adds, and that it changes nothing."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from chat_server import KEY, ChatServer, last_message, said
from text2grad.config import PRESETS, Config, load_config
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.stages.critics import CriticFactory
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.train import QUOTE_STEPS, run_train, watch_quotes
from text2grad.tasks.base import Split
from tiny_runs import Halves, tiny_model


class Lengths:
    """An answer is measured by its length; two prompts to train on and one held out."""

    name, critic_prompt = "lengths", "qa"
    held = 1

    def examples(self, split: Split) -> list[Example]:
        names = ("x",) * self.held if split == "heldout" else ("a", "b")
        return [
            Example(id=name, prompt=(Message(role="user", content=f"Say {name}."),), reference="ok")
            for name in names
        ]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"rouge_l": len(response) / 100, "other": 1.0}


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Lengths:
    found = Lengths()
    monkeypatch.setattr(RunFolder, "task", lambda run: found)
    monkeypatch.setattr(CriticFactory, "open", lambda *words: nullcontext(Halves()))
    return found


def config_in(folder: Path, *words: str) -> Config:
    model = str(tiny_model(folder / "model"))
    (folder / "run").mkdir()
    common = ["--run.folder", str(folder / "run"), "--policy.model", model, "--generation.max_new_tokens", "5"]
    small = ["--ppo.steps", "3", "--ppo.rollouts", "4", "--evaluate.samples", "2", "--run.threads", "1"]
    return load_config(PRESETS / "demo.yaml", [*common, *small, *words])


def trained(folder: Path, *words: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    run_train(config_in(folder, *words), "mine")
    place = folder / "run" / "ppo" / "mine"
    rows = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return rows, load_file(place / "policy" / "model.safetensors")


def test_measuring_adds_to_the_metrics_and_changes_no_step(tmp_path: Path, task: Lengths) -> None:
    for name in ("plain", "watched"):
        (tmp_path / name).mkdir()
    plain, _ = trained(tmp_path / "plain")
    watched, _ = trained(tmp_path / "watched", "--ppo.heldout_every", "2")
    added = [set(new) - set(old) for new, old in zip(watched, plain, strict=True)]
    names = {"heldout_greedy_rouge_l", "heldout_sampled_rouge_l", "seconds_heldout"}
    assert added == [set(), names, names]
    same = [{key: row[key] for key in row if "seconds" not in key and "heldout" not in key} for row in watched]
    assert same == [{key: row[key] for key in row if "seconds" not in key} for row in plain]


def test_quotes_that_are_not_in_the_answers_are_reported_once_and_end_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = watch_quotes(0.1)
    for step in range(QUOTE_STEPS - 1):
        look(step, {"unmatched_share": 0.04 if step else 0.5})
    assert capsys.readouterr().err == "", "too few steps to say"
    look(QUOTE_STEPS - 1, {"unmatched_share": 0.04})
    look(QUOTE_STEPS, {"unmatched_share": 0.3})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 8.6% of the quotes")
    look(QUOTE_STEPS + 1, {"unmatched_share": 0.3})
    with pytest.raises(UserError, match=r"11\.8% .*ppo\.max_unmatched"):
        look(QUOTE_STEPS + 2, {"unmatched_share": 0.3})


def test_without_held_out_prompts_nothing_begins(tmp_path: Path, task: Lengths) -> None:
    task.held = 0
    with pytest.raises(UserError, match="no held-out prompts to measure on"):
        run_train(config_in(tmp_path, "--ppo.heldout_every", "1"), "mine")
    assert not (tmp_path / "run" / "ppo" / "mine" / "metrics.jsonl").exists()


def test_policies_on_the_way_are_kept_under_names_of_their_own(tmp_path: Path, task: Lengths) -> None:
    for name in ("plain", "kept"):
        (tmp_path / name).mkdir()
    _, before = trained(tmp_path / "plain", "--ppo.steps", "2")
    _, after = trained(tmp_path / "kept", "--ppo.keep_every", "2")
    place = tmp_path / "kept" / "run" / "ppo" / "mine"
    assert [each.name for each in place.glob("mine-step-*")] == ["mine-step-2"]
    on_the_way = load_file(place / "mine-step-2" / "model.safetensors")
    assert all(on_the_way[key].equal(before[key]) for key in before), "as a run of two steps ends"
    assert not all(on_the_way[key].equal(after[key]) for key in after)


def test_two_policies_on_the_way_are_compared_by_a_judge(
    tmp_path: Path, task: Lengths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for the paper's Figure 6: each is measured by its folder, the second against the answers
    of the first."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(RunFolder, "task", lambda run: task)
    server = ChatServer(lambda name, turn, body: said("first"), last_message)
    judge = ("--evaluate.judge", "gpt-4o", "--evaluate.judge_url", server.url)
    config = config_in(tmp_path, "--ppo.keep_every", "1", "--evaluate.token_reward", "false", *judge)
    run_train(config, "mine")
    first, second = (tmp_path / "run" / "ppo" / "mine" / f"mine-step-{step}" for step in (1, 2))
    run_evaluate(config, str(first))
    answers = tmp_path / "run" / "evaluation" / "demo" / "mine-step-1.answers.json"
    found = run_evaluate(config, str(second), str(answers)).as_dict()
    server.close()
    assert (found["judge_against"], found["judge_judged"], found["judge_failed"]) == (answers.name, 1, 0)
    assert answers.with_name("mine-step-2.answers.json").is_file()
