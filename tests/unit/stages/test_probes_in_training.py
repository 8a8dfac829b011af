"""Probes while PPO runs: their metrics every so many steps, one line when hacking is seen, none
without a probe."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from text2grad.critics.probes import ProbedCritic
from text2grad.feedback import Critique, Example, Judgement, Message, Source, Span
from text2grad.stages.train import probes_of
from text2grad.train.watch.steps import combined

GOOD = "the parcel left on monday morning"


class Flattered:
    """Praises whatever it is shown, and draws a random number to do so."""

    source = Source(kind="reward_model")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        torch.rand(1)
        return [
            Critique(text="fine", spans=(Span(start=0, end=len(text), label=1, text=text),)) for text in responses
        ]


def asked() -> list[Example]:
    return [Example(id="p", prompt=(Message(role="user", content="when?"),), reference=GOOD)]


def test_hacking_is_named_once_and_training_does_not_notice(capsys: pytest.CaptureFixture[str]) -> None:
    critic = ProbedCritic(Flattered(), seed=0)
    look = probes_of(critic)
    assert look is not None
    state = torch.random.get_rng_state()
    seen = []
    answers = {0: GOOD, 9: GOOD, 10: "well well well well", 11: GOOD, 20: "well well well"}
    for step, text in answers.items():
        critic.critique(asked(), [text])
        torch.random.set_rng_state(state)
        metrics = {"delta_sum": float(step)}
        look(step, metrics)
        assert torch.equal(torch.random.get_rng_state(), state)
        seen.append(metrics)
    assert [set(each) > {"delta_sum"} for each in seen] == [True, False, True, False, True]
    assert seen[0]["probe_likeness"] == pytest.approx(1.0) and seen[2]["probe_likeness"] == 0.0
    assert seen[0]["probe_spoiled"] == 1.0
    [line] = capsys.readouterr().err.splitlines()
    assert "rose from 0.00 (step 0) to 10.00" in line and "reward hacking (text2grad sample" in line


def test_a_critic_without_probes_has_none_and_several_hooks_are_one() -> None:
    assert probes_of(Flattered()) is None
    assert combined(None, None) is None
    called: list[str] = []
    both = combined(lambda step, metrics: called.append("a"), None, lambda step, metrics: called.append("b"))
    assert both is not None
    both(0, {})
    assert called == ["a", "b"]
