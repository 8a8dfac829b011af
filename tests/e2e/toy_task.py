"""A plug-in task, as users write them: one-line functions that a model of a few thousand weights learns in seconds.

Half of the demonstrations are wrong, so an imitator is right about half of the time; the tests tell which half.
"""

from __future__ import annotations

from text2grad.feedback import Example, Message
from text2grad.tasks.base import Split, TaskSettings

OPERATIONS = {
    "add": ("x + {k}", "x - {k}"),
    "subtract": ("x - {k}", "{k} - x"),
    "multiply by": ("x * {k}", "x + {k}"),
    "take the rest by": ("x % {k}", "x // {k}"),
}
HELDOUT = (4, 7)


class ToyTask:
    """Problems of one operation and one number; the numbers in `HELDOUT` are held out."""

    name = "toy"
    critic_prompt = "reward_model"

    def __init__(self, settings: TaskSettings) -> None:
        self.limit = settings.limit

    def examples(self, split: Split) -> list[Example]:
        """Every operation with every number of the split; of `sft`, each with right and wrong answers in turn."""
        numbers = [number for number in range(2, 10) if (number in HELDOUT) == (split == "heldout")]
        pairs = [(words, number) for number in numbers for words in OPERATIONS]
        answers = (0, 1) if split == "sft" else (0,)
        return [_example(words, number, which, split) for words, number in pairs for which in answers][: self.limit]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Nothing beside the tests."""
        return {}


def _example(words: str, number: int, which: int, split: Split) -> Example:
    right, written = (OPERATIONS[words][index].format(k=number) for index in (0, which))
    tests = f"from solution import f\n\ndef test_f():\n    for x in range(-9, 30):\n        assert f(x) == {right}\n"
    return Example(
        id=f"{split}-{words}-{number}-{which}".replace(" ", "_"),
        prompt=(Message(role="user", content=f"Write f(x): {words} {number}."),),
        reference=f"def f(x):\n    return {written}\n",
        meta={} if split == "sft" else {"tests": tests},
    )
