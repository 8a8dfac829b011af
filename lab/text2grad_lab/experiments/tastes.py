"""A task without right answers, replies to a colleague, and critics of three tastes.

    --task.name text2grad_lab.experiments.tastes:Replies
    --critic.kind text2grad_lab.experiments.tastes:Every

The critic `Worded` joins them with a chat model (`critic.prompted`).

SFT imitates replies in random styles. The measure `about`, 1 if a reply names the thing in
question, is not rewarded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from text2grad.critics.prompted.critic import PROMPTED
from text2grad.critics.spec import CriticSpec
from text2grad.feedback import Critic, Critique, Example, Judgement, Label, Message, Source, Span
from text2grad.tasks.base import Split, TaskSettings, refuse_split_settings

THINGS = (
    "report", "budget", "meeting room", "spare key", "price list", "contract", "projector", "travel plan", "logo",
    "test server", "order form", "training course", "coffee machine", "guest list", "printer", "team photo",
    "delivery note", "parking permit",
)  # fmt: skip
QUESTIONS = ("Can I have the {} by {}?", "Where do I find the {}? I need it on {}.", "Is the {} ready for {}?")
DAYS = ("Monday", "Tuesday", "Thursday", "Friday")
OPENINGS = ("", "Thanks for asking! ", "Happy to help. ", "I am busy. ", "Not my job, really. ", "Good morning. ")
ANSWERS = ("The {} is on the shelf.", "I think the {} might be ready on {}.", "You get the {} on {}.",
           "Perhaps the {} is with Ann, maybe not.", "The {} is not here. Ask Tom, whatever he says.")  # fmt: skip
ENDINGS = (
    " As you know, we have a lot to do.",
    " The weather is fine today.",
    " I hope that helps.",
    " We shall see.",
)
WARM = re.compile(r"\b(thanks|thank you|happy to|glad|welcome|please|hope)\b", re.IGNORECASE)
CURT = re.compile(r"\b(busy|not my job|whatever|no idea)\b", re.IGNORECASE)
HEDGES = re.compile(r"\b(i think|might|maybe|perhaps|probably|we shall see)\b", re.IGNORECASE)
SENTENCES = re.compile(r"\S.*?(?:[.!?]+(?=\s|$)|$)", re.DOTALL)
MAX_SENTENCES = 2


class Replies:
    """Questions of a colleague about a thing; held-out things occur in no other split."""

    name, critic_prompt = "replies", "qa"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        self.seed, self.sizes = settings.seed, {"sft": settings.limit or 240, "train": 400, "heldout": 100}
        things = list(THINGS)
        random.Random(f"{self.seed}/things").shuffle(things)
        cut = round(settings.heldout_share * len(things))
        self.things = {"heldout": things[:cut], "train": things[cut:]}

    def examples(self, split: Split) -> list[Example]:
        """Return the prompts of a split, each with a reply in a random style."""
        rng, things = (
            random.Random(f"{self.seed}/{split}"),
            self.things["heldout" if split == "heldout" else "train"],
        )
        return [self._example(f"{split}-{number}", rng, rng.choice(things)) for number in range(self.sizes[split])]

    def _example(self, id: str, rng: random.Random, thing: str) -> Example:
        day, endings = rng.choice(DAYS), rng.sample(ENDINGS, rng.choice((0, 0, 1, 2, 3)))
        prompt = f"A colleague writes: {rng.choice(QUESTIONS).format(thing, day)}\nWrite the reply."
        reply = rng.choice(OPENINGS) + rng.choice(ANSWERS).format(thing, day) + "".join(endings)
        return Example(
            id=id, prompt=(Message(role="user", content=prompt),), reference=reply, meta={"thing": thing}
        )

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return each critic's score in [0, 1], their mean `taste`, and `about`."""
        values = {name: (1 + (TasteCritic(judge).one(response).score or 0.0)) / 2 for name, judge in TASTES.items()}
        about = float(example.meta["thing"] in response)
        return {"taste": sum(values.values()) / len(values), **values, "about": about}


