"""Programs with tests: KodCode (paper, section 4.3)."""

from __future__ import annotations

from text2grad.data.published import KODCODE
from text2grad.feedback import Example
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.data_task import DataTask


class CodeTask(DataTask):
    """Write a Python program; an example has the reference solution and `meta["tests"]`.

    The tests are a module that imports from `solution` and defines `test_...` functions.
    """

    name = "code"
    critic_prompt = "code"

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, "KodCode/KodCode-Light-RL-10K", KODCODE)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return no scores; the stage runs the tests instead."""
        return {}
