"""What the figures of a file mean: the sentence, the advice, and the worst records first."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from text2grad.feedback import Feedback, Span, write_jsonl
from text2grad.report.advice import loss_advice, worst_first
from text2grad.report.quality import report_quality
from text2grad.report.terminal import PolicyAnswer, coloured_spans, show_answers, show_feedback

TEXT = "one two three four five six seven eight nine ten"


def record(id: str, good: str = "", poor: str = "", **more: Any) -> Feedback:
    spans = [
        {"start": TEXT.index(quote), "end": TEXT.index(quote) + len(quote), "label": label, "text": quote}
        for quote, label in ((good, 1), (poor, -1))
        if quote
    ]
    known = {"prompt": [{"role": "user", "content": "Count."}], "response": TEXT, "source": {"kind": "human"}}
    return Feedback.model_validate({"id": id, **known, "spans": spans, **more})


@pytest.mark.parametrize(
    ("good", "poor", "sentence"),
    [
        (
            "one",
            "two three four five six seven eight nine ten",
            "10 % of labelled tokens are praise: the policy will learn to say less.",
        ),
        (
            "one two three four five six seven eight nine",
            "ten",
            "90 % of labelled tokens are praise: the policy will learn to repeat",
        ),
        ("one two", "ten", "67 % of labelled tokens are praise: balanced."),
        ("", "", "No token is labelled: nothing can be learned."),
    ],
)
def test_one_sentence_of_judgement(tmp_path: Path, good: str, poor: str, sentence: str) -> None:
    file = tmp_path / "f.jsonl"
    write_jsonl(file, [record("a", good, poor)])
    assert report_quality(file)["judgement"][0].startswith(sentence)


def test_what_to_write_next(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    for count, then in ((60, "train --offline (train-reward from 200 records on)"), (200, "train-reward")):
        write_jsonl(file, [record(str(i), "one two", "ten", score=0.5) for i in range(count)])
        assert report_quality(file)["next"] == [f"Nothing is missing: text2grad {then}."]
    write_jsonl(file, [record("a", poor="ten", meta={"unmatched": 2}), record("b"), record("c")])
    advice = " ".join(report_quality(file)["next"])
    for words in (
        "Mark what is right too",
        "not in the response: 2",
        "2 of 3 records have none",
        "3 of 3",
        "Write more: 3",
    ):
        assert words in advice


def test_the_worst_come_first_and_failures_never(tmp_path: Path) -> None:
    failed = record("failed", error={"kind": "refused", "message": "no"})
    records = [record("fine", score=1), record("marked", poor=TEXT), record("poor", score=-0.5), failed]
    file = tmp_path / "f.jsonl"
    write_jsonl(file, records)
    assert [each.id for each in worst_first(file, 9)] == ["marked", "poor", "fine"]
    out = io.StringIO()
    show_feedback(Console(file=out, width=200, _environ={}), worst_first(file, 1), report_quality(file))
    assert f"[-{TEXT}-]" in out.getvalue() and "the policy will learn to say less" in out.getvalue()


def test_spans_in_brackets_and_what_is_both_is_plain() -> None:
    spans = [Span(start=0, end=7, label=1, text=TEXT[:7]), Span(start=4, end=13, label=-1, text=TEXT[4:13])]
    assert coloured_spans(TEXT[:18], spans, brackets=True).plain == "[+one +]two[- three-] four"


@pytest.mark.parametrize(("width", "beside"), [(100, True), (60, False)])
def test_answers_stand_side_by_side_where_there_is_room(width: int, beside: bool) -> None:
    out = io.StringIO()
    answers = [PolicyAnswer("sft", "left answer"), PolicyAnswer("text2grad", "right\x1b[2J answer")]
    show_answers(Console(file=out, width=width, _environ={}), "When?", answers)
    lines = out.getvalue().splitlines()
    assert any("left answer" in line and "right answer" in line for line in lines) == beside
    assert "\x1b" not in out.getvalue() and lines[0].startswith("When?")


def test_a_loss_that_does_not_move_is_told_with_its_cure() -> None:
    told = loss_advice([2.3, 2.1, 2.5, 2.2, 2.4, 2.3], "sft", 1e-5)
    assert told.startswith(
        "the loss did not move (2.2 at first, 2.35 at the end, 6 updates at a learning rate of 1e-05)"
    )
    assert told.endswith("raise sft.lr or sft.epochs")


def test_a_loss_that_rose_is_no_case_for_a_higher_rate() -> None:
    told = loss_advice([2.0, 2.0, 2.4, 2.6], "sft", 1e-2)
    assert told == "the loss rose (2 at first, 2.6 at the end, 4 updates at a learning rate of 0.01): lower sft.lr"


@pytest.mark.parametrize("losses", [[], [2.0], [2.0, 2.0], [2.0, 1.9, 1.89], [4.0, 1.0, 3.0, 1.0, 2.0, 2.5]])
def test_a_loss_that_falls_or_is_too_short_is_not(losses: list[float]) -> None:
    assert loss_advice(losses, "sft", 1e-5) == ""
