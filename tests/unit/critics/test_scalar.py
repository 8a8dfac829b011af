"""The scalar critic: from a score to a verdict, and never a verdict without a score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from text2grad.critics.scalar import ScalarCritic, Scale
from text2grad.feedback import Critique, Example, Failure, Message, Source

SOURCE = Source(kind="reward_model", model="m", prompt_version="scalar")


class Known:
    """Scores by answer."""

    def __init__(self, **scores: float | None) -> None:
        self.known = scores

    def scores(self, prompts: Sequence[Sequence[Message]], answers: Sequence[str]) -> list[float | None]:
        assert len(prompts) == len(answers)
        return [self.known[answer] for answer in answers]


def judged(*answers: str) -> list[Critique | Failure]:
    known = Known(mean=2.0, above=2.5, far=1e6, below=1.5, long=None, broken=math.nan)
    asked = [Example(id=answer, prompt=(Message(role="user", content="?"),)) for answer in answers]
    return ScalarCritic(known, Scale(2.0, 0.5), SOURCE).critique(asked, answers)


def test_the_verdict_is_the_chance_to_beat_an_average_answer() -> None:
    mean, above, below, far = judged("mean", "above", "below", "far")
    assert all(isinstance(each, Critique) and not each.spans for each in (mean, above, below, far))
    assert isinstance(mean, Critique) and mean.score == 0
    assert isinstance(above, Critique) and above.score == pytest.approx(2 / (1 + math.exp(-1)) - 1)
    assert above.meta == {"reward": 2.5, "standardised": 1.0}
    assert isinstance(below, Critique) and isinstance(far, Critique)
    assert below.score == pytest.approx(-above.score) and far.score == 1.0


def test_no_score_is_a_failure() -> None:
    long, broken = judged("long", "broken")
    assert isinstance(long, Failure) and long.kind == "unsupported"
    assert isinstance(broken, Failure) and broken.kind == "invalid"
