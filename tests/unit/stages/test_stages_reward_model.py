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
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critique, Failure, Feedback, Judgement, Message, Source
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.stages.answers import Judge
from text2grad.stages.reward_model import train as reward_model
from text2grad.stages.run_folder import RunFolder

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
    monkeypatch.setattr(reward_model, "heldout_cases", lambda *_: cases)


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
    report = reward_model.run_evaluate_reward_model(config(tmp_path), marks=marks)
    assert report.report["people"]["spans"]["accuracy"] == 0.5
    marks.write_text('{"id": "c", "correct": true}\n', encoding="utf-8")
    with pytest.raises(UserError, match="'c' first"):
        reward_model.run_evaluate_reward_model(config(tmp_path), marks=marks)


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
    monkeypatch.setattr(Judge, "open", judge)
    report = reward_model.run_evaluate_reward_model(config(tmp_path, "--evaluate.judge", "judge"))
    assert (
        report.report["judge"]["win"],
        report.report["judge"]["tie"],
        report.report["judge"]["loss"],
    ) == pytest.approx((0, 1 / 3, 2 / 3))


def test_the_others_must_have_judged_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "open", judge)
    others = tmp_path / "others.jsonl"
    options = ("--evaluate.judge", "judge")
    write_jsonl(others, [record("a"), record("a#2"), record("b")])
    assert reward_model.run_evaluate_reward_model(config(tmp_path, *options), others).report["judge"][
        "loss"
    ] == pytest.approx(2 / 3)
    write_jsonl(others, [record("a"), record("b")])  # the annotation of a#2 failed there
    judged = reward_model.run_evaluate_reward_model(config(tmp_path, *options), others).report["judge"]
    assert (judged["judged"], judged["left_out"]) == (2, 1)
    for wrong in ([record("a"), record("b").model_copy(update={"response": TEXT + "!"})], [record("z")]):
        write_jsonl(others, wrong)
        with pytest.raises(UserError, match="evaluate both on the same records"):
            reward_model.run_evaluate_reward_model(config(tmp_path, *options), others)


@pytest.mark.parametrize("numbered", [True, False])
def test_several_answers_to_a_prompt_are_each_compared_with_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    def answer(id: str, number: int) -> Feedback:
        return record(id).model_copy(update={"response": f"{TEXT} {number}"})

    cases = [(answer("a", n), SpanCase(GOLD, GOLD, words_aligned(f"{TEXT} {n}"))) for n in range(4)]
    monkeypatch.setattr(reward_model, "heldout_cases", lambda *_: cases)
    seen: list[str] = []

    def by_response(conversation: Conversation) -> Completion:
        seen.append(conversation[-1].content)
        return Completion(text="tie")

    monkeypatch.setattr(Judge, "open", lambda *_: nullcontext(ScriptedChat(by_response)))
    others = tmp_path / "others.jsonl"
    kept = [3, 1, 0]  # in another order, and that of one answer failed
    ids = ["a", "a#2", "a#3"] if numbered else ["a"] * 3
    silent = {"spans": (), "critique": "No."}
    theirs = [
        answer(id, n).model_copy(update={**silent, "critique": f"No {n}."}) for id, n in zip(ids, kept, strict=True)
    ]
    write_jsonl(others, theirs)
    options = ("--evaluate.judge", "judge")
    judged = reward_model.run_evaluate_reward_model(config(tmp_path, *options), others).report["judge"]
    assert (judged["judged"], judged["left_out"]) == (3, 1)
    for text in seen:
        (number,) = {n for n in range(4) if f"{TEXT} {n}" in text}
        assert f"No {number}." in text


def test_marks_that_name_a_span(tmp_path: Path) -> None:
    good, poor = GOLD.spans
    rows = [{"id": "a", "start": span.start, "end": span.end, "correct": span.label > 0} for span in (good, poor)]
    marks = tmp_path / "marks.jsonl"
    marks.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    report = reward_model.run_evaluate_reward_model(config(tmp_path), marks=marks)
    found = report.report["people"]["spans"]
    row = {"spans": 1, "from": 1, "to": 1}
    assert found["good"] == {"spans": 1, "accuracy": 1.0, "by_length": [{**row, "accuracy": 1.0}]}
    assert found["poor"] == {"spans": 1, "accuracy": 0.0, "by_length": [{**row, "accuracy": 0.0}]}


def test_people_who_disagree_are_a_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marks = tmp_path / "marks.jsonl"
    for correct in (False, True):
        marks.write_text(json.dumps({"id": "a", "correct": correct}) + "\n", encoding="utf-8")
        reward_model.run_evaluate_reward_model(config(tmp_path), marks=marks)
        assert ("warning: people find 0%" in capsys.readouterr().err) == (not correct)


def test_without_held_out_records_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "heldout_cases", lambda *_: [])
    with pytest.raises(UserError, match="heldout_share"):
        reward_model.run_evaluate_reward_model(config(tmp_path))
    assert reward_model.measure_reward_model(RunFolder.of(config(tmp_path)), []) == {}
