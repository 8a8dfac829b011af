"""`evaluate` of files of answers and of policies in words: figures, the judge, and what is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chat_server import ChatServer, Reply, error, last_message, said, servers_of
from places import CONFIGS
from text2grad.config import Config, load_config
from text2grad.errors import UsageError, UserError
from text2grad.stages.evaluate import policy as stage
from text2grad.stages.evaluate.answers import run_evaluate_answers
from text2grad.stages.evaluate.policy import _write_answers, run_evaluate
from tiny_runs import tiny_model

Row = dict[str, Any]
TEXTS = ("the cat sat", "a dog", "the cat sat down", "")
ROWS: list[Row] = [
    {"id": f"p{n}", "prompt": f"Sum up {n}.", "response": text, "reference": "the cat sat down"}
    for n, text in enumerate(TEXTS)
]


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class Evaluation:
    """`evaluate --answers` in a folder, with a judge where a server was started."""

    def __init__(self, folder: Path, start: Callable[..., ChatServer]) -> None:
        self.folder, self.run, self._start = folder, folder / "run", start
        self._words: list[str] = []

    def serve(self, answer: Callable[[str], Reply] | str) -> ChatServer:
        """Start a judge that answers to what it is shown, or always alike."""
        answers = (lambda _: said(answer)) if isinstance(answer, str) else answer
        server = self._start(lambda name, turn, body: answers(name), last_message)
        self._words = ["--evaluate.judge", "judge", "--evaluate.judge_url", server.url]
        return server

    def use(self, posts: Sequence[Row]) -> None:
        """Take these posts for the task's data, all of them held out."""
        data = str(write(self.folder / "posts.jsonl", posts))
        self._words += ["--task.data", data, "--task.heldout_data", data]

    def config(self, *words: str) -> Config:
        fixed = ["--run.folder", str(self.run), "--run.threads", "1", "--task.name", "summarization"]
        return load_config(CONFIGS / "demo.yaml", [*fixed, *self._words, *words])

    def __call__(self, rows: Sequence[Row], against: str = "", *words: str, name: str = "ours") -> dict[str, Any]:
        file = write(self.folder / f"{name}.jsonl", rows)
        return run_evaluate_answers(self.config(*words), [file], against or None)


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluation]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-key-of-anybody")
    with servers_of(ChatServer) as start:
        yield Evaluation(tmp_path, start)


def posts(count: int = 1, **more: str) -> list[Row]:
    fields = {"title": "", "ideal_human_summary": "it rains", **more}
    return [{"id": f"t{n}", "post": f"keep {n} even", **fields} for n in range(count)]


def test_a_file_is_measured_without_a_model(evaluated: Evaluation) -> None:
    figures = evaluated(ROWS, name="gpt")
    assert figures["rouge1"] == pytest.approx((6 / 7 + 0 + 1 + 0) / 4)
    assert (figures["answers"], figures["empty"]) == (4, 1)
    folder = evaluated.run / "evaluation"
    assert figures.pop("out") == str(folder / "summarization" / "gpt.json")
    assert json.loads((folder / "summarization" / "gpt.json").read_text()) == figures
    evaluated(ROWS, name="gpt-3.5")
    assert (folder / "summarization" / "gpt-3.5.json").is_file()
    listed = evaluated([{**row, "reference": [row["reference"]]} for row in ROWS])
    assert listed["rouge_l"] == figures["rouge_l"], "a list of one reference is that reference"


def test_references_of_the_task_are_found_by_id(evaluated: Evaluation) -> None:
    evaluated.use(posts(3))
    figures = evaluated([{"id": "t1", "response": "it rains"}])
    assert (figures["rouge_l"], figures["answers"], figures["missing"]) == (1, 1, 2)
    evaluated.use(posts(ideal_human_summary=""))
    with pytest.raises(UserError, match="the reference of prompt 't0' is empty"):
        evaluated([{"id": "t0", "response": "x"}])


BAD: list[tuple[list[Row], str]] = [
    ([{"id": "p", "reference": "x"}], r"record 1: no column 'response' \(fix or remove record 1\)"),
    ([ROWS[0], {**ROWS[1], "reference": " "}], "record 2: the reference is empty"),
    ([{**ROWS[0], "reference": ["x", "y"]}], "'reference' is a list of 2 answers: put the one to learn or compare"),
    ([{**ROWS[0], "reference": []}], "the reference is empty"),
    ([{**ROWS[0], "response": 3}], "the response is "),
    ([{"response": "x"}], "neither a 'reference' nor the 'id' of a prompt"),
    ([{"id": "humaneval-1", "response": "x"}], "no held-out prompt 'humaneval-1'.*answers of another task"),
    ([{"task_id": "HumanEval/0", "completion": "x"}], "contains programs"),
]


