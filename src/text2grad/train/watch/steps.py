"""Inspect each step of a run: save policies, print warnings, and end a run that learned enough."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.durable.run import OnStep, save_policy
from text2grad.errors import UserError
from text2grad.policy.model import Policy
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.settings import SFTSettings

LENGTH_FACTOR, MAX_CORRELATION = 2.0, 0.8
"""Change of the response length, and its correlation with the reward, that cause a warning."""
MIN_ENTROPY = 0.05
"""Nats a token below which a policy with one answer per prompt will hardly find another."""
PART_OF_PASS = 0.25
"""Part of a pass over which a loss is averaged; forty short answers are learned within a pass."""


def combine_hooks(*hooks: OnStep | None) -> OnStep | None:
    """Combine hooks in order, skipping None."""
    present = [hook for hook in hooks if hook]

    def on_step(step: int, metrics: dict[str, float]) -> None:
        for hook in present:
            hook(step, metrics)

    return on_step if present else None


def save_every(every: int | None, policy: Policy, folder: Path) -> OnStep | None:
    """Return a hook that writes the policy to `folder/NAME-step-K` every `every` steps.

    NAME is the name of the folder.
    """
    if every is None:
        return None

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if (step + 1) % every == 0:
            save_policy(policy, folder / f"{folder.name}-step-{step + 1}")

    return on_step


def warn_if_length_rewarded() -> OnStep:
    """Return a hook that warns once if a run learns the length of answers.

    Lengths are compared with those of the first step after the run was started or resumed.
    """
    first_lengths: list[float] = []
    warnings: list[str] = []

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if not first_lengths:
            first_lengths.append(metrics["response_length"])
        warning = length_warning(first_lengths[0], metrics["response_length"], metrics["reward_length_correlation"])
        if warning and not warnings:
            cure = "credit.scheme spans with credit.weighting span or balanced pays no more for more words"
            print(f"{warning} ({cure}; or raise ppo.kl_coefficient, or stop)", file=sys.stderr)
            warnings.append(warning)

    return on_step


def length_warning(before: float, now: float, correlation: float) -> str:
    """Return a warning if the policy learns the length of its answers, else "".

    `before` and `now` are mean lengths in tokens; `correlation` is that of summed token rewards
    with length, -1 to 1.
    """
    shorter = correlation <= -MAX_CORRELATION and now * LENGTH_FACTOR <= before
    longer = correlation >= MAX_CORRELATION and now >= before * LENGTH_FACTOR
    if not shorter and not longer:
        return ""
    return (
        f"answers went from {before:.0f} to {now:.0f} tokens, and their reward is their length: r {correlation:.2f}"
    )


def check_variety(settings: PPOSettings) -> OnStep:
    """Return a hook that inspects the answers of the first step.

    If all answers to a prompt are identical, there is nothing to compare: the hook warns, or raises
    a UserError if the policy is so certain that no step would change it.
    """

    def on_step(step: int, metrics: dict[str, float]) -> None:
        warning = variety_warning(metrics, settings.samples_per_prompt) if step == 0 else ""
        if warning and metrics["entropy"] < MIN_ENTROPY:
            cure = "text2grad sft --restart --sft.least_loss 0.3 ends earlier, or keep the present policy"
            raise UserError(f"{warning}: there is nothing to compare, and training would change nothing", cure)
        if warning:
            print(f"{warning}: there is little to compare (--generation.temperature)", file=sys.stderr)

    return on_step


def variety_warning(metrics: Mapping[str, float], answers: int) -> str:
    """Return a warning if all answers to each prompt are identical or the only one is certain."""
    entropy = f"entropy {metrics['entropy']:.3f} nats a token"
    if "same_answers" not in metrics:
        certain = metrics["entropy"] < MIN_ENTROPY / 5
        return f"the policy has one answer to each prompt ({entropy})" if certain else ""
    identical = metrics["same_answers"] == 1
    return f"all {answers} answers to each prompt are the same ({entropy})" if identical else ""


class LossFloor:
    """A stopping rule: the mean loss of the last `window` steps is below `least` nats a token.

    A loss of 0.1 means a probability of 0.9 for each token of the learned answers. The entropy of
    samples falls with the loss, and samples that hardly differ leave little to compare. The state
    is saved with `durable.state.Training`.
    """

    @classmethod
    def of(cls, settings: SFTSettings, examples: int) -> LossFloor | None:
        """Return the rule of `settings.least_loss` over a part of a pass, None if that is None."""
        if settings.least_loss is None:
            return None
        return cls(settings.least_loss, math.ceil(PART_OF_PASS * examples / settings.batch_size))

    def __init__(self, least: float, window: int) -> None:
        self.least = least
        self._window = window
        self._losses: list[float] = []

    @property
    def reached(self) -> bool:
        """True if the mean loss of a full window is below the limit."""
        return len(self._losses) == self._window and sum(self._losses) < self.least * self._window

    def add(self, loss: float) -> None:
        """Add the loss of a step."""
        self._losses = [*self._losses, loss][-self._window :]

    def numbers(self) -> dict[str, Any]:
        """Return the losses of the window, as JSON."""
        return {"losses": self._losses}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Restore the state that `numbers` returned."""
        self._losses = list(numbers["losses"])
