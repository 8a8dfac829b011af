"""A reward model that is taught again during PPO, by the tests, what the policy writes by now.

A reward model learns from samples of the SFT policy; PPO moves away from them, to what the reward model judges
wrongly. Here some steps end with a lesson: the policy answers training prompts, the tests judge the answers, and
the reward model goes over them once, and over as many of its first records, so that it does not forget.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from text2grad.config import Config
from text2grad.durable.run import RunOptions
from text2grad.durable.state import Randomness
from text2grad.feedback import Example, Feedback, Judgement, read_jsonl
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.sandbox import Runner
from text2grad.stages.critics import critic_over, make_critic, reward_model_folder
from text2grad.stages.records import judged
from text2grad.stages.reward_data import reward_pair
from text2grad.stages.sampled import sampled_items
from text2grad.tasks.base import Task
from text2grad.train.supervised import train_supervised

PROMPTS, SAMPLES = 150, 4
LR_SHARE = 0.3  # of the rate it was first trained at
LESSONS = (1 / 3, 2 / 3)  # of the steps


class RefreshedCritic:
    """The reward model of a run as a critic, and `lesson`, which teaches it."""

    def __init__(self, config: Config, task: Task, runner: Runner, folder: Path) -> None:
        place = reward_model_folder(config)
        self._model = load_policy(PolicySettings(model=str(place)))
        self._critic = critic_over(config, self._model, str(place))
        self._tests = make_critic(config, "program", task, runner)
        self._first = list(read_jsonl(config.run.folder / "feedback.jsonl", Feedback))
        self._prompts = list(task.examples("train"))
        self._config, self._folder = config, folder
        self.source = self._critic.source

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return self._critic.critique(examples, responses)

    def is_due(self, step: int) -> bool:
        """Whether a lesson follows this step."""
        return step + 1 in [round(share * self._config.ppo.steps) for share in LESSONS]

    def lesson(self, step: int, policy: Policy) -> None:
        """Train on what the policy says now; the run's own random numbers stay what they were."""
        before = Randomness.now()
        chance = random.Random(f"{self._config.run.seed}/{step}")
        prompts = chance.sample(self._prompts, min(PROMPTS, len(self._prompts)))
        records = list(judged(self._tests, sampled_items(policy, prompts, self._config, SAMPLES)))
        records += chance.sample(self._first, min(len(records), len(self._first)))
        settings = self._config.reward_model
        pairs = [pair for record in records if (pair := reward_pair(record, settings))]
        training = settings.training.model_copy(update={"epochs": 1.0, "lr": LR_SHARE * settings.training.lr})
        place = self._folder / f"lesson-{step + 1}"
        options = RunOptions(place, "reward model", self._config.run.seed, "restart")
        train_supervised(self._model, pairs, training, options, label_weight=settings.label_weight)
        Randomness.restore(before.tensors(), before.numbers())
