"""verl itself: its outputs, its estimators and its agent loops, as far as they run without a GPU."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import said_by
from test_verl import MADE, ROW, config
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    AgentLoopWorker,
)
from verl.trainer.ppo import core_algos

import plugins as benchmark
from text2grad.align.rewards import TokenCredit
from text2grad.plugins import verl as plugin
from text2grad.plugins.landing import Case, Row, check_landing


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
            response_logprobs=[-1.0] * len(case.own),
            metrics=AgentLoopMetrics(),
        )


class PaidLoop(plugin.TokenCreditMixin, Loop):
    """The plug-in over it."""


def test_rewards_land_in_verls_outputs(tokenizer: PreTrainedTokenizerFast) -> None:
    def land(made: TokenCredit, cases: Sequence[Case]) -> list[Row]:
        MADE.append(made)
        plugin.credit_of.cache_clear()
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


@pytest.mark.parametrize("estimator", plugin.KEEPING)
def test_estimators_that_are_taken_keep_a_reward_at_its_token(estimator: str) -> None:
    assert not adds_up(estimator)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline"])
def test_estimators_that_are_refused_add_up(estimator: str) -> None:
    assert estimator not in plugin.KEEPING and adds_up(estimator)


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
