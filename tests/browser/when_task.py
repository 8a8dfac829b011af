"""A plug-in task whose answer is the same to every question: half of the demonstrations give it,
half another."""

from __future__ import annotations

from text2grad.feedback import Example, Message
from text2grad.settings import TinyShape
from text2grad.tasks.base import Split, TaskSettings

RIGHT, WRONG = "It is due on Friday.", "It is due next week."
THINGS = {
    "train": ("report", "letter", "essay", "form", "review", "plan", "draft", "table", "note", "bill"),
    "heldout": ("paper", "list", "story", "order", "poem", "offer", "card", "book"),
}


class WhenTask:
    """When something is due; held out are other things."""

    name = "when"
    critic_prompt = "reward_model"
    tiny_model = TinyShape(hidden=32, layers=1, heads=2, feed_forward=32)

    def __init__(self, settings: TaskSettings) -> None:
        self.limit = settings.limit

    def examples(self, split: Split) -> list[Example]:
        """A question for each thing; as demonstrations twice, rightly and wrongly answered."""
        answers = (RIGHT, WRONG) if split == "sft" else (RIGHT,)
        things = THINGS["heldout" if split == "heldout" else "train"]
        return [_example(thing, answer) for thing in things for answer in answers][: self.limit]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Whether the answer is the right one."""
        return {"right": float(response.strip() == RIGHT)}


def question(thing: str) -> str:
    """What is asked about a thing."""
    return f"When is the {thing} due?"


def _example(thing: str, answer: str) -> Example:
    prompt = (Message(role="user", content=question(thing)),)
    return Example(id=f"{thing}-{answer[10:12].strip()}", prompt=prompt, reference=answer)
