"""The unit critic: a span for each unit that is good or poor, how much is poor, and nothing that nobody said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from text2grad.config import find_config, load_config
from text2grad.feedback import Critique, Example, Failure, LabelledPlace, Message, Place, Source
from text2grad.stages.critics import critic_inputs
from text2grad_lab.baselines.units import UnitCritic, judgement_of

SOURCE = Source(kind="reward_model", model="m", prompt_version="steps")
ASKED = Example(id="1", prompt=(Message(role="user", content="?"),))
LONG = Failure(kind="unsupported", message="too long")


class Known:
    """Says the same of every answer but of a long one, and remembers what it was asked about."""

    def __init__(self) -> None:
        self.places: Sequence[Sequence[Place]] | None = ()

    def label(
        self,
        prompts: Sequence[Sequence[Message]],
        answers: Sequence[str],
        places: Sequence[Sequence[Place]] | None,
    ) -> list[list[LabelledPlace] | Failure]:
        self.places = places
        return [
            [LabelledPlace(0, 3, 1), LabelledPlace(4, 7, 0), LabelledPlace(8, 11, -1)] if len(answer) < 20 else LONG
            for answer in answers
        ]


def test_a_span_for_each_unit_with_a_label() -> None:
    labeller = Known()
    critic = UnitCritic(labeller, "tokens", SOURCE)
    found, long = critic.critique([ASKED, ASKED], ["one two six", "long " * 9])
    assert critic.tokens == 0, "its labeller counts none"
    assert labeller.places is None and long == LONG
    assert isinstance(found, Critique) and found.text == ""
    assert [(span.text, span.label) for span in found.spans] == [("one", 1), ("six", -1)]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([LabelledPlace(0, 3, 1), LabelledPlace(4, 7, 0), LabelledPlace(8, 11, -1)], 0.33),
        ([LabelledPlace(0, 3, 0), LabelledPlace(4, 7, 0)], 1.0),
        ([LabelledPlace(0, 3, -1), LabelledPlace(4, 7, -1)], -1.0),
        ([LabelledPlace(0, 1, -1), LabelledPlace(2, 11, 1)], 0.8),  # characters count, not units
        ([], None),
    ],
)
def test_the_verdict_is_how_much_is_poor(found: list[LabelledPlace], verdict: float | None) -> None:
    judged = judgement_of("one two six", found)
    assert isinstance(judged, Critique) and judged.score == verdict


def test_the_steps_of_each_answer_are_asked_about() -> None:
    labeller, answers = Known(), ["One. Two. Six.", "Three: four."]
    UnitCritic(labeller, "steps", SOURCE).critique([ASKED, ASKED], answers)
    assert labeller.places == [[(0, 4), (5, 9), (10, 14)], [(0, 12)]]


def test_a_run_with_another_threshold_does_not_resume(tmp_path: Path) -> None:
    words = [f"--run.folder={tmp_path}", "--critic.kind=text2grad_lab.baselines.units:UNIT_MODEL"]
    (tmp_path / "unit_model" / "steps" / "policy").mkdir(parents=True)
    plain, poor, trained = (
        critic_inputs(load_config(find_config("demo"), [*words, *more]))
        for more in ((), ("--extra.unit_model.poor_threshold=0.25",), ("--extra.unit_model.training.lr=0.25",))
    )
    assert {name for name in poor if poor[name] != plain.get(name)} == {"extra.unit_model.poor_threshold"}
    assert trained == plain
