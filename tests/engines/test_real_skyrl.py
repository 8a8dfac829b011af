"""SkyRL's own trainer, as far as advantages and the loss of a policy: no workers, no engine, no
GPU.

Its generator is one of landing cases; what follows is SkyRL's code, from `RayPPOTrainer.generate`
to the gradient.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from test_skyrl import FakeGenerator
from transformers import PreTrainedTokenizerFast

from page import shown_on_page
from text2grad.align.rewards import TokenCredit
from text2grad.errors import UserError
from text2grad.plugins.landing import GROUP, Case, LandingCritic, Row, check_landing, landing_cases
from text2grad.plugins.skyrl import TOKEN_ESTIMATORS, TokenCreditGenerator


class InStore(FakeGenerator, GeneratorInterface):
    """SkyRL's interface, of cases in store."""


def config_of(estimator: str, count: int) -> SkyRLTrainConfig:
    cfg = SkyRLTrainConfig()
    cfg.trainer.algorithm.advantage_estimator = estimator
    cfg.trainer.algorithm.gamma = 0.0  # an advantage is its own token's reward, whitened
    cfg.trainer.train_batch_size = cfg.trainer.policy_mini_batch_size = count // GROUP
    cfg.generator.n_samples_per_prompt = GROUP
    return cfg


def trained_on(credit: TokenCredit, cases: Sequence[Case], estimator: str, wrap: bool = True) -> Any:
    """SkyRL's batch with advantages, of what the plug-in's generator hands to its trainer."""
    cfg = config_of(estimator, len(cases))
    trainer = object.__new__(RayPPOTrainer)
    trainer.cfg, trainer.tokenizer, trainer.all_metrics = cfg, SimpleNamespace(pad_token_id=0), {}
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    keeping = cfg if wrap else config_of("gae", len(cases))
    trainer.generator = TokenCreditGenerator(InStore(cases), credit, keeping)
    prompts = [[{"role": "user", "content": f"Say it, {case.name}."}] for case in cases]
    out = asyncio.run(trainer.generate({"prompts": prompts, "env_extras": None}))
    assert trainer.all_metrics["text2grad/failed"] == 1 / 8
    out, uids = trainer.postprocess_generator_output(out, [str(case.group) for case in cases])
    data = trainer.convert_to_training_input(out, uids)
    data["values"] = torch.zeros_like(data["rewards"])
    data.metadata["avg_response_length"] = 1.0
    return trainer.compute_advantages_and_returns(data)


def in_rows(data: Any, numbers: torch.Tensor) -> list[Row]:
    """A row for each of SkyRL's sequences: numbers and mask stand at the right end of them."""
    ids = data["sequences"]
    before = torch.zeros(len(ids), ids.shape[1] - numbers.shape[1])
    both = [torch.cat([before, each], 1).tolist() for each in (numbers, data["loss_mask"])]
    return [Row(*each) for each in zip(ids.tolist(), *both, strict=True)]


def unwhitened(data: Any) -> torch.Tensor:
    """Rewards out of advantages: SkyRL whitens over its response mask, in which tools and failures
    count."""
    whole = data["response_mask"].bool()
    rewards = data["rewards"][whole]
    return (data["advantages"] * rewards.std() + rewards.mean()) * whole


@pytest.mark.parametrize("estimator", TOKEN_ESTIMATORS)
def test_rewards_land_in_the_trainers_advantages(tokenizer: PreTrainedTokenizerFast, estimator: str) -> None:
    def land(credit: TokenCredit, cases: Sequence[Case]) -> list[Row]:
        data = trained_on(credit, cases, estimator)
        return in_rows(data, unwhitened(data))

    assert check_landing(land, tokenizer, outcome=None, tolerance=1e-5) >= 8


