"""verl's agent loops with credit for words: they return their own score, and a reward for each
token.

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
    example_of,
    metrics_of,
    mixed,
    refuse_sums,
    refuse_weight,
    require,
    rewards_of,
)

with optional_packages():
    import torch
    from verl.experimental.agent_loop import AgentLoopOutput, SingleTurnAgentLoop, ToolAgentLoop

KEEPING = ("gae", "reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline")
"""Estimators that keep a reward at its token. The others, grpo among them, add up first."""


@cache
def credit_of(name: str, tokenizer: Any) -> TokenCredit:
    """What `name`, "module:function", makes; one for all loops of a worker, so that it is asked in
    batches."""
    return load_named("credit", name, kinds=(type, FunctionType))(tokenizer)  # type: ignore[no-any-return]


class PaidOutput(AgentLoopOutput):  # type: ignore[misc]
    """An output with a reward for each token of the response; verl would put its score on the last
    one."""

    token_rewards: list[float] = Field(exclude=True)

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "rm_scores": torch.tensor(self.token_rewards, dtype=torch.float32)}


class TokenCreditMixin:
    """Beside an agent loop of verl's; `credit` names a function of the tokenizer that returns a
    `TokenCredit`.

    The critic's example is the prompt with the row's `extra_info`, and its `ground_truth` as
    reference. Where the critique failed, the mask is of zeros, and it counts in `text2grad/failed`.
    `environment_weight` mixes in verl's own reward (the loop's, or else its reward function's);
    `words_weight` multiplies the rewards of words.

    Raises:
        UserError: verl is of another version, its estimator adds rewards up, its trainer is the old
            one, which reads one score of a trajectory, or a weight is not finite.
    """

    def __init__(
        self, *args: Any, credit: str, words_weight: float = 1.0, environment_weight: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        require("verl", "0.9.1", "pip install 'text2grad[verl]'")
        refuse_sums("verl", self.config.algorithm.adv_estimator, KEEPING)  # type: ignore[attr-defined]
        if not self.config.trainer.use_v1:  # type: ignore[attr-defined]
            raise UserError("verl's old trainer reads one score of a trajectory", "trainer.use_v1=True")
        refuse_weight("words_weight", words_weight)
        refuse_weight("environment_weight", environment_weight)
        self.credit, self.weights = credit_of(credit, self.tokenizer), (words_weight, environment_weight)  # type: ignore[attr-defined]

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """As the loop's; of a list of outputs each is judged by itself, as verl trains on it."""
        found = await super().run(sampling_params, **kwargs)  # type: ignore[misc]
        outputs = found if isinstance(found, list) else [found]
        row = {"reference": (kwargs.get("reward_model") or {}).get("ground_truth"), "id": kwargs.get("uid")}
        example = example_of(list(kwargs["raw_prompt"]), {**(kwargs.get("extra_info") or {}), **row})
        batch = [Trajectory(example, each.response_ids, each.response_mask) for each in outputs]
        scored = await self.credit.score(batch)
        environment = [await self._own_reward(each, kwargs) for each in outputs] if self.weights[1] else []
        trained = mixed(scored, batch, environment, *self.weights)
        infos = [metrics_of([each], environment[at : at + 1]) for at, each in enumerate(scored)]
        paid = [*map(_paid, outputs, batch, trained, infos)]
        return paid if isinstance(found, list) else paid[0]

    async def _own_reward(self, output: Any, row: dict[str, Any]) -> Reward:
        """Return verl's own reward: the score of the loop, or else of its reward function."""
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


def _paid(output: Any, trajectory: Trajectory, outcome: ScoredTrajectory, info: dict[str, float]) -> PaidOutput:
    rewards, mask = rewards_of(outcome, trajectory)
    fields = {name: getattr(output, name) for name in output.model_fields_set}
    extra = {**output.extra_fields, "reward_extra_info": info}
    fields |= {"response_mask": mask, "reward_score": sum(rewards), "extra_fields": extra}
    return PaidOutput(**fields, token_rewards=rewards)


class TokenCreditToolLoop(TokenCreditMixin, ToolAgentLoop):  # type: ignore[misc]
    """verl's loop of tools, with credit for words."""


class TokenCreditSingleTurn(TokenCreditMixin, SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's loop of single answers, with credit for words."""
