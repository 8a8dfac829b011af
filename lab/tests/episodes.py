"""Play episodes of an environment with given turns."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.feedback import Environment, Example, Message, Transcript


def play_episode(environment: Environment, example: Example, turns: Sequence[str]) -> Transcript:
    """Return the episode of these turns, up to the end that the environment sets."""
    pairs: list[tuple[Sequence[Message], str]] = []
    environment.reset(example)
    others: Sequence[Message] = ()
    for words in turns:
        pairs.append((others, words))
        others, over = environment.step(Message(role="assistant", content=words))
        if over:
            break
    return Transcript.of(pairs, others)
