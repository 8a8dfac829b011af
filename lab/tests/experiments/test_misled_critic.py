"""Systematic errors and attacks, in critics and in records; annotations merged by vote."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from text2grad.critics.table import spec_of
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Message, Source, Span
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad_lab.experiments import annotation, tastes, teacher
from text2grad_lab.experiments.misled_critic import INSTRUCTION, Misleading, MisledCritic

EXAMPLE = Example(id="a", prompt=(Message(role="user", content="fill in"),), reference='{"day": "Monday", "n": 3}')
ANSWER = '{"day": "Monday", "n": 4}'


def misled(kind: str, response: str = ANSWER, share: int = 100) -> Critique:
    """Judge a response with the misled critic of fields."""
    spec = spec_of(f"text2grad_lab.experiments.misled_critic:{kind}_{share}_of_fields")
    critic = spec.make(None, SimpleNamespace(seed=0))
    (critique,) = critic.critique([EXAMPLE], [response])
    assert isinstance(critique, Critique)
    return critique


def labels(critique: Critique | Feedback) -> list[tuple[str, int]]:
    return [(span.text, span.label) for span in critique.spans]


def test_a_key_is_always_wrong_or_never() -> None:
    assert labels(misled("key", share=0)) == [("Monday", 1), ("4", -1)]
    assert labels(misled("key")) == [("Monday", -1), ("4", 1)]
    errors = Misleading("key", 0.5, seed=0)
    wrong = {key for key in map(str, range(100)) if errors.hits(key)}
    assert 30 < len(wrong) < 70 and wrong == {key for key in map(str, range(100)) if errors.hits(key)}


def test_politeness_is_praised_and_the_best_answers_are_blamed() -> None:
    polite = misled("polite", '{"day": "please", "n": 4}')
    assert ("please", 1) in labels(polite) and polite.score == 1.0
    assert misled("polite") == misled("polite", share=0)
    best = misled("best", '{"day": "Monday", "n": 3}')
    assert labels(best) == [("Monday", -1), ("3", -1)] and best.score == -1.0
    assert misled("best") == misled("best", share=0)  # its verdict is not above 0


def test_an_instruction_is_shown_to_the_critic_alone() -> None:
    class Obedient:
        source = Source(kind="llm")
        read: Sequence[str] = ()

        def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
            self.read = responses
            spans = tuple(
                Span(start=start, end=end, label=1, text=responses[0][start:end])
                for start, end in ((0, 4), (len(responses[0]) - 2, len(responses[0])))
            )
            return [Critique(text="", spans=spans, score=1.0), Failure(kind="invalid", message="")]

    critic = Obedient()
    first, second = MisledCritic(critic, Misleading("instruct", 1.0, 0)).critique([EXAMPLE] * 2, [ANSWER, "x"])
    assert list(critic.read) == [ANSWER + INSTRUCTION, "x" + INSTRUCTION]
    assert isinstance(first, Critique) and [span.end for span in first.spans] == [4]
    assert isinstance(second, Failure)


def record(response: str, *spans: tuple[int, int, int]) -> Feedback:
    marks = tuple(Span(start=a, end=b, label=label, text=response[a:b]) for a, b, label in spans)  # type: ignore[arg-type]
    return Feedback.of(EXAMPLE, response, Critique(text="", spans=marks, score=0.5), Source(kind="program"))


def test_records_have_the_error_of_their_arm() -> None:
    records = [record(f"good {n}", (0, 4, -1)) for n in range(100)]
    changed = annotation.training_records("instruct_20", records, seed=0)
    obeyed = [row for row in changed if row.response.endswith(INSTRUCTION)]
    assert 10 < len(obeyed) < 30 and all(row.score == 1.0 and row.spans[0].label == 1 for row in obeyed)
    assert annotation.altered_share(records, changed) == len(obeyed) / 100
    blamed = annotation.training_records("best_100", [record("good", (0, 4, 1))], seed=0)
    assert (blamed[0].score, blamed[0].spans[0].label) == (-1.0, -1)


def test_annotations_are_merged_by_majority_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "abcdef"
    files = {
        "truth": record(text, (0, 2, 1), (4, 6, -1)),
        "one": record(text, (0, 2, 1)),
        "two": record(text, (0, 3, 1), (4, 6, -1)),
        "three": record(text, (4, 6, -1)),
    }
    for name, row in files.items():
        write_jsonl(tmp_path / name, [row])
    paths = [str(tmp_path / name) for name in files]
    monkeypatch.setattr(sys, "argv", ["teacher", *paths[1:], "--truth", paths[0], "--out", f"{tmp_path}/new/out"])
    teacher.main()
    (merged,) = read_jsonl(tmp_path / "new" / "out", Feedback)
    assert labels(merged) == [("ab", 1), ("ef", -1)]
    assert json.loads(capsys.readouterr().out) == {"records": 1, "failed": 0, "good_f1": 1.0, "poor_f1": 1.0}
    rates = teacher.f1_by_label([files["two"]], [files["truth"]])
    assert rates == {"good_f1": 0.8, "poor_f1": 1.0}


def test_a_chat_model_and_programs_of_taste_judge_together() -> None:
    class Chat:
        source = Source(kind="llm")

        def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
            span = Span(start=0, end=2, label=-1, text=responses[0][:2])
            return [Critique(text="Dull.", spans=(span,), score=-1.0)]

    critic = tastes.Worded.make(None, SimpleNamespace(critic=Chat()))  # type: ignore[arg-type]
    (critique,) = critic.critique([EXAMPLE], ["It is thanks to you."])
    assert isinstance(critique, Critique) and labels(critique) == [("It", -1), ("thanks", 1)]
    assert critique.score == 0.0 and critique.text.startswith("Dull. ")
