"""MT-Bench: prompts, ratings and means of published judgements, and a scripted judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mt_bench_folder import mt_bench_folder

from places import SHARED
from published import published_text
from text2grad.chat import Completion, ScriptedChat
from text2grad.errors import UserError
from text2grad.feedback import Failure
from text2grad.tasks.base import TaskSettings
from text2grad_lab.benchmarks.mt_bench import MTBench, next_turn, read_answers
from text2grad_lab.benchmarks.ratings import means, rate, rating_messages, rating_of, read_prompts

FOLDER = SHARED / "mt_bench"
MEANS = {
    "dreaming-panda/model_judgment/gpt-4_single-origin.jsonl": {
        "Meta-Llama-3-8B-Instruct-Normal": (8.384, 7.263, 4),
        "Meta-Llama-3-8B-Instruct-Griffin": (3.138, 2.263, 0),
    },
    "Stefanstud/model_judgment/gpt-4_single.jsonl": {"phi-3-dpo": (8.363, 8.038, 0)},
    "alvarobartt/model_judgment/gpt-4_single.jsonl": {"mistral-orpo-trl": (7.731, 6.600, 0)},
}


def task(folder: Path) -> MTBench:
    return MTBench(TaskSettings(name="mt_bench", data=str(folder)))


def judgements(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in published_text("mt_bench", file).split("\n") if line]


@pytest.mark.parametrize("file", MEANS)
def test_published_means_exclude_failed_ratings(file: str) -> None:
    rows = judgements(file)
    for model, (first, second, failed) in MEANS[file].items():
        figures = means(row for row in rows if row["model"] == model)
        assert (figures["turn_1"], figures["turn_2"]) == pytest.approx((first, second), abs=6e-4)
        assert figures["judge_failed"] == failed


@pytest.mark.parametrize("file", MEANS)
def test_published_prompts_and_ratings_are_reproduced(file: str) -> None:
    rows, prompts = judgements(file), read_prompts(FOLDER)
    questions = {question.id: question for question in task(FOLDER).examples("heldout")}
    folder = FOLDER / file.split("/")[0] / "model_answer"
    answers = {path.stem: read_answers(path, questions.values()) for path in folder.iterdir()}
    compared = 0
    for row in rows:
        rating = rating_of(row["judgment"])
        assert (-1 if rating is None else rating) == row["score"]
        if row["model"] in answers:
            example = questions[str(row["question_id"])]
            turns = answers[row["model"]][example.id][: row["turn"]]
            prompt, messages = rating_messages(prompts, example, turns)
            assert (prompt.name, messages[1].content) == (row["judge"][1], row["user_prompt"])
            compared += 1
    assert compared >= 160


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        ("Rating: [[7]]", 7.0),
        ("[[8.5]] and not [[3]]", 8.5),
        ("Rating: [6]", 6.0),
        ("[1] is a source. Rating: [[9]]", 9.0),
        ("Rating: 7", None),
        ("[[11]]", None),
        ("[[-1]]", None),
        ("$ERROR$", None),
    ],
)
def test_ratings_are_parsed(text: str, rating: float | None) -> None:
    assert rating_of(text) == rating_of(Completion(text=text)) == rating
    assert rating_of(Failure(kind="exhausted", message="[[5]]")) is None


def test_a_failed_rating_is_minus_one_and_not_averaged(tmp_path: Path) -> None:
    questions = task(mt_bench_folder(tmp_path)).examples("heldout")
    answers = {example.id: ["one {question_1}", "two"] for example in questions}
    chat = ScriptedChat(["[[4]]", "none", "[[10]]", Failure(kind="exhausted", message="down")])
    rows = rate(chat, read_prompts(tmp_path), questions, answers)
    assert [row["score"] for row in rows] == [4, -1, 10, -1]
    assert [row["judge"][1] for row in rows] == [
        "single-v1",
        "single-v1-multi-turn",
        "single-math-v1",
        "single-math-v1-multi-turn",
    ]
    assert "one {question_1}" in rows[0]["user_prompt"], "braces in an answer are not placeholders"
    figures = means(rows)
    assert figures == {
        "mt_bench": 7, "turn_1": 7, "writing": 4, "math": 10, "judged": 2, "judge_failed": 2
    }  # fmt: skip


def test_the_second_turn_sees_the_first_answer(tmp_path: Path) -> None:
    example = task(mt_bench_folder(tmp_path)).examples("heldout")[0]
    assert next_turn(example, []).prompt == example.prompt
    turns = [(turn.role, turn.content) for turn in next_turn(example, ["Here."]).prompt]
    assert turns == [("user", "Write."), ("assistant", "Here."), ("user", "Again.")]


def test_invalid_folders_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no MT-Bench in 'task.data' \(--task.data FOLDER"):
        MTBench(TaskSettings(name="mt_bench"))
    folder = mt_bench_folder(tmp_path)
    questions, file = task(folder).examples("heldout"), tmp_path / "answers.jsonl"
    for row, problem in [
        ({"id": "1", "response": "x"}, "no 'choices'"),
        ({"question_id": 9, "choices": [{"turns": ["a", "b"]}]}, "'9' is not a question of this MT-Bench"),
        ({"question_id": 81, "choices": [{"turns": ["a"]}]}, "1 of 2 turns"),
        ({"question_id": 81, "choices": [{"turns": ["a", "b"]}]}, "no answer to question 111"),
    ]:
        file.write_text(json.dumps(row) + "\n")
        with pytest.raises(UserError, match=problem):
            read_answers(file, questions)
    (folder / "reference_answer_gpt-4.jsonl").unlink()
    with pytest.raises(UserError, match=r"question 111 \(math\) needs a reference"):
        task(folder)
    (folder / "judge_prompts.jsonl").write_text('{"name": "x", "system_prompt": "", "prompt_template": "y"}\n')
    with pytest.raises(UserError, match="no prompt 'single-v1'"):
        read_prompts(folder)
