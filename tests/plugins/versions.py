"""What the tests of plug-ins share: engines as if they were installed, and a critic that
remembers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from text2grad.feedback import Example, Judgement
from text2grad.plugins.landing import LandingCritic


def version_of(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """As if the engine were installed in this version."""
    monkeypatch.setattr("text2grad.plugins.credit.version", lambda package: version)


class Listening(LandingCritic):
    """Remembers what it was shown, and how many responses at a time."""

    def __init__(self) -> None:
        self.examples: list[Example] = []
        self.responses: list[str] = []
        self.sizes: list[int] = []

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.examples += examples
        self.responses += responses
        self.sizes.append(len(responses))
        return super().critique(examples, responses)
