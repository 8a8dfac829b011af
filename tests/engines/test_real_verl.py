"""verl itself: its outputs, its estimators, its agent loops, and its whole trainer on a CPU
(`verl_run`)."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import verl_run
from examples import said_by
from test_verl import MADE, ROW, config
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    AgentLoopWorker,
)
from verl.trainer.ppo import core_algos

import plugins as benchmark
from text2grad.align.rewards import TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.plugins import verl as plugin
from text2grad.plugins.credit import make_example, masked_rewards
from text2grad.plugins.landing import Case, Row, check_landing
from text2grad.rl import advantage as ours


class Loop:
    """Hands out cases as verl's own outputs."""

    def __init__(self, trainer_config: Any, tokenizer: Any, cases: Sequence[Case]) -> None:
        self.config, self.tokenizer, self.cases = trainer_config, tokenizer, cases

    async def run(self, sampling_params: dict[str, Any], index: int, **kwargs: Any) -> AgentLoopOutput:
        case = self.cases[index]
        return AgentLoopOutput(
            prompt_ids=list(case.prompt),
            response_ids=list(case.trajectory.ids),
            response_mask=list(case.trajectory.mask or []),
            response_logprobs=[-1.0] * len(case.mask),
            metrics=AgentLoopMetrics(),
        )


class PaidLoop(plugin.TokenCreditMixin, Loop):
    """The plug-in over it."""


def test_rewards_land_in_verls_outputs(tokenizer: PreTrainedTokenizerFast) -> None:
    def land(made: TokenCredit, cases: Sequence[Case]) -> list[Row]:
        MADE.append(made)
        plugin.load_credit.cache_clear()
        loop = PaidLoop(config(), made.table, cases, credit="test_verl:credit")

        async def rollouts() -> list[Any]:
            return await asyncio.gather(*(loop.run({}, index=index, **ROW) for index in range(len(cases))))

        fields = [output.as_dict() for output in asyncio.run(rollouts())]
        assert all("token_rewards" not in each and "rollout_log_probs" in each for each in fields)
        assert all(isinstance(each["rm_scores"], torch.Tensor) for each in fields)
        return [Row(each["responses"], each["rm_scores"], each["response_mask"]) for each in fields]

    assert check_landing(land, tokenizer, outcome=None) >= 8


def test_advantages_are_our_loops() -> None:
    assert benchmark.verl_difference() < 1e-5


def adds_up(estimator: str) -> bool:
    """Whether an estimator's advantages change when a reward is moved to another token."""
    rewards, mask = torch.zeros(4, 6), torch.ones(4, 6)
    rewards[:, 2] = torch.tensor([1.0, -1.0, 0.5, 0.0])
    moved = rewards.roll(2, 1)
    values, index = torch.zeros(4, 6), ["a", "a", "b", "b"]
    more = {
        "values": values,
        "gamma": 1.0,
        "lam": 1.0,
        "index": index,
        "reward_baselines": torch.zeros(4),
        "old_log_probs": torch.full((4, 6), -1.0),
        "sum_pi_squared": torch.full((4, 6), 0.5),
        "config": core_algos.AlgoConfig() if hasattr(core_algos, "AlgoConfig") else None,
    }
    function = core_algos.get_adv_estimator_fn(estimator)
    taken = inspect.signature(function).parameters
    named = {name: value for name, value in more.items() if name in taken}
    first, second = (
        function(token_level_rewards=each, response_mask=mask, **named)[0].clone() for each in (rewards, moved)
    )
    return torch.allclose(first, second)


@pytest.mark.parametrize("estimator", plugin.TOKEN_ESTIMATORS)
def test_estimators_that_are_taken_keep_a_reward_at_its_token(estimator: str) -> None:
    assert not adds_up(estimator)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline"])
def test_estimators_that_are_refused_add_up(estimator: str) -> None:
    assert estimator not in plugin.TOKEN_ESTIMATORS and adds_up(estimator)


def test_the_methods_that_are_hooked_are_those_that_were_read() -> None:
    assert list(inspect.signature(AgentLoopBase.run).parameters)[:2] == ["self", "sampling_params"]
    assert list(inspect.signature(AgentLoopBase.__init__).parameters)[1:4] == [
        "trainer_config",
        "server_manager",
        "tokenizer",
    ]
    score = inspect.getsource(AgentLoopWorker._compute_score)
    assert "final_output.reward_score is None" in score, "a loop's own score is no longer left alone"
    trainer = Path(core_algos.__file__).parent / "v1" / "agent_loop_tq.py"
    put = ast.unparse(ast.parse(trainer.read_text(encoding="utf-8")))
    assert "field = output.as_dict()" in put, "the trainer no longer takes what as_dict writes"


