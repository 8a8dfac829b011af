"""A critic of your own: any object that judges responses in words and spans. This one wants numbers, nothing else.

    python examples/own_critic.py

A model that was made a second ago, from nothing, learns from it to answer in digits. With a real model, take
`PolicySettings(model="Qwen/Qwen2.5-0.5B-Instruct")` and the prompts of your task.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import text2grad as t2g

PROMPTS = ["How many legs has a spider?", "How many days has a week?", "How many sides has a square?"]


class OnlyNumbers:
    """Praises runs of digits, criticises everything else; the verdict is the share of digits, from -1 to 1."""

    source = t2g.Source(kind="program", model="only numbers")

    def critique(
        self, examples: Sequence[t2g.Example], responses: Sequence[str]
    ) -> list[t2g.Critique | t2g.Failure]:
        """One judgement for each response, in their order."""
        return [self.judge(response) for response in responses]

    def judge(self, response: str) -> t2g.Critique | t2g.Failure:
        """What cannot be judged is a `Failure`: it is never a score, and nothing is learnt from it."""
        if not response.strip():
            return t2g.Failure(kind="unsupported", message="the response is empty")
        spans = [
            t2g.Span(start=run.start(), end=run.end(), label=1 if run[0].isdigit() else -1, text=run[0])
            for run in re.finditer(r"\d+|\D+", response)
        ]
        digits = sum(len(span.text) for span in spans if span.label == 1) / len(response)
        return t2g.Critique(text=f"{digits:.0%} digits.", spans=tuple(spans), score=2 * digits - 1)


def digits_of(policy: t2g.Policy, examples: Sequence[t2g.Example]) -> float:
    """The share of digits in what the policy answers."""
    chat = t2g.LocalChat(policy, t2g.GenerationSettings(max_new_tokens=8), "policy")
    answers = chat.complete([example.prompt for example in examples])
    text = "".join(answer.text for answer in answers if not isinstance(answer, t2g.Failure))
    return sum(character.isdigit() for character in text) / max(1, len(text))


def main(folder: Path) -> None:
    """Make a model, train it against the critic, and say how many digits it writes before and after."""
    t2g.make_tiny_model(folder / "base", PROMPTS, t2g.TinySettings(vocabulary=300, hidden=32, layers=1), seed=0)
    policy = t2g.load_policy(t2g.PolicySettings(model=str(folder / "base"), device="cpu"))
    prompts = [(t2g.Message(role="user", content=text),) for text in PROMPTS]
    examples = [t2g.Example(id=f"q-{n}", prompt=prompt) for n, prompt in enumerate(prompts)]
    before = digits_of(policy, examples * 20)
    t2g.train_ppo(
        policy,
        examples * 6,
        OnlyNumbers(),
        t2g.PPOSettings(steps=20, rollouts=16, lr=1e-2, kl_coefficient=0.0, max_kl=None),
        t2g.CreditSettings(),
        t2g.GenerationSettings(max_new_tokens=8),
        t2g.RunOptions(folder / "run", title="train"),
    )
    print(f"digits in what the model writes: {before:.0%} before, {digits_of(policy, examples * 20):.0%} after")


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        main(Path(place))
