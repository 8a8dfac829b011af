"""Protocols for critics, which judge responses, and environments, which answer a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from text2grad.errors import UserError
from text2grad.feedback.critiques import Failure, Judgement
from text2grad.feedback.records import Example, Source
from text2grad.feedback.transcripts import Message, turns_of
from text2grad.named import call_user_code, refuse_result


class Critic(Protocol):
    """Anything that gives feedback: an LLM, a program, people, or a trained reward model.

    One call judges a batch, because a local model is only fast in batches. It returns one judgement
    per response, in order. A critic never raises because of a single response: it returns a
    `Failure` for it.
    """

    @property
    def source(self) -> Source:
        """The origin of the feedback; a class attribute will do."""
        ...

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Judge `responses[i]` as an answer to `examples[i]`."""
        ...


def get_judgements(critic: Critic, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
    """Ask a critic for one judgement per response and check the answer.

    A critique with a span or a turn score that the response does not have becomes a failure.

    Raises:
        UserError: a user-defined critic raised, or returned the wrong number of judgements or
            another type.
    """
    cure = "return one Critique or Failure for each response, in their order"
    judgements = call_user_code(cure, critic.critique, examples, responses)
    if not isinstance(judgements, list | tuple) or not all(isinstance(item, Judgement) for item in judgements):
        refuse_result(cure, critic, "critique", judgements)
    if len(judgements) != len(responses):
        name = type(critic).__name__
        raise UserError(f"{name} returned {len(judgements)} judgements for {len(responses)} responses", cure)
    return [_check_text(*pair) for pair in zip(judgements, responses, strict=True)]


def _check_text(judgement: Judgement, response: str) -> Judgement:
    """Return the judgement, or a failure if it is of another text than the response."""
    if isinstance(judgement, Failure):
        return judgement
    for span in judgement.spans:
        if response[span.start : span.end] != span.text:
            message = f"the response does not read {span.text!r} at [{span.start}, {span.end})"
            return Failure(kind="invalid", message=message)
    turns = len(turns_of(response))
    if len(judgement.turn_scores) not in (0, turns):
        message = f"verdicts on {len(judgement.turn_scores)} turns, but the response has {turns}"
        return Failure(kind="invalid", message=message)
    return judgement


Overlap = Literal["helps", "allowed", "never"]


def get_overlap(critic: object) -> Overlap:
    """Return whether a critic may run in a thread while the policy computes (attribute `overlap`).

    `helps`: most of its work happens outside this process (requests, programs). `never`: it uses
    the policy's own weights. The default is `allowed`.
    """
    overlap: Overlap = getattr(critic, "overlap", "allowed")
    return overlap


def count_critic_tokens(critic: object) -> float:
    """Return the tokens a critic has read and written (attribute `tokens`), 0 by default."""
    return float(getattr(critic, "tokens", 0.0))


class Environment(Protocol):
    """The other side of an episode: tools, a game, or a simulated user.

    Equal examples and turns must get equal answers, or a resumed run would differ.
    examples/own_environment.py adapts the environments of verifiers and TRL.
    """

    def reset(self, example: Example) -> Sequence[Message]:
        """Start an episode and return the messages that follow the prompt (often none)."""
        ...

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        """Return the messages that answer a turn of the policy, and whether the episode ended."""
        ...
