"""Tasks: splits that share no question, plug-ins, prompts on disk, measures without a model."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from places import DATA, SHARED
from text2grad.data.published import question_example
from text2grad.errors import UserError
from text2grad.feedback import Example, Message, conversation_text
from text2grad.tasks.base import (
    TaskSettings,
    load_task,
    prompt_version,
    read_prompt,
    rouge_l_scores,
    select_split,
)
from text2grad.tasks.code import CodeTask


def example(id: str, content: str, **meta: str) -> Example:
    return Example(id=id, prompt=(Message(role="user", content=content),), meta=dict(meta))


def settings(**changes: object) -> TaskSettings:
    return TaskSettings.model_validate({"name": "qa", **changes})


def test_splits_share_no_question_and_have_about_the_share_asked_for() -> None:
    examples = [example(str(n), f"context {n}", question=f"question {n // 2}") for n in range(2000)]
    train, heldout = (select_split(examples, split, settings()) for split in ("train", "heldout"))
    assert not {e.meta["question"] for e in train} & {e.meta["question"] for e in heldout}
    assert 0.17 < len(heldout) / 2000 < 0.23
    assert select_split(examples, "sft", settings()) == train
    assert select_split(examples, "heldout", settings(seed=1)) != heldout


def test_reading_fewer_records_moves_none_to_the_other_split() -> None:
    examples = [example(str(n), f"question {n}") for n in range(100)]
    whole = {e.id for e in select_split(examples, "heldout", settings())}
    assert {e.id for e in select_split(examples[:40], "heldout", settings())} <= whole


def test_rouge_l_against_numbers_worked_out_by_hand() -> None:
    # LCS "the cat sat" = 3 words: precision 3/3, recall 3/6, F1 = 2/3.
    assert rouge_l_scores("the cat sat on the mat", "the cat sat") == {"rouge_l": pytest.approx(2 / 3)}
    assert rouge_l_scores("anything", "") == {"rouge_l": 0.0}


def test_a_response_is_not_scored_without_a_reference() -> None:
    task = load_task(TaskSettings(name="summarization", data=str(DATA / "slf5k_text2grad.json")))
    (post,) = [e for split in ("train", "heldout") for e in task.examples(split)]
    assert task.scores(post, "A cat.") == {}


def test_a_program_has_no_score_before_its_tests_are_run() -> None:
    task = CodeTask(TaskSettings(name="code", data=str(DATA / "kodcode.jsonl"), heldout_share=0.0))
    problem = task.examples("train")[0]
    assert problem.reference and task.scores(problem, problem.reference) == {}


PLUG_IN = """
class Own:
    name, critic_prompt = "own", "qa"
    def __init__(self, settings): self.data = settings.data
"""


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    (tmp_path / "own_task.py").write_text(PLUG_IN)
    (tmp_path / "lame_task.py").write_text("import no_such_library_anywhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("own_task", "lame_task"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("plug_ins")
def test_a_plug_in_is_called_with_its_settings() -> None:
    task = load_task(TaskSettings(name="own_task:Own", data="here"))
    assert task.data == "here"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "summarisation",
            r"one of code, demo, function_summaries, qa, summarization",
        ),
        ("no_such_module:Task", "no module no_such_module"),
        ("own_task:Other", "own_task has no Other"),
        ("os:system", "system of os is not a task"),
        ("builtins:exec", "exec of builtins is not a task"),
        ("builtins:dict", "dict of builtins is not a task"),
        ("subprocess:Popen", "Popen of subprocess is not a task"),
        ("os:sep", "sep of os is not a task"),
        (".os:system", "unknown task"),
        (":system", "unknown task"),
    ],
)
def test_a_task_that_is_not_there_is_the_users_mistake(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_task(TaskSettings(name=name))


@pytest.mark.usefixtures("plug_ins")
def test_a_plug_in_that_lacks_a_library_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library_anywhere"):
        load_task(TaskSettings(name="lame_task:Task"))


def test_of_several_references_none_is_chosen() -> None:
    assert question_example({"prompt": "When?", "reference": ["On Friday."]}, "1").reference == "On Friday."
    assert (
        question_example({"prompt": "When?", "reference": [], "corrected": "Friday."}, "1").reference == "Friday."
    )
    with pytest.raises(ValueError, match="'reference' is a list of 2 answers: put the one to learn"):
        question_example({"prompt": "When?", "reference": ["On Friday.", "Friday."]}, "1")


def test_conversations_as_text() -> None:
    turns = [Message(role="user", content="Hi"), Message(role="assistant", content="Hello")]
    assert conversation_text(turns[:1]) == "Hi"
    assert conversation_text(turns) == "user: Hi\n\nassistant: Hello"


def test_prompts_are_found_by_stem_or_path_and_their_version_follows_the_text(tmp_path: Path) -> None:
    own = tmp_path / "mine.txt"
    own.write_text("Judge {{response}}")
    first = prompt_version(str(own))
    assert read_prompt(str(own)) == "Judge {{response}}" and first.startswith("mine@")
    own.write_text("Judge {{response}}!")
    assert prompt_version(str(own)) != first
    assert prompt_version("qa").startswith("qa@")
    with pytest.raises(UserError, match=r"one of anchor, code, .*qa, .*reward_model, .*summarization"):
        read_prompt("nope")
    with pytest.raises(UserError, match="cannot read"):
        read_prompt(str(tmp_path / "nope.txt"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")
def test_a_real_file_is_read_whole() -> None:
    task = load_task(TaskSettings(name="summarization", data=str(SHARED / "slf5k_excerpt" / "slf5k_dev50.jsonl")))
    examples = [e for split in ("train", "heldout") for e in task.examples(split)]
    assert len({e.id for e in examples}) == 50
    assert all(e.reference for e in examples)
    assert task.scores(examples[0], examples[0].reference) == {"rouge_l": 1.0}
