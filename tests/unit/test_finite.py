"""Numbers that are not finite, scores outside 0 to 1, and ids that are there twice are refused,
never results."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from text2grad.align import CreditSettings
from text2grad.errors import InvalidFields, UserError
from text2grad.eval.measures import TaskMeasure
from text2grad.feedback import Example, Message
from text2grad.plugins.credit import mix_rewards
from text2grad.stages.run_folder import heldout_prompts
from text2grad.train.settings import SupervisedSettings

ASKED = Example(id="1", prompt=(Message(role="user", content="Why?"),))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_settings_must_be_finite(number: float) -> None:
    for make in (lambda: CreditSettings(poor_weight=number), lambda: SupervisedSettings(lr=number)):
        with pytest.raises(InvalidFields):
            make()
    for name in ("words_weight", "environment_weight"):
        with pytest.raises(UserError, match=name):
            mix_rewards([], [], [], **{name: number})


class Task:
    """A user's task, as bad as its arguments."""

    name = "mine"

    def __init__(self, score: Any, ids: str) -> None:
        self.score, self.ids = score, ids

    def examples(self, split: str) -> list[Example]:
        return [ASKED.model_copy(update={"id": id}) for id in self.ids]

    def scores(self, example: Example, response: str) -> dict[str, Any]:
        return {"mine": self.score}


@pytest.mark.parametrize("score", [math.nan, math.inf, 1.5, -0.1, "1", None])
def test_a_score_outside_0_to_1_is_refused(score: Any) -> None:
    runner: Any = SimpleNamespace(run_all=lambda jobs, **options: [])
    measure = TaskMeasure(Task(score, "1"), runner)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"Task\.scores returned mine"):
        measure([ASKED], ["So."])


def test_two_heldout_prompts_with_one_id_are_refused() -> None:
    assert len(heldout_prompts(Task(1, "12"), None)) == 2  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'1'"):
        heldout_prompts(Task(1, "121"), None)  # type: ignore[arg-type]
