"""That a run learns how long to answer is said once: by what people's labels did to a pretrained
model."""

from __future__ import annotations

import pytest

from text2grad.train.watch.steps import length_warning, warn_if_length_rewarded

DENSE = [(95.5, -1.0), (71.0, -1.0), (56.2, -1.0), (27.6, -0.52), (34.0, -0.98), (27.5, -0.99)]
"""Mean tokens of an answer and their correlation with the reward, step by step: lab/book,
2026-11-24."""


def test_it_is_said_once_at_the_first_step_where_both_hold(capsys: pytest.CaptureFixture[str]) -> None:
    look = warn_if_length_rewarded()
    said = []
    for step, (length, correlation) in enumerate(DENSE):
        look(step, {"response_length": length, "reward_length_correlation": correlation})
        said.append(capsys.readouterr().err)
    assert [bool(words) for words in said] == [False, False, False, False, True, False]
    assert "answers went from 96 to 34 tokens" in said[4]
    assert "r -0.98" in said[4]
    assert "credit.weighting" in said[4]


@pytest.mark.parametrize(
    ("before", "now", "correlation", "told"),
    [
        (100.0, 50.0, -0.8, True),
        (100.0, 51.0, -1.0, False),  # not yet half
        (100.0, 50.0, -0.79, False),  # something else pays, too
        (100.0, 50.0, 0.9, False),  # shorter, where longer ones are paid for
        (40.0, 80.0, 0.8, True),
        (40.0, 80.0, -0.9, False),
        (40.0, 79.0, 1.0, False),
    ],
)
def test_both_the_way_and_the_reward_must_say_so(before: float, now: float, correlation: float, told: bool) -> None:
    assert bool(length_warning(before, now, correlation)) is told
