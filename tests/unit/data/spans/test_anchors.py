"""Words that a comment quotes become spans where there is no doubt, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.records import import_feedback
from text2grad.data.spans.anchors import criticises, find_anchors

ANSWER = "The lamp is 12 inches tall, the best of all lamps, and a lamp for you."


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ('"12 inches" is no metric unit', ["12 inches"]),
        ("'the best' and “for you” are salesy", ["the best", "for you"]),
        ("„12 Inches“ stört", ["12 inches"]),
        ("«for you»?", ["for you"]),
        ('"lamp" again and again', []),
        ('"lam" is half a word', []),
        ('"30 cm" would be right', []),
        ('say "for you" first', []),
        ("should be \"the best\"", []),
        ("lieber „for you“", []),
        ("no inches (12 inches), please", []),
        ("inches?? should be cm", []),
        ("don't say it's the best, that's not 'ours'", []),
        ('"12 inches" ' + "and so on " * 60, []),
    ],
)  # fmt: skip
def test_only_what_is_quoted_once_and_not_proposed(comment: str, words: list[str]) -> None:
    assert [ANSWER[start:end] for start, end in find_anchors(comment, ANSWER)] == words


def test_letters_that_fold_to_two_are_quoted_too() -> None:
    answer = "Die Größe: 12 Zoll. GRÖSSE zählt."
    assert [answer[start:end] for start, end in find_anchors('"größe" ist zu lang, „12 zoll“ auch', answer)] == [
        "Größe",
        "12 Zoll",
    ]


@pytest.mark.parametrize(
    ("comment", "score", "criticised"),
    [
        ("no", -0.5, True),
        ("good", 0.0, True),
        ("no", 0.5, True),
        ("good", 0.5, False),
        ("no", 1.0, False),
        ('"the best"?', None, True),
    ],
)
def test_what_praises_marks_nothing_poor(comment: str, score: float | None, criticised: bool) -> None:
    assert criticises(comment, score) is criticised


def imported(folder: Path, **row: Any) -> Any:
    path = folder / "remarks.jsonl"
    path.write_text(json.dumps({"prompt": "Describe the lamp.", "response": ANSWER, **row}), encoding="utf-8")
    result = import_feedback(path, "remarks")
    return [(span.text, span.label) for span in result.records[0].spans], result.anchored


def test_a_remark_without_marks_has_what_its_comment_quotes(tmp_path: Path) -> None:
    comment = '"12 inches" is no metric unit'
    spans, lines = imported(tmp_path, critique=comment)
    assert spans == [("12 inches", -1)] and lines == ("line 1: '12 inches'",)
    for others in (
        {"score": 1},
        {"poor": "for you"},
        {"corrected": ANSWER.replace(" for you", "")},
        {"spans": "none"},
    ):
        spans, lines = imported(tmp_path, critique=comment, **others)
        assert ("12 inches", -1) not in spans and not lines
