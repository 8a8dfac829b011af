"""Look at each step of a run: keep policies on the way, warn, and end a run that would learn
nothing more."""

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

LENGTHS_APART, MOST_CORRELATION = 2.0, 0.8
"""How many times as long or short answers are, and how well their length tells their reward, before
a warning."""
LEAST_ENTROPY = 0.05
"""Nats a token below which a policy whose answers to a prompt are all the same will hardly ever
write another."""
PART_OF_PASS = 0.25
"""The part of a pass over which a loss is averaged: forty short answers are learned within one
pass."""


def combined(*hooks: OnStep | None) -> OnStep | None:
    """Combine hooks in their order, skipping None."""
    present = [hook for hook in hooks if hook]

    def on_step(step: int, metrics: dict[str, float]) -> None:
        for hook in present:
            hook(step, metrics)

    return on_step if present else None


def kept_policies(every: int | None, policy: Policy, folder: Path) -> OnStep | None:
    """Write the policy every so many steps (`ppo.keep_every`): `folder/<its name>-step-<steps>`,
    which `evaluate` takes as any other policy."""
    if every is None:
        return None

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if (step + 1) % every == 0:
            save_policy(policy, folder / f"{folder.name}-step-{step + 1}")

    return on_step


def length_watched() -> OnStep:
    """Warn once that a run learns how long to answer, compared with its first step since it was
    started."""
    first: list[float] = []
    named: list[str] = []

    def look(step: int, metrics: dict[str, float]) -> None:
        if not first:
            first.append(metrics["response_length"])
        words = learns_length(first[0], metrics["response_length"], metrics["reward_length_correlation"])
        if words and not named:
            cure = "credit.scheme spans with credit.weighting span or balanced pays no more for more words"
            print(f"{words} ({cure}; or raise ppo.kl_coefficient, or stop)", file=sys.stderr)
            named.append(words)

    return look


def learns_length(before: float, now: float, correlation: float) -> str:
    """Return a warning if the policy learns the length of its answers instead of their content,
    else "".

    `before` and `now` are mean lengths in tokens; `correlation` is that of the summed token rewards
    with the length, -1 to 1.
    """
    shorter = correlation <= -MOST_CORRELATION and now * LENGTHS_APART <= before
    longer = correlation >= MOST_CORRELATION and now >= before * LENGTHS_APART
    if not shorter and not longer:
        return ""
    return (
        f"answers went from {before:.0f} to {now:.0f} tokens, and their reward is their length: r {correlation:.2f}"
    )


def variety_watched(settings: PPOSettings) -> OnStep:
    """Inspect the answers of the first step: if those to a prompt are identical, there is nothing
    to compare.

    Raises:
        UserError: they are the same because the policy is sure of every token, so that no step
            would change it.
    """

    def look(step: int, metrics: dict[str, float]) -> None:
        words = says_one_thing(metrics, settings.samples_per_prompt) if step == 0 else ""
        if words and metrics["entropy"] < LEAST_ENTROPY:
            cure = "text2grad sft --restart --sft.least_loss 0.3 ends earlier, or keep the policy that there is"
            raise UserError(f"{words}: there is nothing to compare, and training would change nothing", cure)
        if words:
            print(f"{words}: there is little to compare (--generation.temperature)", file=sys.stderr)

    return look


def says_one_thing(metrics: Mapping[str, float], answers: int) -> str:
    """Return a warning if all answers to each prompt are identical, or if a single answer is
    certain; else ""."""
    entropy = f"entropy {metrics['entropy']:.3f} nats a token"
    if "same_answers" not in metrics:
        sure = metrics["entropy"] < LEAST_ENTROPY / 5
        return f"the policy has one answer to each prompt ({entropy})" if sure else ""
    same = metrics["same_answers"] == 1
    return f"all {answers} answers to each prompt are the same ({entropy})" if same else ""


class LossFloor:
    """Says when to stop: once the mean training loss of the last `window` steps is below `least`,
    nats a token.

    A loss of 0.1 is a chance of 9 in 10 for each token of the answers that were learned. The
    entropy of what is sampled falls with it, and where samples are all alike there is little to
    compare. A part of `durable.state.Training`.
    """

    @classmethod
    def of(cls, settings: SFTSettings, examples: int) -> LossFloor | None:
        """As `settings.least_loss` has it, over a part of a pass; None without one."""
        if settings.least_loss is None:
            return None
        return cls(settings.least_loss, math.ceil(PART_OF_PASS * examples / settings.batch_size))

    def __init__(self, least: float, window: int) -> None:
        self.least = least
        self._window = window
        self._losses: list[float] = []

    @property
    def over(self) -> bool:
        """True if the loss stayed below the limit for a whole window of steps."""
        return len(self._losses) == self._window and sum(self._losses) < self.least * self._window

    def note(self, loss: float) -> None:
        """Take down the loss of a step."""
        self._losses = [*self._losses, loss][-self._window :]

    def numbers(self) -> dict[str, Any]:
        """The losses of the window, as JSON."""
        return {"losses": self._losses}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Take over what `numbers` gave."""
        self._losses = list(numbers["losses"])
