"""`evaluate --task reward-model` as a stage: what it writes, people's marks, and the judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from span_cases import TEXT, critique, word_span, words_aligned
from text2grad.chat import Conversation, ScriptedChat
from text2grad.config import PRESETS, load_config
from text2grad.errors import UserError
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critique, Failure, Feedback, Judgement, Message, Source
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.stages.evaluate.answers import Judge
from text2grad.stages.reward_model import train as reward_model
from text2grad.stages.run_folder import RunFolder

GOLD = critique(word_span(1, 0, 0), word_span(-1, 4, 4))
SAID: list[Judgement] = [GOLD, Critique(text="No."), Failure(kind="truncated", message="cut")]


def record(id: str) -> Feedback:
    asked = (Message(role="user", content="Q"),)
    said = {"critique": GOLD.text, "spans": GOLD.spans, "source": Source(kind="human")}
    return Feedback(id=id, prompt=asked, response=TEXT, **said)


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three responses, two of them to one prompt, and a judge that `prefers`."""
    cases = [
        (record(id), SpanCase(GOLD, judgement, words_aligned(TEXT)))
        for id, judgement in zip(("a", "a", "b"), SAID, strict=True)
    ]
    monkeypatch.setattr(reward_model, "heldout_cases", lambda *_: cases)
    monkeypatch.setattr(Judge, "open", lambda *_: nullcontext(ScriptedChat(prefers)))


def evaluated(
    folder: Path, others: Path | None = None, marks: Sequence[Mapping[str, Any]] = ()
) -> Mapping[str, Any]:
    """The report on the reward model of a run in `folder`, with marks of people if there are
    some."""
    place = folder / "marks.jsonl"
    place.write_text("".join(json.dumps(mark) + "\n" for mark in marks), encoding="utf-8")
    config = load_config(PRESETS / "demo.yaml", ["--run.folder", str(folder), "--evaluate.judge", "judge"])
    return reward_model.run_evaluate_reward_model(config, others, place if marks else None)


def test_what_is_left_in_the_run_folder(tmp_path: Path) -> None:
    report = evaluated(tmp_path)
    folder = tmp_path / "evaluation"
    assert json.loads((folder / "reward_model.full.json").read_text())["records"] == 3
    rates = json.loads((folder / "reward_model.json").read_text())
    assert rates["good_recall"] == report["good"]["recall"] == pytest.approx(1 / 3)
    for name in ("always_neutral", "always_good", "always_poor", "random_spans"):
        assert list(json.loads((folder / f"reward_model_{name}.json").read_text())) == list(rates)
    said = list(read_jsonl(folder / "reward_model.said.jsonl", Feedback))
    assert [each.id for each in said] == ["a", "a#2", "b"]
    assert [each.judgement() for each in said] == SAID


def test_marks_of_people_and_a_sign_where_they_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, poor = GOLD.spans
    row = {"spans": 1, "from": 1, "to": 1}
    for accuracy in (1.0, 0.0):
        marks = [{"id": "a", "start": at.start, "end": at.end, "correct": bool(accuracy)} for at in (good, poor)]
        found = evaluated(tmp_path, marks=marks)["people"]["single_spans"]
        by_length = [{**row, "accuracy": accuracy}]
        for label in ("good", "poor"):
            assert found[label] == {"spans": 1, "accuracy": accuracy, "by_length": by_length}
        assert ("warning: people find 0%" in capsys.readouterr().err) == (accuracy == 0)
    with pytest.raises(UserError, match="first 'c'"):
        evaluated(tmp_path, marks=[{"id": "c", "correct": True}])


def prefers(conversation: Conversation) -> str:
    """Prefers the annotations, which have spans, to silence."""
    first, second = conversation[-1].content.split('<critique number="second">')
    silent = ("because" in first) == ("because" in second)
    return "tie" if silent else "first" if "because" in first else "second"


def test_the_judge_compares_with_the_annotations_or_with_others_on_the_same_answers(tmp_path: Path) -> None:
    others = tmp_path / "others.jsonl"
    write_jsonl(others, [record("a"), record("a#2"), record("b")])
    for judged in (evaluated(tmp_path)["judge"], evaluated(tmp_path, others)["judge"]):
        rates = [judged[name] for name in ("win", "tie", "loss")]
        assert rates == pytest.approx([0, 1 / 3, 2 / 3])
    write_jsonl(others, [record("a"), record("b")])  # the annotation of a#2 failed there
    judged = evaluated(tmp_path, others)["judge"]
    assert (judged["judged"], judged["left_out"]) == (2, 1)
    for wrong in ([record("a"), record("b").model_copy(update={"response": TEXT + "!"})], [record("z")]):
        write_jsonl(others, wrong)
        with pytest.raises(UserError, match="evaluate both on the same records"):
            evaluated(tmp_path, others)


@pytest.mark.parametrize("ids", [["a", "a#2", "a#3"], ["a"] * 3], ids=["numbered", "not numbered"])
def test_several_answers_to_a_prompt_are_each_compared_with_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[str]
) -> None:
    def answer(id: str, number: int, **changes: Any) -> Feedback:
        return record(id).model_copy(update={"response": f"{TEXT} {number}", **changes})

    cases = [(answer("a", n), SpanCase(GOLD, GOLD, words_aligned(f"{TEXT} {n}"))) for n in range(4)]
    monkeypatch.setattr(reward_model, "heldout_cases", lambda *_: cases)
    seen: list[str] = []

    def by_response(conversation: Conversation) -> str:
        seen.append(conversation[-1].content)
        return "tie"

    monkeypatch.setattr(Judge, "open", lambda *_: nullcontext(ScriptedChat(by_response)))
    numbers = [3, 1, 0]  # in another order, and that of one answer failed
    theirs = [answer(id, n, spans=(), critique=f"No {n}.") for id, n in zip(ids, numbers, strict=True)]
    write_jsonl(tmp_path / "others.jsonl", theirs)
    judged = evaluated(tmp_path, tmp_path / "others.jsonl")["judge"]
    assert (judged["judged"], judged["left_out"]) == (3, 1)
    for text in seen:
        (number,) = {n for n in range(4) if f"{TEXT} {n}" in text}
        assert f"No {number}." in text


def test_without_held_out_records_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "heldout_cases", lambda *_: [])
    with pytest.raises(UserError, match="heldout_share"):
        evaluated(tmp_path)
    run = RunFolder.of(load_config(PRESETS / "demo.yaml", ["--run.folder", str(tmp_path)]))
    assert reward_model.measure_reward_model(run, []) == {}
