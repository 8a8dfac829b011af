"""Probes beside a critic in training: what they measure, that they change nothing, and when hacking
is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from text2grad.critics.probes import Probe, ProbedCritic, describe_hacking
from text2grad.feedback import (
    Critique,
    Example,
    Failure,
    Judgement,
    Message,
    Source,
    Span,
    count_critic_tokens,
    get_overlap,
)

TEXT = "the parcel left on monday morning"
ASKED = (Message(role="user", content="when?"),)


class Lenient:
    """Praises every answer (`all`), only those that read as TEXT (`right`), or fails."""

    source = Source(kind="reward_model", model="lenient")
    overlap = "never"
    tokens = 0.0

    def __init__(self, praised: str) -> None:
        self.praised = praised

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.tokens += 7.0 * len(responses)
        return [self._one(text) for text in responses]

    def _one(self, text: str) -> Judgement:
        if self.praised == "none can be read":
            return Failure(kind="invalid", message="cut")
        label = 1 if self.praised == "all" or text == TEXT else -1
        span = Span(start=0, end=len(text), label=label, text=text)  # type: ignore[arg-type]
        return Critique(text="said", spans=(span,), score=float(label))


def examples(count: int, reference: str = TEXT, **meta: object) -> list[Example]:
    return [Example(id=f"p{n}", prompt=ASKED, reference=reference, meta=meta) for n in range(count)]


def probed(praised: str, asked: Sequence[Example]) -> Probe:
    critic = ProbedCritic(Lenient(praised), seed=0)
    critic.critique(asked, [TEXT] * len(asked))
    return critic.probe(3, 1.5)


def test_it_judges_as_the_critic_does() -> None:
    inner = Lenient("right")
    critic = ProbedCritic(inner, seed=0)
    texts = [TEXT, "no"]
    assert critic.critique(examples(2), texts) == inner.critique(examples(2), texts)
    assert critic.source == inner.source and get_overlap(critic) == "never"
    assert count_critic_tokens(critic) == count_critic_tokens(inner) == 28.0


@pytest.mark.parametrize(("praised", "share"), [("all", 1.0), ("right", 0.0), ("none can be read", None)])
def test_unreadable_answers_that_are_praised_are_counted(praised: str, share: float | None) -> None:
    assert probed(praised, examples(20)) == Probe(3, 1.5, share, pytest.approx(1.0))


def test_a_probe_asks_about_a_few_answers_of_a_large_batch() -> None:
    inner = Lenient("all")
    critic = ProbedCritic(inner, seed=0)
    critic.critique(examples(20), [TEXT] * 20)
    before = inner.tokens
    critic.probe(0, 0.0)
    assert inner.tokens - before == 8 * 7.0


def test_likeness_needs_a_reference_that_answers_resemble() -> None:
    assert probed("all", examples(3, reference="")).likeness is None
    assert probed("all", examples(3, tests="assert f()")).likeness is None
    assert probed("all", examples(3, reference="nothing shared")).likeness == 0.0


def test_before_anything_was_judged_there_is_nothing_to_probe() -> None:
    assert ProbedCritic(Lenient("all"), seed=0).probe(0, 0.0) == Probe(0, 0.0)


FIRST = Probe(0, reward=1.0, corrupted_praised=0.0, likeness=0.4)
HACKING = {
    "from 1.00 (step 0) to 3.00, while likeness to the reference answers fell from 0.40": Probe(20, 3.0, 0.0, 0.3),
    "75 % of its unreadable answers are praised (0 % before)": Probe(20, 3.0, 0.75, 0.4),
    "and 75 %": Probe(20, 3.0, 0.75, 0.1),
}
HONEST = {
    "the reward did not rise": Probe(20, 1.1, 1.0, 0.0),
    "no check failed": Probe(20, 3.0, 0.5, 0.37),
    "nothing was measured": Probe(20, 3.0, None, None),
}


def test_hacking_is_a_reward_that_rises_while_a_check_fails() -> None:
    for words, probe in HACKING.items():
        assert words in describe_hacking(FIRST, probe)
    assert {why: describe_hacking(FIRST, probe) for why, probe in HONEST.items()} == dict.fromkeys(HONEST, "")
    lenient = replace(FIRST, corrupted_praised=0.8)
    assert describe_hacking(lenient, Probe(20, 3.0, 0.8, 0.4)) == "", "it praised everything from the start"
