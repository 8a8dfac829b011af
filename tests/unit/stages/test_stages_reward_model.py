"""`evaluate --task reward-model` as a stage: what it writes, people's marks, and the judge."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from span_cases import TEXT, critique, word_span, words_aligned
from text2grad.chat import Completion, Conversation, ScriptedChat
from text2grad.config import PRESETS, Config, load_config
from text2grad.errors import UserError
from text2grad.eval.spans import SpanCase
from text2grad.feedback import Critique, Failure, Feedback, Judgement, Message, Source, read_jsonl, write_jsonl
from text2grad.stages import reward_model

GOLD = critique(word_span(1, 0, 0), word_span(-1, 4, 4))
SAID: list[Judgement] = [GOLD, Critique(text="No."), Failure(kind="truncated", message="cut")]


def record(id: str) -> Feedback:
    source = Source(kind="human")
    return Feedback(
        id=id,
        prompt=(Message(role="user", content="Q"),),
        response=TEXT,
        critique=GOLD.text,
        spans=GOLD.spans,
        source=source,
    )


def config(folder: Path, *settings: str) -> Config:
    return load_config(PRESETS / "demo.yaml", ["--run.folder", str(folder), *settings])


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three responses, two of them to one prompt."""
    cases = [
        (record(id), SpanCase(GOLD, judgement, words_aligned(TEXT)))
        for id, judgement in zip(("a", "a", "b"), SAID, strict=True)
    ]
    monkeypatch.setattr(reward_model, "heldout_cases", lambda config: cases)


def test_what_is_left_in_the_run_folder(tmp_path: Path) -> None:
    report = reward_model.run_evaluate_reward_model(config(tmp_path))
    folder = tmp_path / "evaluation"
    assert json.loads((folder / "reward_model.full.json").read_text())["records"] == 3
    rates = json.loads((folder / "reward_model.json").read_text())
    assert rates["good_recall"] == report.report["good"]["recall"] == pytest.approx(1 / 3)
    for name in ("always_neutral", "always_good", "always_poor", "random_spans"):
        assert list(json.loads((folder / f"reward_model_{name}.json").read_text())) == list(rates)
    said = list(read_jsonl(folder / "reward_model.said.jsonl", Feedback))
    assert [each.id for each in said] == ["a", "a#2", "b"]
    assert [each.judgement() for each in said] == SAID


def test_marks_of_people(tmp_path: Path) -> None:
    marks = tmp_path / "marks.jsonl"
    marks.write_text('{"id": "a", "correct": true}\n{"id": "a#2", "correct": false}\n', encoding="utf-8")
    report = reward_model.run_evaluate_reward_model(config(tmp_path, "--evaluate.marks", str(marks)))
    assert report.report["people"]["spans"]["accuracy"] == 0.5
    marks.write_text('{"id": "c", "correct": true}\n', encoding="utf-8")
    with pytest.raises(UserError, match="'c' first"):
        reward_model.run_evaluate_reward_model(config(tmp_path, "--evaluate.marks", str(marks)))


def prefers(conversation: Conversation) -> Completion:
    """Prefers the annotations, which have spans, to silence."""
    first, second = conversation[-1].content.split('<critique number="second">')
    preferred = (
        "tie" if ("because" in first) == ("because" in second) else "first" if "because" in first else "second"
    )
    return Completion(text=preferred)


def judge(*_: object) -> AbstractContextManager[ScriptedChat]:
    return nullcontext(ScriptedChat(prefers))


def test_the_judge_compares_with_the_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "open_judge", judge)
    report = reward_model.run_evaluate_reward_model(config(tmp_path, "--evaluate.judge", "judge"))
    assert (
        report.report["judge"]["win"],
        report.report["judge"]["tie"],
        report.report["judge"]["loss"],
    ) == pytest.approx((0, 1 / 3, 2 / 3))


def test_the_others_must_have_judged_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "open_judge", judge)
    others = tmp_path / "others.jsonl"
    options = ("--evaluate.judge", "judge", "--evaluate.against", str(others))
    write_jsonl(others, [record("a"), record("a#2"), record("b")])
    assert reward_model.run_evaluate_reward_model(config(tmp_path, *options)).report["judge"][
        "loss"
    ] == pytest.approx(2 / 3)
    write_jsonl(others, [record("a"), record("b")])  # the annotation of a#2 failed there
    judged = reward_model.run_evaluate_reward_model(config(tmp_path, *options)).report["judge"]
    assert (judged["judged"], judged["left_out"]) == (2, 1)
    for wrong in ([record("a"), record("b").model_copy(update={"response": TEXT + "!"})], [record("z")]):
        write_jsonl(others, wrong)
        with pytest.raises(UserError, match="evaluate both on the same records"):
            reward_model.run_evaluate_reward_model(config(tmp_path, *options))


def test_without_held_out_records_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "heldout_cases", lambda config: [])
    with pytest.raises(UserError, match="heldout_share"):
        reward_model.run_evaluate_reward_model(config(tmp_path))
    assert reward_model.measure_reward_model(config(tmp_path), []) == {}
