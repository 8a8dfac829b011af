"""`evaluate` of files of answers and of policies in words: figures, the judge, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chat_server import ChatServer, Reply, error, last_message, said, servers_of
from places import CONFIGS
from text2grad.config import Config, load_config
from text2grad.errors import UsageError, UserError
from text2grad.stages import evaluate
from text2grad.stages.answers import run_evaluate_answers
from text2grad.stages.evaluate import run_evaluate
from tiny_runs import tiny_model

ROWS = [
    {"id": f"p{n}", "prompt": f"Sum up {n}.", "response": text, "reference": "the cat sat down"}
    for n, text in enumerate(["the cat sat", "a dog", "the cat sat down", ""])
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def config_in(folder: Path, *words: str) -> Config:
    fixed = ["--run.folder", str(folder / "run"), "--run.threads", "1", "--task.name", "summarization"]
    return load_config(CONFIGS / "demo.yaml", [*fixed, *words])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-key-of-anybody")


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    def server(answer: Callable[[str, int], Reply]) -> ChatServer:
        return ChatServer(lambda name, turn, body: answer(name, turn), last_message)

    with servers_of(server) as start:
        yield start


def judged_by(server: ChatServer) -> list[str]:
    return ["--evaluate.judge", "judge", "--evaluate.judge_url", server.url]


def test_a_file_is_measured_without_a_model(tmp_path: Path) -> None:
    figures = run_evaluate_answers(config_in(tmp_path), [write(tmp_path / "gpt.jsonl", ROWS)]).as_dict()
    assert figures["rouge1"] == pytest.approx((6 / 7 + 0 + 1 + 0) / 4)
    assert (figures["answers"], figures["empty"]) == (4, 1)
    place = tmp_path / "run" / "evaluation" / "summarization" / "gpt.json"
    assert figures["out"] == str(place)
    written = json.loads(place.read_text())
    assert written == {name: value for name, value in figures.items() if name != "out"}


def test_a_list_of_one_reference_is_that_reference(tmp_path: Path) -> None:
    listed = [{**row, "reference": [row["reference"]]} for row in ROWS]
    plain, of_lists = (
        run_evaluate_answers(config_in(tmp_path / name), [write(tmp_path / f"{name}.jsonl", rows)]).as_dict()
        for name, rows in (("plain", ROWS), ("lists", listed))
    )
    assert plain["rouge_l"] == of_lists["rouge_l"]


def test_references_of_the_task_are_found_by_id(tmp_path: Path) -> None:
    posts = [{"id": f"t{n}", "title": "", "post": f"post {n}", "ideal_human_summary": "it rains"} for n in range(3)]
    data = str(write(tmp_path / "posts.jsonl", posts))
    config = config_in(tmp_path, "--task.data", data, "--task.heldout_data", data)
    answers = write(tmp_path / "a.jsonl", [{"id": "t1", "response": "it rains"}])
    figures = run_evaluate_answers(config, [answers]).as_dict()
    assert (figures["rouge_l"], figures["answers"], figures["missing"]) == (1, 1, 2)
    write(tmp_path / "posts.jsonl", [{**posts[0], "ideal_human_summary": ""}])
    with pytest.raises(UserError, match="the reference of prompt 't0' is empty"):
        run_evaluate_answers(config, [write(answers, [{"id": "t0", "response": "x"}])])


BAD: list[tuple[list[dict[str, Any]], str]] = [
    ([{"id": "p", "reference": "x"}], r"record 1: no column 'response' \(fix or remove record 1\)"),
    ([ROWS[0], {**ROWS[1], "reference": " "}], "record 2: the reference is empty"),
    ([{**ROWS[0], "reference": ["x", "y"]}], "'reference' is a list of 2 answers: put the one to learn or compare"),
    ([{**ROWS[0], "reference": []}], "the reference is empty"),
    ([{**ROWS[0], "response": 3}], "the response is not text"),
    ([{"response": "x"}], "neither a 'reference' nor the 'id' of a prompt"),
    ([{"id": "humaneval-1", "response": "x"}], "no held-out prompt 'humaneval-1'.*answers of another task"),
    ([{"task_id": "HumanEval/0", "completion": "x"}], "holds programs"),
]


@pytest.mark.parametrize(("rows", "problem"), BAD)
def test_bad_files_are_refused_before_anything_is_written(
    tmp_path: Path, rows: list[dict[str, Any]], problem: str
) -> None:
    posts = [{"id": "t", "title": "", "post": "post", "ideal_human_summary": "it rains"}]
    data = str(write(tmp_path / "posts.jsonl", posts))
    config = config_in(tmp_path, "--task.data", data, "--task.heldout_data", data)
    with pytest.raises(UserError, match=problem):
        run_evaluate_answers(config, [write(tmp_path / "bad.jsonl", rows)])
    assert not (tmp_path / "run").exists()


def test_comparisons_that_cannot_be_made_cost_nothing(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda name, turn: said("first"))
    ours, theirs = write(tmp_path / "ours.jsonl", ROWS), write(tmp_path / "theirs.jsonl", ROWS[:2])
    with pytest.raises(UsageError, match="--against needs a judge"):
        run_evaluate_answers(config_in(tmp_path), [ours], str(theirs))
    config = config_in(tmp_path, *judged_by(server))
    with pytest.raises(UserError, match=r"has no answer to 'p2' \(2 of 4 lack\)"):
        run_evaluate_answers(config, [ours], str(theirs))
    with pytest.raises(UserError, match="ours answers 'p0' twice"):
        run_evaluate_answers(config, [write(ours, [*ROWS, ROWS[0]])], "references")
    without = [{name: value for name, value in row.items() if name != "prompt"} for row in ROWS]
    with pytest.raises(UserError, match="no column 'prompt'"):
        run_evaluate_answers(config, [write(ours, without)], "references")
    with pytest.raises(UsageError, match="two files of answers are called 'ours'"):
        run_evaluate_answers(config, [ours, ours])
    assert server.bodies == [] and not (tmp_path / "run").exists()


def test_a_series_of_answers_is_compared_with_one(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    """A judge who says "first": no win, no loss, all ties, and a position bias of 1."""
    server = serve(lambda name, turn: said("first"))
    files = [write(tmp_path / f"step{n}.jsonl", ROWS[: n + 1]) for n in (1, 2)]
    against = str(write(tmp_path / "base.jsonl", [{**row, "response": "no idea"} for row in ROWS]))
    summary = run_evaluate_answers(config_in(tmp_path, *judged_by(server)), files, against).as_dict()
    assert list(summary["systems"]) == ["step1", "step2"]
    for figures in summary["systems"].values():
        names = ("judge_win", "judge_tie", "judge_loss", "judge_position_bias")
        assert [figures[name] for name in names] == [0, 1, 0, 1]
        assert (figures["judge_against"], figures["judge_model"]) == ("base.jsonl", "judge")
    assert len(server.bodies) == 6, "of the first two answers nothing is asked again for the second file"


def test_a_judge_that_is_down_is_asked_again_and_nothing_is_paid_twice(
    tmp_path: Path, serve: Callable[..., ChatServer]
) -> None:
    up = [False]
    server = serve(lambda name, turn: said("tie") if up[0] or "Sum up 0." in name else error(503, message="down"))
    ours = write(tmp_path / "ours.jsonl", ROWS[:2])
    config = config_in(tmp_path, *judged_by(server))
    first = run_evaluate_answers(config, [ours], "references").as_dict()
    assert (first["judge_judged"], first["judge_failed"], first["failed_records"]) == (1, 1, 1)
    asked, up[0] = dict(server.turns), True
    second = run_evaluate_answers(config, [ours], "references").as_dict()
    again = {name for name, count in server.turns.items() if count > asked[name]}
    assert all("Sum up 1." in name for name in again)
    assert again and (second["judge_judged"], second["judge_failed"], second["failed_records"]) == (2, 0, 0)


def test_nonsense_is_asked_once_more_and_then_counted(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda name, turn: said("It depends on what you mean."))
    ours = write(tmp_path / "ours.jsonl", ROWS[:1])
    config = config_in(tmp_path, *judged_by(server))
    for _ in range(2):
        figures = run_evaluate_answers(config, [ours], "references").as_dict()
        assert (figures["judge_judged"], figures["judge_failed"], figures["failed_records"]) == (0, 1, 1)
    assert sorted(server.turns.values()) == [2, 2], "both orders twice, and never in the second run"


def test_a_judge_rates_by_the_papers_criteria(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    """E.1: 0 to 10 by criterion, each pair in both orders; of the policy, and of what it is compared with."""
    side = {"strengths": ["short"], "weaknesses": [], "completeness": 3, "conciseness": 10, "coherence": 9}
    rated = {"first": {**side, "score": 8, "accuracy": "7"}, "second": {**side, "score": 4, "accuracy": 5}}
    server = serve(lambda name, turn: said(json.dumps(rated)))
    ours = write(tmp_path / "ours.jsonl", ROWS[:2])
    config = config_in(tmp_path, *judged_by(server), "--judge.prompt", "summarization_e1")
    figures = run_evaluate_answers(config, [ours], "references").as_dict()
    assert (figures["judge_win"], figures["judge_tie"], figures["judge_position_bias"]) == (0, 1, 1)
    assert (figures["judge_score"], figures["judge_their_score"]) == (6, 6)
    assert (figures["judge_accuracy"], figures["judge_conciseness"], figures["failed_records"]) == (6, 10, 0)
    assert {body["max_tokens"] for body in server.bodies} == {1024}


def test_a_prompt_of_ones_own_for_the_judge(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda name, turn: said("second"))
    ours, prompt = write(tmp_path / "ours.jsonl", ROWS[:1]), tmp_path / "my judge"
    prompt.write_text("Which is ruder, first or second?\n{{first}}\n--\n{{second}}", encoding="utf-8")
    words = (*judged_by(server), "--judge.prompt", str(prompt))
    longer = ("--judge.max_tokens", "300")
    figures = run_evaluate_answers(config_in(tmp_path, *words, *longer), [ours], "references").as_dict()
    assert figures["judge_tie"] == 1 and {body["max_tokens"] for body in server.bodies} == {300}
    shown = [body["messages"][-1]["content"] for body in server.bodies]
    assert shown[0].startswith("Which is ruder") and shown[0].endswith("the cat sat\n--\nthe cat sat down")
    for text, problem in (("Which?", "does not show"), ("first second {{first}}{{second}}{{x}}", "asks for {{x}}")):
        prompt.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=problem):
            run_evaluate_answers(config_in(tmp_path / "other", *words), [ours], "references")
    missing = (*judged_by(server), "--judge.prompt", "nowhere")
    with pytest.raises(UserError, match=r"unknown prompt 'nowhere' \(one of .*summarization_e1.*of your own\)"):
        run_evaluate_answers(config_in(tmp_path / "other", *missing), [ours], "references")
    assert len(server.bodies) == 2 and not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("reply", "cure"),
    [
        (error(404, "model_not_found", "no model judge"), "check evaluate.judge and evaluate.judge_url"),
        (said("", "length"), "raise judge.max_tokens"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_named_by_its_own_settings(
    tmp_path: Path, serve: Callable[..., ChatServer], reply: Reply, cure: str
) -> None:
    server = serve(lambda name, turn: reply)
    rows = [{**ROWS[1], "id": f"q{n}", "response": f"a dog {n}", "reference": "a cat"} for n in range(40)]
    with pytest.raises(UserError) as caught:
        run_evaluate_answers(
            config_in(tmp_path, *judged_by(server)), [write(tmp_path / "o.jsonl", rows)], "references"
        )
    assert cure in str(caught.value) and "critic.prompted" not in str(caught.value)
    assert len(server.bodies) <= 2 * (20 + 8)


def test_a_policy_gets_the_figures_of_a_file(
    tmp_path: Path, serve: Callable[..., ChatServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(lambda name, turn: said("tie"))
    posts = [
        {"id": f"t{n}", "title": "", "post": f"keep {n} even", "ideal_human_summary": "it rains"} for n in range(4)
    ]
    data, model = str(write(tmp_path / "posts.jsonl", posts)), str(tiny_model(tmp_path / "model"))
    words = ["--task.data", data, "--task.heldout_data", data, "--generation.max_new_tokens", "8"]
    words += ["--policy.model", model, "--evaluate.samples", "1", *judged_by(server)]
    monkeypatch.setattr(evaluate, "sample", lambda _, asked, *__: [([5, 6], f"it {e.id} rains") for e in asked])
    config = config_in(tmp_path, *words)
    found = run_evaluate(config, model, "references").as_dict()
    place = tmp_path / "run" / "evaluation" / "summarization-posts"
    assert json.loads((place / "model.json").read_text()) == found
    assert found["judge_judged"] == 4 and found["judge_against"] == "references"
    answers = place / "model.answers.json"
    same = run_evaluate_answers(config, [answers]).as_dict()
    for name in ("rouge1", "rouge2", "rouge_l", "empty", "bleu"):
        assert found[f"greedy_{name}"] == pytest.approx(same[name]), name
    assert "out" not in same, "an evaluation's own answers do not overwrite it"
