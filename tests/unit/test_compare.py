"""Comparing methods: what is run in which order, what is not run again, and the figures of the table."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from text2grad import compare
from text2grad.cli import _listed
from text2grad.compare import METHODS, OWN, SHARED, Seed, Work, methods_of, over_problems, side_by_side, works_of
from text2grad.config import Config, find_config, load_config
from text2grad.errors import UsageError, UserError
from text2grad.eval.metrics import mean_with_interval


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config([find_config("demo")], [f"--run.folder={tmp_path}"])


def test_every_method_has_its_works() -> None:
    assert set(METHODS) == {"base", "sft", *OWN}
    assert list(works_of(["base"])) == ["evaluate base"]
    for name in OWN:
        works = list(works_of([name]))
        assert works[0] == "sft" and works[-2:] == [name, f"evaluate {name}"]
    for work in (*OWN.values(), *SHARED.values()):
        assert all(earlier in SHARED for earlier in work.after)


def test_a_work_comes_after_those_it_waits_for_and_once() -> None:
    works = list(works_of(list(METHODS)))
    assert len(works) == len(set(works)) == len(OWN) + len(SHARED) + len(METHODS)
    for name, work in works_of(list(METHODS)).items():
        assert all(works.index(earlier) < works.index(name) for earlier in work.after)


@pytest.mark.parametrize(
    ("names", "changes", "problem"),
    [
        (["sft", "dop"], {}, "no method 'dop'"),
        ([], {}, "nothing to compare"),
        (["base"], {}, "no base"),
        (["grpo"], {"rollouts": 12}, "grpo does not fit these settings: rollouts 12 is not a multiple"),
        (["rlsd"], {"rollouts": 12}, "rlsd does not fit these settings: rollouts 12 is not a multiple"),
    ],
)
def test_what_cannot_be_compared(config: Config, names: list[str], changes: dict[str, Any], problem: str) -> None:
    ppo = config.ppo.model_copy(update=changes)
    with pytest.raises(UsageError, match=problem):
        methods_of(names, config.model_copy(update={"ppo": ppo}))


@pytest.mark.parametrize("name", ["sdpo", "rlsd", "routed"])
def test_a_method_with_a_teacher_needs_a_critic_that_writes(config: Config, name: str) -> None:
    critic = config.critic.model_copy(update={"kind": "scalar_model"})
    with pytest.raises(UsageError, match=f"{name} does not fit these settings: ppo.teacher is shown a critique"):
        methods_of([name], config.model_copy(update={"critic": critic}))


def test_methods_are_in_the_order_of_the_table(config: Config) -> None:
    assert methods_of(["text2grad", "sft", "dpo"], config) == ["sft", "dpo", "text2grad"]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of commands that would have been run, all of which end well."""
    said: list[list[str]] = []
    lock = threading.Lock()

    def run(command: list[str], log: Path) -> tuple[int, float]:
        with lock:
            said.append(list(command[3:]))
        log.write_text("error: out of luck\n", encoding="utf-8")
        return (1 if "offline" in command else 0), 10.0

    monkeypatch.setattr(compare, "run_command", run)
    return said


def jobs(seed: Seed, methods: list[str]) -> list[tuple[Seed, str, Work]]:
    return [(seed, name, work) for name, work in works_of(methods).items()]


def test_nothing_is_run_twice_and_a_changed_setting_is_run_again(
    config: Config, commands: list[list[str]], tmp_path: Path
) -> None:
    seed = Seed(config, 3, tmp_path / "seed-3")
    side_by_side(jobs(seed, ["sft", "scalar"]), 2)
    run = [words[0] for words in commands]
    assert sorted(run) == ["annotate", "evaluate", "evaluate", "sft", "train", "train-reward"] and run[0] == "sft"
    assert all("--restart" not in words for words in commands)
    commands.clear()
    side_by_side(jobs(seed, ["sft", "scalar"]), 2)
    assert not commands
    slower = config.model_copy(update={"ppo": config.ppo.model_copy(update={"lr": 1e-9})})
    side_by_side(jobs(Seed(slower, 3, tmp_path / "seed-3"), ["sft", "scalar"]), 1)
    assert sorted(words[0] for words in commands) == ["evaluate", "evaluate", "train"], "what is shared stays"
    assert "--restart" in next(words for words in commands if words[0] == "train")


