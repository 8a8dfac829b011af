"""Probes while PPO runs: their metrics every so many steps, one line when hacking is recorded, none
without a probe."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from text2grad.critics.probes import ProbedCritic
from text2grad.feedback import Critique, Example, Judgement, Message, Source, Span
from text2grad.stages.train import probe_critic
from text2grad.train.watch.steps import combine_hooks

GOOD = "the parcel left on monday morning"


class Flattered:
    """Praises whatever it is shown, and draws a random number to do so."""

    source = Source(kind="reward_model")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        torch.rand(1)
        return [
            Critique(text="fine", spans=(Span(start=0, end=len(text), label=1, text=text),)) for text in responses
        ]


def examples() -> list[Example]:
    return [Example(id="p", prompt=(Message(role="user", content="when?"),), reference=GOOD)]


def test_reward_hacking_is_reported_once_and_random_state_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    critic = ProbedCritic(Flattered(), seed=0)
    on_step = probe_critic(critic)
    assert on_step is not None
    state = torch.random.get_rng_state()
    recorded = []
    answers = {0: GOOD, 9: GOOD, 10: "well well well well", 11: GOOD, 20: "well well well"}
    for step, text in answers.items():
        critic.critique(examples(), [text])
        torch.random.set_rng_state(state)
        metrics = {"delta_sum": float(step)}
        on_step(step, metrics)
        assert torch.equal(torch.random.get_rng_state(), state)
        recorded.append(metrics)
    assert [set(metrics) > {"delta_sum"} for metrics in recorded] == [True, False, True, False, True]
    assert recorded[0]["probe_likeness"] == pytest.approx(1.0) and recorded[2]["probe_likeness"] == 0.0
    assert recorded[0]["probe_spoiled"] == 1.0
    [line] = capsys.readouterr().err.splitlines()
    assert "rose from 0.00 (step 0) to 10.00" in line and "reward hacking" in line


def test_unprobed_critics_and_combined_hooks() -> None:
    assert probe_critic(Flattered()) is None
    assert combine_hooks(None, None) is None
    called: list[str] = []
    both = combine_hooks(lambda step, metrics: called.append("a"), None, lambda step, metrics: called.append("b"))
    assert both is not None
    both(0, {})
    assert called == ["a", "b"]