def test_the_gradient_is_the_advantage_where_the_policy_spoke(tokenizer: PreTrainedTokenizerFast) -> None:
    data = trained_on(TokenCredit(LandingCritic(), tokenizer), landing_cases(tokenizer), "gae")
    mask, advantages = data["loss_mask"], data["advantages"]
    scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(advantages, mask, "token_mean", 8, 0)
    logps = torch.full_like(advantages, -1.0, requires_grad=True)
    old, algorithm = logps.detach(), SkyRLTrainConfig().trainer.algorithm
    loss, _ = ppo_utils.ppo_policy_loss(logps, old, scaled, config=algorithm, loss_mask=mask)
    loss.backward()
    assert logps.grad is not None and logps.grad.any()
    torch.testing.assert_close(logps.grad, -advantages * mask / mask.sum())


def is_kept(data: Any) -> bool:
    """Whether the tokens of a trajectory have advantages of their own."""
    spreads = [row[own.bool()].std() for row, own in zip(data["advantages"], data["loss_mask"], strict=True)]
    return any(spread > 1e-4 for spread in spreads)


def test_which_estimators_keep_a_reward_at_its_token(tokenizer: PreTrainedTokenizerFast) -> None:
    ppo_utils.repopulate_all_registries()
    names = ppo_utils.AdvantageEstimatorRegistry.list_available()
    cases, credit = landing_cases(tokenizer), TokenCredit(LandingCritic(), tokenizer)
    kept = {name for name in names if is_kept(trained_on(credit, cases, name, wrap=False))}
    assert len(names) >= 5 and kept == set(TOKEN_ESTIMATORS)
    for name in set(names) - kept:
        with pytest.raises(UserError, match="sums the rewards"):
            TokenCreditGenerator(InStore(cases), credit, config_of(name, 8))


def test_step_wise_every_step_is_paid_as_the_last() -> None:
    """What was said of an earlier step is lost, so SkyRL supports none of them there."""
    trainer = object.__new__(RayPPOTrainer)
    trainer.cfg, trainer.all_metrics = config_of("grpo", 8), {}
    trainer.cfg.generator.step_wise_trajectories = True

    def advantages(earlier: float) -> torch.Tensor:
        rewards = torch.tensor([[0.0, earlier], [0.0, 1.0], [0.0, earlier], [0.0, 0.0]])
        data = TrainingInputBatch({"rewards": rewards, "response_mask": torch.ones(4, 2), "values": None})
        data.metadata = {"uids": ["0"] * 4, "is_last_step": [False, True] * 2, "avg_response_length": 1.0}
        return trainer.compute_advantages_and_returns(data)["advantages"]

    assert advantages(0.0).any() and torch.equal(advantages(0.0), advantages(-9.0))
    for estimator in TOKEN_ESTIMATORS:
        cfg = SkyRLTrainConfig()
        cfg.generator.step_wise_trajectories, cfg.trainer.algorithm.advantage_estimator = True, estimator
        cfg.trainer.logger, cfg.trainer.critic.model.path = "console", "any"
        with pytest.raises(ValueError, match="is not supported with step_wise_trajectories"):
            validate_cfg(cfg)


def test_the_page_shows_what_runs(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = landing_cases(tokenizer)
    monkeypatch.setattr(BasePPOExp, "get_generator", lambda self, *arguments: InStore(cases))
    space: dict[str, Any] = {"BasePPOExp": BasePPOExp, "critic": LandingCritic()}
    exec(shown_on_page("plugins.skyrl"), space)
    made = object.__new__(space["WithWords"])
    assert isinstance(made.get_generator(config_of("gae", 8), tokenizer, None), TokenCreditGenerator)


def test_the_fields_of_an_output_are_those_that_were_read() -> None:
    asked, given = GeneratorInput.__annotations__, GeneratorOutput.__annotations__
    assert {"prompts", "env_extras"} <= set(asked)
    assert {"response_ids", "loss_masks", "rewards", "rollout_metrics"} <= set(given)
    assert str(given["rewards"]) == "typing.Union[typing.List[float], typing.List[typing.List[float]]]"
