"""Add credit for words to SkyRL: `GeneratorOutput.rewards` gets a number for each token.

In a subclass of SkyRL's `BasePPOExp`:

    def get_generator(self, cfg, tokenizer, inference_engine_client):
        generator = super().get_generator(cfg, tokenizer, inference_engine_client)
        return TokenCreditGenerator(generator, TokenCredit(critic, tokenizer), cfg)
"""

from __future__ import annotations

from typing import Any

from text2grad.align.rewards import TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.plugins.credit import (
    credit_metrics,
    make_example,
    masked_rewards,
    mix_rewards,
    refuse_not_finite,
    refuse_summing,
    require,
)

TOKEN_ESTIMATORS = ("gae", "reinforce++")
"""Estimators that keep a reward at its token (both whiten); the others sum rewards first.

With step-wise trajectories SkyRL supports neither: it gives each step the last one's advantage.
"""


class TokenCreditGenerator:
    """A wrapper of a SkyRL generator of whole trajectories that replaces its rewards by a critic's.

    A trajectory whose critique failed gets a loss mask of zeros, and is counted in
    `text2grad/failed`. SkyRL's `pass_at_n` reads the reward of the last token, where a value above
    0 is a good verdict.

    Args:
        words_weight: factor on word rewards.
        environment_weight: factor on the environment's rewards.

    Raises:
        UserError: SkyRL is missing or of another version, its estimator sums rewards, or a weight
            is not finite.
    """

    def __init__(
        self,
        generator: Any,
        credit: TokenCredit,
        cfg: Any,
        *,
        words_weight: float = 1.0,
        environment_weight: float = 0.0,
    ) -> None:
        require("skyrl", "0.4", "pip install skyrl==0.4.0, which needs Python 3.12")
        refuse_summing("SkyRL", cfg.trainer.algorithm.advantage_estimator, TOKEN_ESTIMATORS)
        refuse_not_finite(words_weight=words_weight, environment_weight=environment_weight)
        self.generator, self.credit, self.weights = generator, credit, (words_weight, environment_weight)

    async def generate(self, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the generator's output with token rewards."""
        out = await self.generator.generate(input_batch, *args, **kwargs)
        rows = input_batch["env_extras"] or [{}] * len(out["response_ids"])
        examples = map(make_example, input_batch["prompts"], rows)
        batch = [Trajectory(*item) for item in zip(examples, out["response_ids"], out["loss_masks"], strict=True)]
        outcomes = await self.credit.score(batch)
        environment = out["rewards"] if self.weights[1] else None
        trained = mix_rewards(outcomes, batch, environment, *self.weights)
        rewards, masks = zip(*map(masked_rewards, trained, batch), strict=True)
        metrics = {**(out["rollout_metrics"] or {}), **credit_metrics(outcomes, environment or ())}
        return {**out, "rewards": [*rewards], "loss_masks": [*masks], "rollout_metrics": metrics}
