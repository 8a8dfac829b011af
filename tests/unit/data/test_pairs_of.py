"""Preference pairs of scored and corrected answers: which stand over which, and what gives none."""

from __future__ import annotations

from pathlib import Path

import pytest

from text2grad.data.export import Pairs, build_pairs, count_left_out, export
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source

WHY = (Message(role="user", content="Why?"),)


def record(id: str, response: str, score: float | None) -> Feedback:
    return Feedback(id=id, prompt=WHY, response=response, score=score, source=Source(kind="llm"))


def scored(prompt: str, *answers: tuple[str, float | None]) -> list[Feedback]:
    turns = (Message(role="user", content=prompt),)
    return [record(prompt, text, score).model_copy(update={"prompt": turns}) for text, score in answers]


RECORDS = [
    *scored("a", ("good", 1.0), ("poor", -1.0), ("so so", 0.0)),
    *scored("b", ("one", 0.5), ("other", 0.5)),
    *scored("c", ("same", 1.0), ("same ", -1.0)),
    *scored("d", ("alone", 1.0), ("unread", None)),
]


def test_the_best_answer_over_the_worst() -> None:
    found = build_pairs(RECORDS)
    assert [(pair.id, pair.chosen, pair.rejected) for pair in found.pairs] == [("a", "good", "poor")]
    assert found.left_out == {"equal_scores": 1, "equal_sides": 1, "single": 1, "without_score": 1}
    assert count_left_out(RECORDS, "preference") == {"left_out": found.left_out}


def test_more_pairs_of_a_prompt_come_from_both_ends_inwards(tmp_path: Path) -> None:
    answers = (("p1", 1.0), ("p1 ", 1.0), ("f1", -1.0), ("p2", 1.0), ("half", 0.5), ("f2", -1.0), ("f3", -1.0))
    records = list(scored("a", *answers))

    def found(most: int) -> list[tuple[str, str]]:
        return [(pair.chosen, pair.rejected) for pair in build_pairs(records, most).pairs]

    assert found(1) == [("p1", "f1")] and found(2) == [("p1", "f1"), ("p2", "f2")]
    assert found(4) == [("p1", "f1"), ("p2", "f2"), ("half", "f3"), ("p1", "f2")], "then in other company"
    assert len(found(99)) == len(set(found(99))) == 11, "every better over every worse one, once"
    assert not build_pairs([*scored("b", ("one", 0.5), ("other", 0.5))], 4).pairs
    assert export(records, "preference", tmp_path / "pairs.jsonl", 2) == 2


def test_one_that_passes_stands_over_each_that_fails(tmp_path: Path) -> None:
    pairs = build_pairs(scored("a", ("good", 1.0), *((f"bad {n}", -1.0) for n in range(5))), 4).pairs
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [("good", f"bad {n}") for n in range(4)]
    with pytest.raises(UserError, match="no two answers"):
        export(RECORDS[:1], "preference", tmp_path / "pairs.jsonl")
    assert not list(tmp_path.iterdir())


def test_answers_to_unknown_questions_are_no_pairs() -> None:
    """They all have the same empty prompt."""
    unknown = (Message(role="user", content=""),)
    records = [
        Feedback(
            id=str(score), prompt=unknown, response=f"answer {score}", score=score, source=Source(kind="human")
        )
        for score in (-1, 1)
    ]
    assert build_pairs(records) == Pairs([], {"without_prompt": 2})