def test_the_example_runs(tmp_path: Path) -> None:
    lines = said_by("verl_loop", tmp_path)
    assert [line for line in lines if line.endswith("-1.00")] == ["a sampled -1.00"] * 3
    assert lines.count("a         +0.00") == 3 and lines[-1] == "r sampled +0.25"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a run of verl's trainer, and what it logged."""
    folder = tmp_path_factory.mktemp("one_rank")
    return folder, verl_run.train(folder)


def test_the_trainer_learns_what_the_words_say(learned: tuple[Path, list[dict[str, Any]]]) -> None:
    first, last = verl_run.held_out(learned[1])
    assert first < -10 and last > 10, "of 16 tokens, each of -1 to 1, and a verdict"
    gaps = [row["data"]["training/rollout_probs_diff_max"] for row in learned[1][1:]]
    assert len(gaps) == verl_run.STEPS and max(gaps) < 1e-4, "answers came from other weights than were trained"


def test_credit_lands_in_the_trainers_batch(learned: tuple[Path, list[dict[str, Any]]]) -> None:
    rows = verl_run.kept(learned[0], 2)
    tokenizer = AutoTokenizer.from_pretrained(learned[0] / "policy")
    asked = [tokenizer.decode(row["prompts"], skip_special_tokens=True) for row in rows]
    assert [not any(row["response_mask"]) for row in rows] == [text == verl_run.UNJUDGED for text in asked]
    rows = [row for row in rows if any(row["response_mask"])]
    assert len(rows) == verl_run.BATCH - 1, "one has no critique, and a mask of zeros"
    batch = [
        Trajectory(make_example(tokenizer.decode(row["prompts"]), {}), row["responses"], row["response_mask"])
        for row in rows
    ]
    for row, trajectory, outcome in zip(rows, batch, verl_run.credit(tokenizer).score_batch(batch), strict=True):
        assert masked_rewards(outcome, trajectory)[0] == pytest.approx(row["rm_scores"], abs=1e-6)
        others = [
            each
            for each in zip(row["responses"], row["response_mask"], row["rm_scores"], strict=True)
            if not each[1]
        ]
        assert "aeiou" * 3 in tokenizer.decode([index for index, *_ in others])
        assert not any(paid for *_, paid in others)


def test_the_trainers_advantages_are_our_loops(learned: tuple[Path, list[dict[str, Any]]]) -> None:
    rewards, values, own, theirs = columns(
        verl_run.kept(learned[0], 4), "rm_scores", "values", "response_mask", "advantages"
    )
    mask, nothing = own.bool(), torch.zeros(len(own))
    mine = ours.gae(rewards, values * own, mask, verl_run.GAMMA, verl_run.LAM, nothing)[0]
    assert torch.allclose(ours.normalise(mine, mask, "whiten")[mask], theirs[mask], atol=1e-5, rtol=0)


def columns(rows: list[dict[str, list[Any]]], *names: str) -> list[torch.Tensor]:
    """(B, T) for each name, padded on the right with 0."""
    lists = ([torch.tensor(row[name], dtype=torch.float32) for row in rows] for name in names)
    return [torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for each in lists]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_ranks")
    verl_run.train(folder, steps=4, ranks=2)
    return folder


def test_two_ranks_land_the_same_credit(learned: tuple[Path, list[dict[str, Any]]], two_ranks: Path) -> None:
    shards = (two_ranks / "checkpoints" / "global_step_2" / "actor").glob("model_world_size_2_rank_*.pt")
    assert len([*shards]) == 2
    assert_same_credit(verl_run.kept(learned[0], 2), verl_run.kept(two_ranks, 2))


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(two_ranks: Path, tmp_path: Path) -> None:
    checkpoint = two_ranks / "checkpoints" / "global_step_2"
    where = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}")
    logged = verl_run.train(tmp_path, *where, steps=4, ranks=2)
    assert [row["step"] for row in logged] == [2, 3, 4], "it began anew"
    assert_same_credit(verl_run.kept(two_ranks, 4), verl_run.kept(tmp_path, 4))


def assert_same_credit(one: list[dict[str, list[Any]]], two: list[dict[str, list[Any]]]) -> None:
    """Sums of floats are in another order, so advantages are level, not equal."""
    for name in ("prompts", "responses", "response_mask", "rm_scores"):
        assert [row[name] for row in one] == [row[name] for row in two], name
    left, right, own = *columns(one, "advantages"), *columns(two, "advantages", "response_mask")
    assert torch.allclose(left * own, right * own, atol=1e-4, rtol=0)
