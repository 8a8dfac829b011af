"""Files with ratings only, and a judge: how `improve` tells whether a policy is better."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chat_server import KEY, ChatServer, Reply, last_message, said, servers_of
from feedback_files import ENGLISH, shop_rows
from human_data import small_config
from text2grad.config import Config
from text2grad.stages.improve import verdict
from text2grad.stages.improve.run import ImproveSummary, run_improve
from text2grad.stages.improve.source import ImproveOptions
from workbook_files import write_xlsx

QUICK = ("--sft.epochs", "1", "--offline.epochs", "1", "--generation.max_new_tokens", "8")
GOOD, BAD = "The lamp is 30 cm wide.", "The lamp is the best choice and 12 inches wide."


def improve(folder: Path, config: Config, shuffled: bool = False) -> ImproveSummary:
    """Improve with questions, answers and ratings of a shop."""
    header, *rows = [(row[0], row[1], row[3]) for row in shop_rows(ENGLISH, 40)]
    ratings = [row[2] for row in rows]
    if shuffled:
        random.Random(1).shuffle(ratings)
    rated = [(row[0], row[1], rating) for row, rating in zip(rows, ratings, strict=True)]
    path = write_xlsx(folder / "feedback.xlsx", {"Feedback": [header, *rated]})
    return run_improve(config, path, ImproveOptions(scales=["1..5"]))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The answers of the base model and of all others."""
    texts = {"base": BAD, "": GOOD}

    def read(run: object, name: str, questions: Mapping[str, str]) -> dict[str, str]:
        return dict.fromkeys(questions.values(), texts.get(name, texts[""]))

    monkeypatch.setattr(verdict, "_read_answers", read)
    return texts


@pytest.mark.usefixtures("answers")
def test_predicted_ratings_judge_answers_if_they_agree_with_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = improve(tmp_path, small_config(tmp_path / "run", *QUICK))
    shown = capsys.readouterr().err
    assert "held-out r 0." in shown and "n 40" in shown and "predicted rating" in shown
    assert summary.better is True and set(summary.after) == {"rating"}
    assert 0 <= summary.before["rating"] < summary.after["rating"] <= 1


@pytest.mark.usefixtures("answers")
def test_ratings_that_cannot_be_predicted_decide_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = improve(tmp_path, small_config(tmp_path / "run", *QUICK), shuffled=True)
    shown = capsys.readouterr().err
    assert "ratings alone cannot judge new answers" in shown and "--evaluate.judge" in shown
    assert summary.better is None and summary.after == {} and "nothing to measure by" in shown
    assert not (tmp_path / "run" / "policy").exists()


def prefer_metric(name: str, turn: int, body: dict[str, Any]) -> Reply:
    """Prefer the answer in cm, wherever it stands; a tie if both are."""
    text = last_message(body)
    good, bad = text.rfind(GOOD), text.rfind(BAD)
    return said("tie" if min(good, bad) < 0 else "first" if good < bad else "second")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with servers_of(ChatServer) as start:
        yield start(prefer_metric, name=lambda body: "pair")


@pytest.mark.parametrize(("before", "after", "better"), [(BAD, GOOD, True), (GOOD, BAD, False)])
def test_a_judge_decides_where_the_file_cannot(
    tmp_path: Path,
    answers: dict[str, str],
    judge: ChatServer,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    better: bool,
) -> None:
    answers.update({"base": before, "": after})
    asked = ("--evaluate.judge", "gpt-4o", "--evaluate.judge_url", judge.url)
    summary = improve(tmp_path, small_config(tmp_path / "run", *QUICK, *asked), shuffled=True)
    assert summary.better is better and len(judge.bodies) == 2 * summary.heldout, "each pair in both orders"
    assert f"judge gpt-4o, {summary.heldout} questions" in capsys.readouterr().err
    contents = [last_message(body) for body in judge.bodies]
    assert not any("base" in text or "offline" in text for text in contents), "blind"
