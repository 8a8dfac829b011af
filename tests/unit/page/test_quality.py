"""The figures of a file of feedback from records counted by hand, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from text2grad.errors import UserError
from text2grad.feedback import Feedback
from text2grad.jsonl import write_jsonl
from text2grad.page.quality import feedback_quality, token_alpha, worst_records

RESPONSE = "One two three four. Five six <b>seven</b>."  # 16 words and signs


def span(quote: str, label: int) -> dict[str, Any]:
    start = RESPONSE.index(quote)
    return {"start": start, "end": start + len(quote), "label": label}


def record(id: str, *quotes: tuple[str, int], **more: Any) -> Feedback:
    spans = [{**span(*quote), "text": quote[0]} for quote in quotes]
    base = {"id": id, "prompt": [{"role": "user", "content": "Count."}], "response": RESPONSE, "spans": spans}
    return Feedback.model_validate({**base, "source": {"kind": "llm"}, **more})


RECORDS = [
    record("a", ("One two", 1), ("six", -1), usage={"prompt_tokens": 100, "completion_tokens": 10, "usd": 0.5}),
    record("a", ("One two", 1), ("six", -1), meta={"unmatched": 1, "normalised": 1, "annotator": "anna"}),
    record("b", ("One two three", 1), meta={"ambiguous": 2, "omissions": ["eight"]}),
    record("c", error={"kind": "refused", "message": "no"}),
    record("d", error={"kind": "invalid", "message": "quotes"}, meta={"unmatched": 1, "dropped_spans": 1}),
]


def measure(folder: Path, records: list[Feedback], canaries: Path | None = None) -> dict[str, Any]:
    write_jsonl(folder / "f.jsonl", records)
    return feedback_quality(folder / "f.jsonl", canaries)


def test_figures(tmp_path: Path) -> None:
    figures = measure(tmp_path, RECORDS)
    # 5 spans and 1 dropped, 2 ambiguous quotes: 8 found, one of them normalised; 2 of 10 quotes are
    # absent.
    counts = {"records": 5, "spans": 5, "exact": 7, "normalised": 1, "unmatched": 2, "ambiguous": 2}
    assert counts.items() <= figures.items()
    assert figures["unmatched_rate"] == 0.2 and figures["failed"] == {"invalid": 1, "refused": 1}
    assert figures["repeated_records"] == 1
    assert figures["labelled_share"] == pytest.approx(9 / 48, abs=1e-4)
    assert figures["good_share"] == round(7 / 9, 4)
    assert (figures["usd"], figures["input_tokens"], figures["output_tokens"]) == (0.5, 100, 10)
    good = {"count": 3, "mean": 2.33, "min": 2, "q1": 2, "q2": 2, "q3": 2.5, "max": 3}
    assert figures["good_spans"] == good
    # a and a again (anna) and b are about one response
    assert (figures["several_annotators"], figures["agreement_measured"]) == (1, 1)


def test_one_record_twice_is_one_opinion(tmp_path: Path) -> None:
    other = RESPONSE + " Eight."
    records = [
        *[record("same", ("six", 1))] * 2,
        record("x", ("One", 1), response=other),
        record("x", ("Five", 1), response=other, meta={"annotator": "bert"}),
    ]
    figures = measure(tmp_path, records)
    assert figures["several_annotators"] == 1 and figures["agreement_alpha"] < 0
    assert figures["repeated_records"] == 2


def test_who_marks_nothing_agrees_and_disagrees_with_nobody(tmp_path: Path) -> None:
    silent = [record("x", critique="Nice.", score=0.5, meta={"annotator": name}) for name in ("bert", "cora")]
    figures = measure(tmp_path, [record("x", ("One", 1), meta={"annotator": "anna"}), *silent])
    assert (figures["several_annotators"], figures["agreement_alpha"]) == (0, None)


def test_alpha_by_hand() -> None:
    # Nominal alpha: 1 - (n - 1) * disagreeing pairs / expected ones; here 1 of 4 units differs.
    assert token_alpha([[0, 0, 1, 1], [0, 0, 1, 0]]) == pytest.approx(1 - 7 * 2 / (2 * 5 * 3))
    # Of three annotators (package krippendorff 0.9.0).
    assert token_alpha([[0, 1, 2, 0], [0, 1, 1, 0], [1, 1, 2, 0]]) == pytest.approx(0.5111111111)
    assert token_alpha([[0, 1], [0, 1]]) == 1.0
    assert token_alpha([[0, 0], [0, 0]]) is None


def test_a_canary_whose_labels_moved_is_counted(tmp_path: Path) -> None:
    cases: list[tuple[list[tuple[str, int]], list[tuple[str, int]], int]] = [
        ([("six", -1)], [("six", -1)], 0),
        ([("six", -1)], [("six", 1)], 1),
        ([("six", -1)], [], 1),
        ([("One two three", 1)], [("One two", 1)], 0),
        ([("One two three", 1)], [("One", 1)], 1),
        ([("One two three", 1)], [("One two", 1), ("three", -1)], 1),
        ([], [(RESPONSE, 1)], 1),
        ([], [], 0),
    ]
    for expected, quotes, moved in cases:
        canary = [span(*quote) for quote in expected]
        write_jsonl(tmp_path / "canaries.jsonl", [record("a", *quotes, meta={"canary": canary})])
        figures = measure(tmp_path, RECORDS, tmp_path / "canaries.jsonl")
        assert (figures["records"], figures["canaries"], figures["canaries_moved"]) == (5, 1, moved), expected


def test_the_worst_come_first_and_failures_never(tmp_path: Path) -> None:
    failed = record("failed", error={"kind": "refused", "message": "no"})
    records = [record("fine", score=1), record("marked", (RESPONSE, -1)), record("poor", score=-0.5), failed]
    write_jsonl(tmp_path / "f.jsonl", records)
    assert [each.id for each in worst_records(tmp_path / "f.jsonl", 9)] == ["marked", "poor", "fine"]
    with pytest.raises(UserError, match="no records"):
        measure(tmp_path, [])


def test_the_meaning_for_a_policy_and_what_to_write_next(tmp_path: Path) -> None:
    for good, poor, meaning in (
        ("One", "two three four. Five six <b>seven</b>.", "say less"),
        ("One two three", "seven", "balanced"),
        ("One two three four. Five six <b>seven</b>", ".", "repeat itself"),
        ("", "", "nothing can be learned"),
    ):
        quotes = [(quote, label) for quote, label in ((good, 1), (poor, -1)) if quote]
        assert meaning in measure(tmp_path, [record("a", *quotes)])["judgement"][0]
    for count, command in ((60, "train --offline"), (200, "train-reward")):
        records = [record(str(i), ("One two", 1), ("seven", -1), score=0.5) for i in range(count)]
        [line] = measure(tmp_path, records)["next"]
        assert f"text2grad {command}" in line
    advice = measure(tmp_path, [record("a", ("six", -1), meta={"unmatched": 2}), record("b"), record("c")])["next"]
    for problem in ("right too", "not in the response: 2", "2 of 3 records have none", "3 of 3 have none"):
        assert any(problem in line for line in advice), problem
