"""People as critics: only what they said, only about what they saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from human_data import corrected_file
from text2grad.critics.human import HumanCritic
from text2grad.data.records import import_feedback
from text2grad.feedback import Critique, Example, Failure, Feedback, Message, Source, Span


@pytest.fixture
def records(tmp_path: Path) -> list[Feedback]:
    """Two records with one span each."""
    return import_feedback(corrected_file(tmp_path / "remarks.jsonl", 2)).records


def test_human_critic_answers_only_for_what_people_have_seen(records: list[Feedback]) -> None:
    critic = HumanCritic(records)
    examples = [record.example() for record in records]
    known, other, swapped = critic.critique(
        [examples[0], examples[0], examples[1]],
        [records[0].response, records[0].response + " ", records[0].response],
    )
    assert known == records[0].judgement() and isinstance(known, Critique)
    for unknown in (other, swapped):
        assert isinstance(unknown, Failure) and unknown.kind == "unsupported"


def test_several_opinions_on_one_response_are_one_with_weights(records: list[Feedback]) -> None:
    first = Span(start=0, end=2, label=-1, text="It")
    record = records[0].model_copy(update={"spans": (first, *records[0].spans)})
    other = record.model_copy(update={"score": 0.0, "spans": record.spans[:1], "meta": {"annotator": "b"}})
    (alone,) = HumanCritic([record, record]).critique([record.example()], [record.response])
    (both,) = HumanCritic([record, other]).critique([record.example()], [record.response])
    assert alone == record.judgement() and isinstance(both, Critique) and record.score is not None
    assert [span.weight for span in both.spans] == [1.0, 0.5] and both.score == round(record.score / 2, 4)


def test_equal_opinions_of_two_people_count_twice(records: list[Feedback]) -> None:
    scores = {"a": 1.0, "b": 1.0, "c": -1.0}
    opinions = [
        records[0].model_copy(update={"score": score, "meta": {"annotator": name}})
        for name, score in scores.items()
    ]
    (merged,) = HumanCritic([*opinions, opinions[0]]).critique([records[0].example()], [records[0].response])
    assert isinstance(merged, Critique) and merged.score == 0.3333


def test_the_example_of_a_record_without_a_correction_has_no_reference() -> None:
    prompt = (Message(role="user", content="q"),)
    record = Feedback.of(Example(id="1", prompt=prompt), "r", Critique(text=""), Source(kind="human"))
    assert record.example().reference == ""
