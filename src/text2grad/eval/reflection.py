"""Revisions of answers by their critiques: once (`refine`), or round after round (`evaluate --reflect`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from text2grad.chat import Completion
from text2grad.critics.prompted import Prompt, PromptedCritic
from text2grad.critics.revision import finds_nothing, refusal_of, revision_messages
from text2grad.feedback import Critic, Critique, Example, Failure
from text2grad.policy.local_chat import LocalChat


class Case(NamedTuple):
    """An answer, and what is wrong with it."""

    example: Example
    response: str
    critique: Critique


class Revision(NamedTuple):
    """What an answer became, or why it is of no use: `critics.revision.Refusal`, truncated or unsupported."""

    text: str
    refused: str = ""


def revise(chat: LocalChat, prompt: Prompt, cases: Sequence[Case]) -> list[Revision]:
    """One revision of each case, in their order."""
    asked = [revision_messages(prompt.text, *case, chat.excess) for case in cases]
    return [_read(answer, case, prompt.text) for answer, case in zip(chat.complete(asked), cases, strict=True)]


def _read(answer: object, case: Case, prompt: str) -> Revision:
    if not isinstance(answer, Completion):
        return Revision("", "unsupported")
    if answer.truncated:
        return Revision(answer.text, "truncated")
    return Revision(answer.text, refusal_of(answer.text, case.response, prompt, case.critique) or "")


@dataclass
class Reflection:
    """The answers as they are; `open` are the places of those that are revised further."""

    responses: list[str]
    open: list[int]
    let_stand: int = 0
    failed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def count(self, other: Reflection) -> None:
        """Add what was counted elsewhere."""
        self.let_stand += other.let_stand
        self.failed += other.failed
        self.refused.update(other.refused)
        self.tokens.update(other.tokens)


def reflected(
    examples: Sequence[Example], state: Reflection, critic: Critic, chat: LocalChat, prompt: Prompt, rounds: int
) -> Iterator[Reflection]:
    """The state after each round. An answer is left as it is once the critic finds nothing, its critique fails, or
    its revision is of no use: asked again, a greedy policy would say the same."""
    asked = [Example(id=example.id, prompt=example.prompt) for example in examples]
    for _ in range(rounds):
        cases = judged(asked, state, critic)
        revisions = revise(chat, prompt, list(cases.values()))
        state.open = []
        for place, revision in zip(cases, revisions, strict=True):
            if revision.refused:
                state.refused[revision.refused] += 1
            else:
                state.responses[place] = revision.text
                state.open.append(place)
        yield state


def judged(asked: Sequence[Example], state: Reflection, critic: Critic) -> dict[int, Case]:
    """What the critic says of the answers that are open, by place; those it finds fault with."""
    examples, responses = [asked[i] for i in state.open], [state.responses[i] for i in state.open]
    before = Counter(used_by(critic))
    said = critic.critique(examples, responses) if examples else []
    for name, count in (Counter(used_by(critic)) - before).items():
        state.tokens[f"critic_{name}"] += count
    cases = {}
    for place, example, response, judgement in zip(state.open, examples, responses, said, strict=True):
        if isinstance(judgement, Failure):
            state.failed += 1
        elif finds_nothing(judgement):
            state.let_stand += 1
        else:
            assert isinstance(judgement, Critique)
            cases[place] = Case(example, response, judgement)
    return cases


def used_by(critic: Critic) -> Mapping[str, int]:
    """Tokens that a critic has read and written so far, by name."""
    return critic.usage if isinstance(critic, PromptedCritic) else {}