def brief(response: str) -> Critique:
    """Mark sentences after the second as poor; each lowers the verdict by 0.5."""
    sentences = list(SENTENCES.finditer(response))
    spans = tuple(span(match, -1, "this is more than enough") for match in sentences[MAX_SENTENCES:])
    return Critique(text=f"{len(sentences)} sentences.", spans=spans, score=max(-1.0, 1 - len(spans) / 2))


def warm(response: str) -> Critique:
    """Mark kind words as good and curt ones as poor; the more frequent kind decides the verdict."""
    kind = [span(match, 1, "this is kind") for match in WARM.finditer(response)]
    curt = [span(match, -1, "this is curt") for match in CURT.finditer(response)]
    verdict = float((len(kind) > len(curt)) - (len(kind) < len(curt)))
    return Critique(text=f"{len(kind)} kind words, {len(curt)} curt.", spans=(*kind, *curt), score=verdict)


def sure(response: str) -> Critique:
    """Mark hedges as poor; each lowers the verdict by 1."""
    spans = tuple(span(match, -1, "this is a hedge") for match in HEDGES.finditer(response))
    return Critique(text=f"{len(spans)} hedges.", spans=spans, score=max(-1.0, 1.0 - len(spans)))


def every(response: str) -> Critique:
    """Return the spans of all three, which may contradict each other, and their mean verdict."""
    critiques = [judge(response) for judge in TASTES.values()]
    spans = tuple(span for critique in critiques for span in critique.spans)
    verdict = sum(critique.score or 0.0 for critique in critiques) / len(critiques)
    return Critique(text=" ".join(critique.text for critique in critiques), spans=spans, score=verdict)


class TasteCritic:
    """A critic that applies a judging function to non-blank replies; blank ones are poor."""

    source = Source(kind="program", model="taste", prompt_version="1")

    def __init__(self, judge: Callable[[str], Critique]) -> None:
        self.judge = judge

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return one critique for each response."""
        return [self.one(response) for response in responses]

    def one(self, response: str) -> Critique:
        """Return spans and a verdict."""
        return self.judge(response) if response.strip() else Critique(text="There is no reply.", score=-1.0)


class WordedCritic:
    """A chat model and the three programs together: both critiques, and the mean of the verdicts.

    A failure of the chat model is a failure.
    """

    def __init__(self, chat: Critic) -> None:
        self.chat, self.programs, self.source = chat, TasteCritic(every), chat.source

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return one critique for each response."""
        worded = self.chat.critique(examples, responses)
        return [self._join(*pair) for pair in zip(responses, worded, strict=True)]

    def _join(self, response: str, worded: Judgement) -> Judgement:
        if not isinstance(worded, Critique):
            return worded
        program = self.programs.one(response)
        verdict = ((worded.score or 0.0) + (program.score or 0.0)) / 2
        joined = {"text": f"{worded.text} {program.text}", "spans": worded.spans + program.spans, "score": verdict}
        return worded.model_copy(update=joined)


def span(match: re.Match[str], label: Label, reason: str) -> Span:
    """Return a match as a labelled span."""
    return Span(start=match.start(), end=match.end(), label=label, text=match[0], reason=reason)


TASTES: dict[str, Callable[[str], Critique]] = {"brief": brief, "warm": warm, "sure": sure}
"""Judging functions by the name of their measure."""


def _spec(name: str, judge: Callable[[str], Critique]) -> CriticSpec:
    return CriticSpec(name, make=lambda settings, ready: TasteCritic(judge), source="program")


Brief, Warm, Sure, Every = _spec("brief", brief), _spec("warm", warm), _spec("sure", sure), _spec("every", every)
Worded = replace(PROMPTED, make=lambda settings, ready: WordedCritic(PROMPTED.make(settings, ready)))
