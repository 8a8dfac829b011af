"""SkyRL's generators with credit for words: `GeneratorOutput.rewards` has a number for each token.

In a subclass of SkyRL's `BasePPOExp`:

    def get_generator(self, cfg, tokenizer, inference_engine_client):
        generator = super().get_generator(cfg, tokenizer, inference_engine_client)
        return TokenCreditGenerator(generator, TokenCredit(critic, tokenizer), cfg)
"""

from __future__ import annotations

from typing import Any

from text2grad.align.rewards import TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.plugins.credit import example_of, metrics_of, mixed, refuse_sums, refuse_weight, require, rewards_of

KEEPING = ("gae", "reinforce++")
"""Estimators that keep a reward at its token; they whiten. The others add up first. With step-wise
trajectories SkyRL takes neither of these: it pays each step the last one's advantage."""


class TokenCreditGenerator:
    """A generator of SkyRL's, of whole trajectories, whose rewards are a critic's.

    `environment_weight` mixes in the environment's own rewards, `words_weight` multiplies the
    rewards of words. A trajectory whose critique failed has a loss mask of zeros, and counts in
    `text2grad/failed`. SkyRL's own `pass_at_n` reads the last token's reward: above 0 is a good
    verdict there.

    Raises:
        UserError: SkyRL is missing or of another version, its estimator adds rewards up, or a
            weight is not finite.
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
        refuse_sums("SkyRL", cfg.trainer.algorithm.advantage_estimator, KEEPING)
        refuse_weight("words_weight", words_weight)
        refuse_weight("environment_weight", environment_weight)
        self.generator, self.credit, self.weights = generator, credit, (words_weight, environment_weight)

    async def generate(self, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """As the generator's, with rewards for tokens."""
        out = await self.generator.generate(input_batch, *args, **kwargs)
        rows = input_batch["env_extras"] or [{}] * len(out["response_ids"])
        examples = map(example_of, input_batch["prompts"], rows)
        batch = [Trajectory(*each) for each in zip(examples, out["response_ids"], out["loss_masks"], strict=True)]
        outcomes = await self.credit.score(batch)
        environment = out["rewards"] if self.weights[1] else None
        trained = mixed(outcomes, batch, environment, *self.weights)
        rewards, masks = zip(*map(rewards_of, trained, batch), strict=True)
        metrics = {**(out["rollout_metrics"] or {}), **metrics_of(outcomes, environment or ())}
        return {**out, "rewards": [*rewards], "loss_masks": [*masks], "rollout_metrics": metrics}
