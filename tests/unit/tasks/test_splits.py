"""Which questions a stage may learn from: shares that are disjoint and exact, and data sets' own
held-out files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from text2grad.config import find_config, load_config
from text2grad.errors import UserError
from text2grad.feedback import Example, Feedback, Message, Source
from text2grad.jsonl import write_jsonl
from text2grad.stages.reward_model.data import reward_data
from text2grad.stages.run_folder import RunFolder
from text2grad.tasks import data_task
from text2grad.tasks.base import SHARES, TaskSettings, feedback_split, load_task, question_key, select_split

PAPER = (0.3, 0.5, 0.2)
ALL = (*SHARES, "heldout")


def settings(**changes: object) -> TaskSettings:
    return TaskSettings.model_validate({"name": "qa", "split": PAPER, **changes})


def example(id: str, content: str) -> Example:
    return Example(id=id, prompt=(Message(role="user", content=content),))


def questions(examples: list[Example]) -> set[str]:
    return {question_key(each) for each in examples}


def parts_of(examples: list[Example], chosen: TaskSettings, heldout: Any = None) -> dict[str, list[Example]]:
    return {split: select_split(examples, split, chosen, heldout) for split in ALL}


@given(st.lists(st.sampled_from([f"Question  {n}?" for n in range(40)]), max_size=80), st.integers(0, 3))
def test_no_question_is_in_two_shares_however_often_it_is_asked(asked: list[str], seed: int) -> None:
    examples = [example(str(n), text.upper() if n % 3 else text) for n, text in enumerate(asked)]
    parts = parts_of(examples, settings(seed=seed))
    assert sorted(e.id for part in parts.values() for e in part) == sorted(e.id for e in examples)
    sets = [questions(part) for part in parts.values()]
    assert sum(map(len, sets)) == len(set.union(*sets))


@pytest.mark.parametrize("count", [10, 11, 997, 1000])
def test_the_shares_are_exact_in_questions_not_in_rows(count: int) -> None:
    rows = [example(f"{n}-{copy}", f"Question {n}") for n in range(count) for copy in range(1 + n % 4)]
    parts = parts_of(rows, settings(heldout_share=0.0))
    assert parts["heldout"] == []
    for split, share in zip(SHARES, PAPER, strict=True):
        assert abs(len(questions(parts[split])) - share * count) <= 1


def test_the_order_of_rows_and_a_second_reading_change_nothing_but_the_seed_does() -> None:
    rows = [example(str(n), f"Question {n}") for n in range(50)]
    first, again = parts_of(rows, settings()), parts_of(rows[::-1], settings())
    assert all(questions(first[split]) == questions(again[split]) for split in ALL)
    assert questions(select_split(rows, "reward", settings(seed=1))) != questions(first["reward"])


def test_without_shares_every_stage_takes_all_that_is_not_held_out() -> None:
    rows = [example(str(n), f"Question {n}") for n in range(50)]
    assert select_split(rows, "sft", settings(split=None)) == select_split(rows, "train", settings(split=None))
    assert feedback_split(settings(split=None)) == "train" and feedback_split(settings()) == "reward"


def test_a_held_out_file_is_measured_on_whole_and_never_trained_on() -> None:
    rows = [example(str(n), f"Question {n}") for n in range(30)]
    heldout = [example("h1", "question   3"), example("h2", "Another?")]
    for chosen in (settings(), settings(split=None)):
        parts = parts_of(rows, chosen, heldout)
        assert parts["heldout"] == heldout
        trained = set().union(*(questions(parts[split]) for split in SHARES))
        assert trained == {f"question {n}" for n in range(30)} - {"question 3"}


@pytest.mark.parametrize("shares", [(0.3, 0.5, 0.3), (0.5, 0.6, -0.1), (1.0, 0.0)])
def test_shares_must_add_up_to_one(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        settings(split=shares)


@pytest.mark.parametrize("name", ["demo", "function_summaries"])
@pytest.mark.parametrize("change", [{"split": PAPER}, {"heldout_data": "x.jsonl"}])
def test_a_task_with_predefined_splits_refuses_split_settings(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"has predefined splits .unset task.split"):
        load_task(TaskSettings.model_validate({"name": name, **change}))


# --- files and the hub


def qa_file(path: Path, *numbers: int) -> Path:
    turns = [
        [{"role": "user", "content": f"Question {n}"}, {"role": "assistant", "content": "A."}] for n in numbers
    ]
    rows = [
        {"prompt": each[0]["content"], "prompt_id": each[0]["content"], "chosen": each, "rejected": each}
        for each in turns
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_task_heldout_data_is_read_beside_task_data(tmp_path: Path) -> None:
    train, heldout = qa_file(tmp_path / "train.jsonl", *range(20)), qa_file(tmp_path / "dev.jsonl", 3, 99)
    task = load_task(settings(data=str(train), heldout_data=str(heldout)))
    assert [e.id for e in task.examples("heldout")] == ["Question 3", "Question 99"]
    parts = [questions(task.examples(split)) for split in SHARES]
    assert [len(part) for part in parts] == [6, 9, 4] and "question 3" not in set.union(*parts)


@pytest.mark.parametrize(
    ("name", "data", "asked"),
    [
        ("qa", "", ["train_prefs", "test_prefs"]),
        ("summarization", "", ["train.jsonl", "validation.jsonl"]),
        ("code", "", ["train"]),
    ],
)
def test_a_data_set_that_comes_with_a_held_out_split_uses_it(
    name: str, data: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def read(name: str, shapes: Any, limit: Any, split: str) -> list[Example]:
        seen.append(split)
        return [example(f"{split}-{n}", f"{split} {n}") for n in range(3)]

    monkeypatch.setattr(data_task, "read_examples", read)
    task = load_task(TaskSettings(name=name, data=data))
    assert seen == asked
    if len(asked) == 2:
        assert [e.id for e in task.examples("heldout")] == [f"{asked[1]}-{n}" for n in range(3)]
        assert len(task.examples("train")) == 3, "nothing else is held out"


# --- the reward model's share


def records(*numbers: int) -> list[Feedback]:
    return [
        Feedback(id=str(n), prompt=example("", f"Question {n}").prompt, response="A.", source=Source(kind=kind))
        for n in numbers
        for kind in ("human", "llm")
    ]


@pytest.mark.parametrize("own_file", [False, True])
def test_the_reward_model_learns_from_its_own_share_alone(tmp_path: Path, own_file: bool) -> None:
    data = qa_file(tmp_path / "train.jsonl", *range(40))
    extra = ["--task.heldout_data", str(qa_file(tmp_path / "dev.jsonl", 1, 2, 50))] if own_file else []
    task = ["--task.name", "qa", "--task.data", str(data), "--task.split", "[0.3, 0.5, 0.2]", *extra]
    config = load_config(find_config("human_qa"), ["--run.folder", str(tmp_path / "run"), *task])
    (tmp_path / "run").mkdir()
    write_jsonl(tmp_path / "run" / "feedback.jsonl", records(*range(55)))
    chosen = load_task(config.task)
    train, heldout = (questions([r.example() for r in part]) for part in reward_data(RunFolder.of(config)))
    assert questions(chosen.examples("reward")) <= train
    assert not train & (questions(chosen.examples("sft")) | questions(chosen.examples("train")))
    assert not train & heldout and not train & questions(chosen.examples("heldout"))
    assert questions(chosen.examples("heldout")) <= heldout


def test_the_preset_of_ultrafeedback_has_the_papers_shares() -> None:
    config = load_config(find_config("ultrafeedback"))
    assert config.task.split == PAPER
