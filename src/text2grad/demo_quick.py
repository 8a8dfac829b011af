"""Task and critic of `text2grad demo --quick`: short replies, and rules for their wording.

The critic words its complaints like a reviewer, and quotes the words that break a rule. A model
from scratch learns the rules in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

from text2grad.feedback import Critique, Example, Judgement, Message, Source
from text2grad.tasks.base import Split, TaskSettings

NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June", "Kim", "Lars"]
ITEMS = ["report", "invoice", "contract", "deck", "budget", "draft", "order", "survey", "ticket", "memo"]
CHOICES = (
    {"Hello": "", "Hi": "", "Yo": "'Yo' is too casual.", "Listen up": "'Listen up' is rude."},
    {"on Monday": "", "on Friday": "", "some day": "'some day' names no day.", "soon": "'soon' names no day."},
    {"Thank you.": "", "Kind regards.": "", "Whatever.": "'Whatever.' is rude.", "Bye.": "'Bye.' is curt."},
)
"""Wordings of greeting, date and ending; those that break a rule have a reviewer's complaint."""
PATTERN = "{}, it is ready {}. {}"


class Replies:
    """Short replies that say when something is ready; a quarter of the prompts is held out.

    Half of the wordings in the demonstrations break a rule.
    """

    name, critic_prompt = "replies", "qa"

    def __init__(self, settings: TaskSettings) -> None:
        self.seed = settings.seed

    def examples(self, split: Split) -> list[Example]:
        """Return the prompts of a split, with a reply in random wording as the reference."""
        random = Random(self.seed)
        pairs = list(product(NAMES, ITEMS))
        random.shuffle(pairs)
        heldout = len(pairs) // 4
        return [
            Example(
                id=f"{name}-{item}",
                prompt=(Message(role="user", content=f"{name} asks when the {item} is ready."),),
                reference=reply(random),
            )
            for name, item in (pairs[:heldout] if split == "heldout" else pairs[heldout:])
        ]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return the share of the three rules that a reply keeps."""
        return {"rules_kept": share_kept(response)}


def reply(random: Random) -> str:
    """Return a reply whose three wordings are drawn at random."""
    return PATTERN.format(*(random.choice(list(choice)) for choice in CHOICES))


class Reviewer:
    """A critic in words that quotes what is good and what breaks a rule."""

    source = Source(kind="program", model="reply rules")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return one critique for each response, in their order."""
        return [review(response) for response in responses]


def review(response: str) -> Critique:
    """Return the critique of one reply; its score is -1 if every rule is broken, 1 if none is."""
    wordings = [item for choice in CHOICES for item in choice.items() if item[0] in response]
    complaints = [complaint for _, complaint in wordings if complaint]
    return Critique.from_quotes(
        response,
        good=[wording for wording, complaint in wordings if not complaint],
        poor=[wording for wording, complaint in wordings if complaint],
        score=2 * share_kept(response) - 1,
        text=" ".join(complaints) or "Polite, and it names the day.",
    )


def share_kept(response: str) -> float:
    """Return the share of the rules kept: an allowed wording is there, and no other of its kind."""
    present = [[complaint for wording, complaint in choice.items() if wording in response] for choice in CHOICES]
    return sum(complaints == [""] for complaints in present) / len(CHOICES)
