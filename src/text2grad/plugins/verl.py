"""Add credit for words to verl's agent loops, which then return a reward for each token.

# agent.yaml, and actor_rollout_ref.rollout.agent.agent_loop_config_path=agent.yaml
# with actor_rollout_ref.rollout.agent.default_agent_loop=words
- name: words
  _target_: text2grad.plugins.verl.TokenCreditToolLoop
  credit: mine:credit  # a function of the tokenizer that returns a TokenCredit
"""

from __future__ import annotations

import asyncio
import inspect
from functools import cache
from types import FunctionType
from typing import Any

from pydantic import Field

from text2grad.align.rewards import ScoredTrajectory, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import UserError, optional_packages
from text2grad.named import load_named
from text2grad.plugins.credit import (
    Reward,
    credit_metrics,
    make_example,
    masked_rewards,
    mix_rewards,
    refuse_not_finite,
    refuse_summing,
    require,
)

with optional_packages():
    import torch
    from verl.experimental.agent_loop import AgentLoopOutput, SingleTurnAgentLoop, ToolAgentLoop

TOKEN_ESTIMATORS = ("gae", "reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline")
"""Estimators that keep a reward at its token; the others, such as grpo, sum rewards first."""


@cache
def load_credit(name: str, tokenizer: Any) -> TokenCredit:
    """Return the result of the function `name`, "module:function", of the tokenizer.

    It is shared by all loops of a worker, so that the critic gets batches.
    """
    return load_named("credit", name, kinds=(type, FunctionType))(tokenizer)  # type: ignore[no-any-return]


class TokenRewardOutput(AgentLoopOutput):  # type: ignore[misc]
    """An output with a reward for each response token; verl's own pays its score on the last."""

    token_rewards: list[float] = Field(exclude=True)

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "rm_scores": torch.tensor(self.token_rewards, dtype=torch.float32)}


class TokenCreditMixin:
    """A base class to put before an agent loop of verl.

    The critic's example has the row's `extra_info` as `meta` and its `ground_truth` as reference.
    Where the critique failed, the mask is zeros, and the trajectory is counted in
    `text2grad/failed`.

    Args:
        credit: "module:function", a function of the tokenizer that returns a `TokenCredit`.
        words_weight: factor on word rewards.
        environment_weight: factor on verl's reward, that of the loop or else of its reward
            function.

    Raises:
        UserError: verl is of another version, its estimator sums rewards, its trainer is the old
            one, which reads one score per trajectory, or a weight is not finite.
    """

    def __init__(
        self, *args: Any, credit: str, words_weight: float = 1.0, environment_weight: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        require("verl", "0.9.1", "pip install 'text2grad[verl]'")
        refuse_summing("verl", self.config.algorithm.adv_estimator, TOKEN_ESTIMATORS)  # type: ignore[attr-defined]
        if not self.config.trainer.use_v1:  # type: ignore[attr-defined]
            raise UserError("verl's old trainer reads one score per trajectory", "trainer.use_v1=True")
        refuse_not_finite(words_weight=words_weight, environment_weight=environment_weight)
        self.credit, self.weights = load_credit(credit, self.tokenizer), (words_weight, environment_weight)  # type: ignore[attr-defined]

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Return the loop's output, or each output of a list, with token rewards."""
        result = await super().run(sampling_params, **kwargs)  # type: ignore[misc]
        outputs = result if isinstance(result, list) else [result]
        row = {"reference": (kwargs.get("reward_model") or {}).get("ground_truth"), "id": kwargs.get("uid")}
        example = make_example(list(kwargs["raw_prompt"]), {**(kwargs.get("extra_info") or {}), **row})
        batch = [Trajectory(example, output.response_ids, output.response_mask) for output in outputs]
        outcomes = await self.credit.score(batch)
        environment = [await self._verl_reward(output, kwargs) for output in outputs] if self.weights[1] else []
        trained = mix_rewards(outcomes, batch, environment, *self.weights)
        infos = [credit_metrics([outcome], environment[at : at + 1]) for at, outcome in enumerate(outcomes)]
        rewarded = [*map(_with_rewards, outputs, batch, trained, infos)]
        return rewarded if isinstance(result, list) else rewarded[0]

    async def _verl_reward(self, output: Any, row: dict[str, Any]) -> Reward:
        """Return the score of the loop, or without one that of the reward function."""
        if output.reward_score is not None:
            return float(output.reward_score)
        from verl.trainer.ppo.reward import get_custom_reward_fn
        from verl.utils.reward_score import default_compute_score

        score = get_custom_reward_fn(self.config) or default_compute_score  # type: ignore[attr-defined]
        text = self.tokenizer.decode(output.response_ids, skip_special_tokens=True)  # type: ignore[attr-defined]
        answer = await asyncio.to_thread(  # it may block
            score,
            data_source=row["data_source"],
            solution_str=text,
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info={**(row.get("extra_info") or {}), **output.extra_fields},
        )
        if inspect.isawaitable(answer):
            answer = await answer
        return float(answer["score"] if isinstance(answer, dict) else answer)


def _with_rewards(
    output: Any, trajectory: Trajectory, outcome: ScoredTrajectory, info: dict[str, float]
) -> TokenRewardOutput:
    rewards, mask = masked_rewards(outcome, trajectory)
    fields = {name: getattr(output, name) for name in output.model_fields_set}
    extra = {**output.extra_fields, "reward_extra_info": info}
    fields |= {"response_mask": mask, "reward_score": sum(rewards), "extra_fields": extra}
    return TokenRewardOutput(**fields, token_rewards=rewards)


class TokenCreditToolLoop(TokenCreditMixin, ToolAgentLoop):  # type: ignore[misc]
    """verl's tool loop with credit for words."""


class TokenCreditSingleTurn(TokenCreditMixin, SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's loop for single answers with credit for words."""