@pytest.mark.parametrize(("rows", "problem"), BAD)
def test_bad_files_are_refused_before_anything_is_written(
    evaluated: Evaluation, rows: list[Row], problem: str
) -> None:
    evaluated.use(posts())
    with pytest.raises(UserError, match=problem):
        evaluated(rows)
    assert not evaluated.run.exists()


def test_comparisons_that_cannot_be_made_cost_nothing(evaluated: Evaluation) -> None:
    theirs = str(write(evaluated.folder / "theirs.jsonl", ROWS[:2]))
    with pytest.raises(UsageError, match="--against needs a judge"):
        evaluated(ROWS, theirs)
    server = evaluated.serve("first")
    without = [{name: value for name, value in row.items() if name != "prompt"} for row in ROWS]
    mistakes = {
        r"has no answer to 'p2' \(2 of 4 are missing\)": (ROWS, theirs),
        "ours answers 'p0' twice": ([*ROWS, ROWS[0]], "references"),
        "no column 'prompt'": (without, "references"),
    }
    for problem, (rows, against) in mistakes.items():
        with pytest.raises(UserError, match=problem):
            evaluated(rows, against)
    with pytest.raises(UsageError, match="'ours'"):
        run_evaluate_answers(evaluated.config(), [evaluated.folder / "ours.jsonl"] * 2)
    assert server.bodies == [] and not evaluated.run.exists()


def test_a_series_of_answers_is_compared_with_one(evaluated: Evaluation) -> None:
    """A judge who says "first": no win, no loss, all ties, and a position bias of 1."""
    server, folder = evaluated.serve("first"), evaluated.folder
    files = [write(folder / f"step{n}.jsonl", ROWS[: n + 1]) for n in (1, 2)]
    against = write(folder / "base.jsonl", [{**row, "response": "no idea"} for row in ROWS])
    summary = run_evaluate_answers(evaluated.config(), files, str(against))
    assert list(summary["systems"]) == ["step1", "step2"]
    for figures in summary["systems"].values():
        names = ("judge_win", "judge_tie", "judge_loss", "judge_position_bias")
        assert [figures[name] for name in names] == [0, 1, 0, 1]
        assert (figures["judge_against"], figures["judge_model"]) == ("base.jsonl", "judge")
    assert len(server.bodies) == 6, "of the first two answers nothing is asked again for the second file"


def test_a_judge_that_is_down_is_asked_again_and_nothing_is_paid_twice(evaluated: Evaluation) -> None:
    up = [False]
    server = evaluated.serve(lambda name: said("tie") if up[0] or "Sum up 0." in name else error(503))
    first = evaluated(ROWS[:2], "references")
    assert (first["judge_judged"], first["judge_failed"], first["failed_records"]) == (1, 1, 1)
    asked, up[0] = dict(server.turns), True
    second = evaluated(ROWS[:2], "references")
    again = {name for name, count in server.turns.items() if count > asked[name]}
    assert all("Sum up 1." in name for name in again)
    assert again and (second["judge_judged"], second["judge_failed"], second["failed_records"]) == (2, 0, 0)


def test_nonsense_is_asked_once_more_and_then_counted(evaluated: Evaluation) -> None:
    server = evaluated.serve("It depends on what you mean.")
    for _ in range(2):
        figures = evaluated(ROWS[:1], "references")
        assert (figures["judge_judged"], figures["judge_failed"], figures["failed_records"]) == (0, 1, 1)
    assert sorted(server.turns.values()) == [2, 2], "both orders twice, and never in the second run"


def test_a_judge_rates_by_the_papers_criteria(evaluated: Evaluation) -> None:
    """E.1: 0 to 10 by criterion, each pair in both orders; of the policy, and of what it is
    compared with."""
    side = {"strengths": ["short"], "weaknesses": [], "completeness": 3, "conciseness": 10, "coherence": 9}
    rated = {"first": {**side, "score": 8, "accuracy": "7"}, "second": {**side, "score": 4, "accuracy": 5}}
    server = evaluated.serve(json.dumps(rated))
    figures = evaluated(ROWS[:2], "references", "--judge.prompt", "summarization_e1")
    assert (figures["judge_win"], figures["judge_tie"], figures["judge_position_bias"]) == (0, 1, 1)
    assert (figures["judge_score"], figures["judge_their_score"]) == (6, 6)
    assert (figures["judge_accuracy"], figures["judge_conciseness"], figures["failed_records"]) == (6, 10, 0)
    assert {body["max_tokens"] for body in server.bodies} == {1024}


