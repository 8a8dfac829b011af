"""Noise in the spans of any critic, to measure how much of it the method tolerates.

For the program critic with a fifth of its labels flipped:

    --critic.kind text2grad_lab.experiments.noisy_critic:flip_20_of_program
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from text2grad.critics.spec import CriticSpec
from text2grad.critics.table import CRITICS
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Feedback,
    Judgement,
    Span,
    count_critic_tokens,
    get_overlap,
)
from text2grad.settings import Settings
from text2grad_lab.tasks.facts import FACTS
from text2grad_lab.tasks.fields import FIELDS


class NoiseSettings(Settings):
    """Noise in a share of the spans; text and verdict of a critique are unchanged."""

    kind: Literal["flip", "displace", "drop"] = Field(
        default="flip", description="flip the label, move the span, or drop it"
    )
    share: float = Field(default=0.1, ge=0, le=1, description="share of the spans, drawn independently")


class NoisyCritic:
    """Another critic with noise in its spans.

    The noise depends only on the response, its example and `seed`, so it is reproducible. A span
    that covers the whole response cannot be displaced and is kept. Failures are unchanged.
    """

    def __init__(self, critic: Critic, settings: NoiseSettings, seed: int) -> None:
        self.critic = critic
        self.settings = settings
        self.seed = seed
        self.source = critic.source
        self.overlap = get_overlap(critic)
        self._spans = self._altered = 0

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return the other critic's judgements with altered spans."""
        judgements = self.critic.critique(examples, responses)
        return [self._add_noise(*item) for item in zip(examples, responses, judgements, strict=True)]

    @property
    def tokens(self) -> float:
        """The tokens of the other critic."""
        return count_critic_tokens(self.critic)

    def counts(self) -> dict[str, float]:
        """Return the number of spans, and of altered ones, since the last call."""
        values = {"noise_spans": float(self._spans), "noise_altered": float(self._altered)}
        self._spans = self._altered = 0
        return values

    def _add_noise(self, example: Example, response: str, judgement: Judgement) -> Judgement:
        if not isinstance(judgement, Critique):
            return judgement
        drawn = list(_noisy(judgement.spans, example.id, response, self.settings, self.seed))
        self._spans += len(drawn)
        self._altered += sum(replacement != span for span, replacement in zip(judgement.spans, drawn, strict=True))
        return judgement.model_copy(update={"spans": tuple(span for span in drawn if span is not None)})


def noisy_spans(record: Feedback, settings: NoiseSettings, seed: int) -> list[Span]:
    """Return the spans of a record with the noise of `NoisyCritic`."""
    drawn = _noisy(record.spans, record.id, record.response, settings, seed)
    return [span for span in drawn if span is not None]


def _noisy(
    spans: Sequence[Span], id: str, response: str, settings: NoiseSettings, seed: int
) -> Iterator[Span | None]:
    rng = random.Random(f"{seed}/{id}/{response}")
    for span in spans:
        selected, replacement = rng.random() < settings.share, alter(span, response, settings.kind, rng)
        yield replacement if selected else span


def alter(span: Span, response: str, kind: str, rng: random.Random) -> Span | None:
    """Return the span with the other label (`flip`), moved (`displace`), or None (`drop`)."""
    if kind == "drop":
        return None
    if kind == "flip":
        return span.model_copy(update={"label": -span.label})
    length = span.end - span.start
    places = [start for start in range(len(response) - length + 1) if start != span.start]
    start = rng.choice(places) if places else span.start
    return span.model_copy(update={"start": start, "end": start + length, "text": response[start : start + length]})


def named_critic(name: str, kinds: Sequence[str]) -> tuple[str, float, CriticSpec]:
    """Return kind, share and critic of the name `<kind>_<per cent>_of_<critic>`.

    Raises:
        AttributeError: there is no such kind or critic.
    """
    match = re.fullmatch(rf"({'|'.join(kinds)})_(\d+)_of_(\w+)", name)
    critics = {**CRITICS, FIELDS.kind: FIELDS, FACTS.kind: FACTS}
    if not match or match[3] not in critics:
        raise AttributeError(name)
    return match[1], int(match[2]) / 100, critics[match[3]]


def __getattr__(name: str) -> CriticSpec:
    """Return a critic of the package or the lab with noise: `<kind>_<per cent>_of_<critic>`."""
    kind, share, spec = named_critic(name, ("flip", "displace", "drop"))
    noise = NoiseSettings.model_validate({"kind": kind, "share": share})
    return replace(spec, make=lambda settings, ready: NoisyCritic(spec.make(settings, ready), noise, ready.seed))
