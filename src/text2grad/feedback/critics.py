"""Protocols of critics, which give feedback, and of environments, which answer a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from text2grad.errors import UserError
from text2grad.feedback.critiques import Judgement
from text2grad.feedback.records import Example, Source
from text2grad.feedback.transcripts import Message
from text2grad.named import call_user_code, refuse_result


class Critic(Protocol):
    """Anything that gives feedback: an LLM, a program, people, or a trained reward model.

    One call judges a batch, because a local model is only fast in batches; there are exactly as
    many judgements as responses, in their order. A critic never raises for one bad response: it
    returns a `Failure` in its place.
    """

    @property
    def source(self) -> Source:
        """Who speaks; a class attribute will do."""
        ...

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Judge `responses[i]` as an answer to `examples[i]`."""
        ...


def judgements_of(critic: Critic, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
    """Ask a critic for one judgement per response, and check that it gave them.

    Raises:
        UserError: a critic of the user's own raised; there are not as many judgements as responses,
            or one of them is something else.
    """
    cure = "return one Critique or Failure for each response, in their order"
    judgements = call_user_code(cure, critic.critique, examples, responses)
    if not isinstance(judgements, list | tuple) or not all(isinstance(item, Judgement) for item in judgements):
        refuse_result(cure, critic, "critique", judgements)
    if len(judgements) != len(responses):
        name = type(critic).__name__
        raise UserError(f"{name} gave {len(judgements)} judgements of {len(responses)} responses", cure)
    return list(judgements)


Overlap = Literal["helps", "allowed", "never"]


def overlap_of(critic: object) -> Overlap:
    """Return a critic's attribute `overlap`: may it run in a thread while the policy computes?

    `helps`: most of its work is done outside this process (requests, programs). `never`: it
    computes with the policy's own weights. `allowed` is the default.
    """
    overlap: Overlap = getattr(critic, "overlap", "allowed")
    return overlap


def tokens_of(critic: object) -> float:
    """Return the tokens that a critic has read and written so far (its attribute `tokens`); 0 if it
    is no model."""
    return float(getattr(critic, "tokens", 0.0))


class Environment(Protocol):
    """Answers the turns of a policy in one episode: tools, a game, a simulated user.

    The same example and turns must get the same answers, or a resumed run would differ. verifiers
    and TRL have environments of other shapes, which examples/own_environment.py adapts.
    """

    def reset(self, example: Example) -> Sequence[Message]:
        """Begin an episode; return the messages after the example's prompt (often none)."""
        ...

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        """Return the messages that answer a turn of the policy, and whether the episode is over."""
        ...