def test_a_recipe_lies_over_the_settings_of_its_run(
    config: Config, commands: list[list[str]], tmp_path: Path
) -> None:
    seed = Seed(config, 3, tmp_path / "seed-3")
    side_by_side(jobs(seed, ["scalar"]), 1)
    words = next(words for words in commands if words[0] == "train")
    written = load_config([Path(words[words.index("--config") + 1])], [])
    assert written.credit.scheme == "last_token" and written.run.seed == written.task.seed == 3
    assert config.credit.scheme == "spans"


def test_a_command_that_fails_ends_the_comparison_and_what_ended_stays(
    config: Config, commands: list[list[str]], tmp_path: Path
) -> None:
    seed = Seed(config, 3, tmp_path / "seed-3")
    with pytest.raises(UserError, match="offline failed: out of luck"):
        side_by_side(jobs(seed, ["sft", "offline"]), 1)
    assert seed.done("annotate", SHARED["annotate"]) and not seed.done("offline", OWN["offline"])


def test_differences_are_paired_by_problem_and_seed() -> None:
    own = [{"sampled": {"a": 1.0, "b": 0.0}}, {"sampled": {"a": 0.5, "c": 1.0}}]
    ours = [{"sampled": {"a": 0.5, "b": 0.5}}, {"sampled": {"a": 0.5, "c": 0.0}}]
    assert over_problems(own, "sampled") == [0.75, 0.0, 1.0]
    assert over_problems(own, "sampled", ours) == [0.25, -0.5, 1.0]
    assert mean_with_interval(over_problems(own, "sampled", own)) == (0.0, 0.0, 0.0)


def test_the_rows_of_the_table(config: Config, commands: list[list[str]], tmp_path: Path) -> None:
    seeds = [Seed(config, number, tmp_path / f"seed-{number}") for number in (0, 1)]
    rates = {"sft": (0.5, 0.25), "text2grad": (0.75, 1.0)}
    for number, seed in enumerate(seeds):
        side_by_side(jobs(seed, list(rates)), 1)
        for name, values in rates.items():
            scores = {way: {"p": {"pass": values[number]}, "q": {"pass": 0.0}} for way in ("greedy", "sampled")}
            place = seed.folder / "evaluation" / "demo" / f"{name}.scores.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(scores), encoding="utf-8")
        (seed.folder / "feedback.jsonl").write_text("{}\n" * 5, encoding="utf-8")
        run = seed.folder / "ppo" / "text2grad"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text('{"step": 0, "response_length": 10.0}\n' * 3, encoding="utf-8")
    rows = compare.rows_of(list(rates), seeds, "pass")
    assert rows["sft"]["seeds"] == [0.25, 0.125] and rows["sft"]["metric"] == 0.1875
    assert rows["sft"]["difference"] == pytest.approx(-0.25) and "difference" not in rows["text2grad"]
    batch = config.ppo.rollouts
    assert (rows["text2grad"]["rollouts"], rows["text2grad"]["sampled_tokens"]) == (3 * batch, 30 * batch)
    assert (rows["sft"]["shared_answers"], rows["text2grad"]["shared_answers"]) == (0, 5)
    assert rows["sft"]["rollouts"] == 0 and rows["text2grad"]["peak_mb"] == 10.0
    assert list(compare.collapsed(["sft", "text2grad"], seeds, "pass")) == []
    table = compare.table_of({"methods": rows}, "held-out pass@1", 2)
    assert "| SFT | 0.188 |" in table and "-0.250 (-0.500 to +0.000)" in table


def test_the_plan_counts_what_is_left(config: Config, commands: list[list[str]], tmp_path: Path) -> None:
    before = compare.plan_of(config, ["sft", "scalar"], 1, 2)
    assert before["seconds"] is None and before["rollouts"] == config.ppo.steps * config.ppo.rollouts
    (seed,) = compare.seeds_of(config, 1)
    side_by_side(jobs(seed, ["sft", "scalar"]), 1)
    after = compare.plan_of(config, ["sft", "scalar"], 1, 2)
    assert after["seconds"] == 0 and not any(work["left"] for work in after["works"].values())


def test_an_option_may_list_its_words() -> None:
    words = ["compare", "--methods", "sft", "dpo", "--seeds", "3"]
    assert _listed(words) == ["compare", "--methods", "sft", "--methods", "dpo", "--seeds", "3"]
    assert _listed(["train", "--name", "a", "b"]) == ["train", "--name", "a", "b"]