def test_a_prompt_of_ones_own_for_the_judge(evaluated: Evaluation) -> None:
    server, prompt = evaluated.serve("second"), evaluated.folder / "my judge"
    prompt.write_text("Which is ruder, first or second?\n{{first}}\n--\n{{second}}", encoding="utf-8")
    mine = ("--judge.prompt", str(prompt))
    figures = evaluated(ROWS[:1], "references", *mine, "--judge.max_tokens", "300")
    assert figures["judge_tie"] == 1 and {body["max_tokens"] for body in server.bodies} == {300}
    shown = last_message(server.bodies[0])
    assert shown.startswith("Which is ruder") and shown.endswith("the cat sat\n--\nthe cat sat down")
    for text, problem in (
        ("Which?", "has no {{"),
        ("first second {{first}}{{second}}{{x}}", "unknown placeholder {{x}}"),
    ):
        prompt.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=problem):
            evaluated(ROWS[:1], "references", *mine)
    with pytest.raises(UserError, match=r"unknown prompt 'nowhere' \(one of .*summarization_e1.*text file\)"):
        evaluated(ROWS[:1], "references", "--judge.prompt", "nowhere")
    assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("reply", "cure"),
    [
        (error(404, "model_not_found", "no model judge"), "check evaluate.judge and evaluate.judge_url"),
        (said("", "length"), "raise judge.max_tokens"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_named_by_its_own_settings(
    evaluated: Evaluation, reply: Reply, cure: str
) -> None:
    server = evaluated.serve(lambda name: reply)
    rows = [{**ROWS[1], "id": f"q{n}", "response": f"a dog {n}", "reference": "a cat"} for n in range(40)]
    with pytest.raises(UserError) as caught:
        evaluated(rows, "references")
    assert cure in str(caught.value) and "critic.prompted" not in str(caught.value)
    assert len(server.bodies) <= 2 * (20 + 8)


def test_a_policy_gets_the_figures_of_a_file(evaluated: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated.serve("tie")
    evaluated.use(posts(4))
    model = str(tiny_model(evaluated.folder / "model"))
    monkeypatch.setattr(stage, "sample", lambda _, asked, *__: [([5, 6], f"it {e.id} rains") for e in asked])
    words = ("--generation.max_new_tokens", "8", "--policy.model", model, "--evaluate.samples", "1")
    config = evaluated.config(*words)
    figures = run_evaluate(config, model, "references").as_dict()
    place = evaluated.run / "evaluation" / "summarization-posts"
    assert json.loads((place / "model.json").read_text()) == figures
    assert figures["judge_judged"] == 4 and figures["judge_against"] == "references"
    same = run_evaluate_answers(config, [place / "model.answers.json"])
    for name in ("rouge1", "rouge2", "rouge_l", "empty", "bleu"):
        assert figures[f"greedy_{name}"] == pytest.approx(same[name]), name
    assert "out" not in same, "an evaluation's own answers do not overwrite it"


def test_prompts_that_no_measure_can_use_are_counted(
    evaluated: Evaluation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated.use([*posts(2), {**posts(3, ideal_human_summary="")[2]}])
    model = str(tiny_model(evaluated.folder / "model"))
    monkeypatch.setattr(stage, "sample", lambda _, asked, *__: [([5, 6], "it rains") for _ in asked])
    words = ("--generation.max_new_tokens", "8", "--policy.model", model, "--evaluate.samples", "1")
    figures = run_evaluate(evaluated.config(*words), model).as_dict()
    assert figures["greedy_rouge_l"] == 1
    assert "1 of 3 held-out prompts have neither a reference nor tests: ROUGE" in capsys.readouterr().err


def test_a_damaged_file_of_answers_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "before_after.jsonl").write_text('{"task": "other"}\n{"task": "oth', "utf-8")
    with pytest.raises(UserError, match=r"before_after\.jsonl:2"):
        _write_answers(tmp_path / "before_after.jsonl", "task", [], [])
