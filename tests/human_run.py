"""A run on people's feedback with every stage done, which many tests look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from text2grad.config import Config
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages import sft, train
from text2grad.stages.evaluate import policy as stage
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.stages.reward_model import train as reward_model
from text2grad.stages.reward_model.train import RewardModelSummary, run_train_reward
from text2grad.stages.sft import run_sft
from text2grad.stages.train import run_train
from text2grad.tasks.base import question_text


class Trained(NamedTuple):
    """A run on people's feedback with every stage done, and what its stages returned. Do not write
    to it.

    `questions`: those that each training loop, and the last evaluation, were given.
    """

    config: Config
    reward_model: RewardModelSummary
    evaluations: Sequence[dict[str, Any]]
    """Of SFT without a reward model, with one, and with one that is not to be asked."""
    questions: dict[str, set[str]]


def train_all(config: Config) -> Trained:
    """Run all stages in a folder that has feedback."""
    records = read_jsonl(config.run.folder / "feedback.jsonl", Feedback)
    question = {record.id: question_text(record) for record in records}
    questions: dict[str, set[str]] = {}

    def tap(patch: pytest.MonkeyPatch, stage: ModuleType, name: str, title: str = "") -> None:
        original: Callable[..., Any] = getattr(stage, name)

        def tapped(policy: Any, data: Any, *others: Any, **options: Any) -> Any:
            examples = getattr(data, "prompts", data)
            asked = {question[example.id.removesuffix(":corrected")] for example in examples}
            questions.setdefault(title or others[-1].title, set()).update(asked)
            return original(policy, data, *others, **options)

        patch.setattr(stage, name, tapped)

    with pytest.MonkeyPatch.context() as patch:
        tap(patch, sft, "train_supervised")
        tap(patch, reward_model, "train_supervised")
        tap(patch, train, "train_ppo", "ppo")
        run_sft(config)
        without = run_evaluate(config, "sft").as_dict()
        summary = run_train_reward(config)
        asked = run_evaluate(config, "sft").as_dict()
        off = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"token_reward": False})})
        evaluations = [without, asked, run_evaluate(off, "sft").as_dict()]
        run_train(config, "text2grad")
        tap(patch, stage, "evaluate_policy", "policy")
        run_evaluate(config, "text2grad")
    return Trained(config, summary, evaluations, questions)
