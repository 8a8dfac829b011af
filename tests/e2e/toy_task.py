"""A plug-in task, as users write them: one-line functions that a model of a few thousand weights
learns in seconds.

Half of the demonstrations are wrong, so an imitator is right about half of the time; the tests tell
which half.
"""

from __future__ import annotations

from text2grad.feedback import Example, Message
from text2grad.settings import TinyShape
from text2grad.tasks.base import Split, TaskSettings
from text2grad.tasks.demo import DemoTask

SMALL = TinyShape(hidden=32, layers=2, heads=2, feed_forward=64)

FUNCTIONS = {
    "double it": ("x * 2", "x + 2"),
    "halve it": ("x // 2", "x - 2"),
    "negate it": ("-x", "abs(x)"),
    "square it": ("x * x", "x + x"),
    "say if it is even": ("x % 2 == 0", "x % 2"),
    "take the last digit": ("abs(x) % 10", "x // 10"),
    "add one": ("x + 1", "x - 1"),
    "cut it off at ten": ("min(x, 10)", "max(x, 10)"),
}


class ToyTask:
    """The functions above; held out are the same ones, asked politely."""

    name = "toy"
    critic_prompt = "reward_model"
    tiny_model = SMALL

    def __init__(self, settings: TaskSettings) -> None:
        self.limit = settings.limit

    def examples(self, split: Split) -> list[Example]:
        """Every function once; as demonstrations twice, rightly and wrongly written."""
        answers = (0, 1) if split == "sft" else (0,)
        return [_example(words, which, split) for words in FUNCTIONS for which in answers][: self.limit]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Nothing beside the tests."""
        return {}


def _example(words: str, which: int, split: Split) -> Example:
    right, written = FUNCTIONS[words][0], FUNCTIONS[words][which]
    please = ", please" if split == "heldout" else ""
    tests = (
        f"from solution import f\n\ndef test_f():\n    for x in range(-9, 30):\n        assert f(x) == ({right})\n"
    )
    return Example(
        id=f"{split}-{words}-{which}".replace(" ", "_"),
        prompt=(Message(role="user", content=f"Write f(x): {words}{please}."),),
        reference=f"def f(x):\n    return {written}\n",
        meta={} if split == "sft" else {"tests": tests},
    )


class SmallDemo(DemoTask):
    """The demo's task with a model of a few thousand weights."""

    tiny_model = SMALL
