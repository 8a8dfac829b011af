"""Labels of a unit model's training records, and reasons for leaving records out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from text2grad.config import find_config, load_config
from text2grad.errors import EXIT_USAGE, UsageError
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Message, Source, Span
from text2grad_lab.baselines.train_units import labelled_record, refuse_no_steps, run_train_units
from text2grad_lab.baselines.units import StepCritic

CODE = "def f(x):\n    y = x\n    return y\n"
POOR = Span(start=28, end=29, label=-1, text=CODE[28:29])
GOOD = Span(start=14, end=19, label=1, text=CODE[14:19])


def record(**changes: Any) -> Feedback:
    defaults = {
        "id": "1",
        "prompt": (Message(role="user", content="?"),),
        "response": CODE,
        "source": Source(kind="program"),
        "spans": (GOOD, POOR),
        "score": -1.0,
        "meta": {"tests": "from solution import f\n"},
    }
    return Feedback.model_validate(defaults | changes)


def labels(record: Feedback | str) -> list[tuple[str, int]]:
    assert isinstance(record, Feedback)
    return [(span.text, span.label) for span in record.spans]


def test_steps_are_good_unless_a_poor_span_overlaps_them() -> None:
    assert labels(labelled_record(record(), "steps")) == [("y = x", 1), ("return y", -1)]
    assert labels(labelled_record(record(spans=(), score=1.0), "steps")) == [("y = x", 1), ("return y", 1)]


def test_token_units_keep_the_spans_unchanged() -> None:
    assert labelled_record(record(), "tokens") == record()
    assert labels(labelled_record(record(spans=(GOOD,)), "tokens")) == [("y = x", 1)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spans": (), "error": Failure(kind="refused", message="no")}, "failed"),
        ({"spans": (), "response": " \n"}, "blank"),
        ({"spans": (GOOD,)}, "poor_without_a_place"),
    ],
)
def test_unusable_records_have_a_reason(changes: dict[str, Any], reason: str) -> None:
    assert labelled_record(record(**changes), "steps") == reason


def test_steps_of_ultrafeedback_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    config = load_config(find_config("ultrafeedback"), ["--run.folder", str(tmp_path / "run")])
    with pytest.raises(UsageError, match="no steps") as refused:
        run_train_units(config, "steps")
    assert refused.value.exit_code == EXIT_USAGE
    assert "train-units tokens" in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    refuse_no_steps(config, "tokens")
    other = load_config(None, ["--task.name", "qa", "--task.data", "mine.jsonl", "--policy.model", "tiny"])
    refuse_no_steps(other, "steps")


TOTAL = "def f(xs):\n    t = 0\n    for x in xs:\n        t -= x\n    return t\n"


def test_overlapping_steps_are_truncated_and_missing_steps_have_a_reason() -> None:
    spans = [
        Span(start=start, end=end, label=label, text=TOTAL[start:end])
        for start, end, label in ((15, 37, 1), (25, 37, -1), (25, 38, 1), (0, 3, 0))
    ]
    source = Source(kind="llm", prompt_version="steps@1")
    turns = ({"role": "user", "content": "?"},)
    record = Feedback.model_validate(
        {"id": "1", "prompt": turns, "response": TOTAL, "source": source, "spans": spans, "score": -1.0}
    )
    assert labels(labelled_record(record, "steps")) == [("t = 0", 1), ("for x in xs:", -1)]
    assert labelled_record(record.model_copy(update={"spans": (), "score": 1.0}), "steps") == "without_steps"


TWO = "One two. Three four."
FAILED = Failure(kind="unsupported", message="too long")


@pytest.mark.parametrize(
    ("marks", "signs"),
    [((), [1, 1]), (((0, 3, -1),), [-1, 1]), (((0, 7, 1), (7, 8, -1)), [-1, 1]), (((4, 14, -1),), [-1, -1])],
)
def test_a_step_has_the_label_of_its_last_labelled_token(marks: tuple[Any, ...], signs: list[int]) -> None:
    class FixedCritic:
        source = Source(kind="reward_model")

        def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
            return [Critique(text="", spans=spans, score=0.5), FAILED]

    spans = tuple(Span(start=start, end=end, label=label, text=TWO[start:end]) for start, end, label in marks)
    example = Example(id="1", prompt=(Message(role="user", content="?"),))
    relabelled, failed = StepCritic(FixedCritic()).critique([example, example], [TWO, TWO])
    assert isinstance(relabelled, Critique) and failed == FAILED and relabelled.score == 0.5
    assert [(span.text, span.label) for span in relabelled.spans] == list(
        zip(("One two.", "Three four."), signs, strict=True)
    )
