"""`improve`: files as people have them are read without options, and the better policy is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from feedback_files import ENGLISH, GERMAN, MIXED, shop_rows, write_table
from human_data import small_config
from text2grad.config import Config
from text2grad.errors import UsageError, UserError, warn_once
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages.improve import plan as plans
from text2grad.stages.improve import run as runs
from text2grad.stages.improve import verdict
from text2grad.stages.improve.plan import make_plan
from text2grad.stages.improve.run import run_improve
from text2grad.stages.improve.source import ImproveOptions, Source, describe, read_source
from workbook_files import write_xlsx

QUICK = ("--sft.epochs", "1", "--offline.epochs", "1", "--generation.max_new_tokens", "8")


def config_in(folder: Path, *overrides: str) -> Config:
    return small_config(folder / "run", *QUICK, *overrides)


def source_of(folder: Path, rows: Sequence[Sequence[Any]], name: str = "feedback.xlsx", **options: Any) -> Source:
    path = folder / name
    if name.endswith(".xlsx"):
        write_xlsx(path, {"Feedback": rows})
    else:
        write_table(path, rows)
    return read_source(config_in(folder), path, ImproveOptions(**options))


# Reading.


@pytest.mark.parametrize("names", [ENGLISH, GERMAN, MIXED], ids=["English", "German", "mixed"])
@pytest.mark.parametrize("name", ["feedback.xlsx", "feedback.csv", "feedback.tsv"])
def test_files_are_read_without_options(tmp_path: Path, names: Sequence[str], name: str) -> None:
    source = source_of(tmp_path, shop_rows(names), name)
    first = source.records[0]
    assert len(source.records) == 24 and {record.meta["annotator"] for record in source.records} == {"Ann", "Bo"}
    assert first.prompt[0].content.startswith(("Describe", "Beschreibe")) and first.score is not None
    assert sum(bool(record.meta.get("corrected")) for record in source.records) >= 5
    assert any(record.spans for record in source.records)
    shown = "\n".join(describe(source))
    assert f"{names[1]} -> response" in shown and f"{names[6]}: not used" in shown and "by quotes" in shown


def test_excels_german_csv_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rückmeldung.csv"
    write_table(path, shop_rows(GERMAN), ";", "cp1252")
    source = read_source(config_in(tmp_path), path, ImproveOptions())
    assert len(source.records) == 24 and "cp1252" in capsys.readouterr().err


TALK = [{"role": "user", "content": "Describe the lamp."}, {"role": "assistant", "content": "The best lamp."}]
WRITTEN = 'no "The best" please'
CHATS = {
    "beside": {"messages": TALK, "thumbs": "down", "comment": WRITTEN},
    "in an object": {"messages": TALK, "feedback": {"thumb": "down", "comment": WRITTEN}},
    "in the message": {"messages": [TALK[0], {**TALK[1], "annotation": {"rating": -1, "comment": WRITTEN}}]},
    "a score": {"conversation": TALK, "user_feedback": {"score": 0}, "reviewer_note": WRITTEN},
    "yes or no": {"messages": TALK, "is_good": False, "reason": WRITTEN},
    "a response apart": {"messages": TALK[:1], "response": "The best lamp.", "liked": "no", "why": WRITTEN},
}
GOOD = {"down": "up", -1: 1, 0: 1, "no": "yes"}
"""The other rating; False counts as 0."""


def praised(value: Any) -> Any:
    """The same row with the other rating, and no comment."""
    if isinstance(value, dict):
        return {key: "" if isinstance(item, str) and '"' in item else praised(item) for key, item in value.items()}
    if isinstance(value, list):
        return [value[0], *map(praised, value[1:])]
    return value == 0 if isinstance(value, bool) else GOOD.get(value, value)


@pytest.mark.parametrize("shape", CHATS)
def test_chat_logs_have_their_ratings_and_comments_anywhere(
    tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_once.cache_clear()
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (CHATS[shape], praised(CHATS[shape]))), encoding="utf-8")
    source = read_source(config_in(tmp_path), path, ImproveOptions())
    assert [record.score for record in source.records] == [-1.0, 1.0], source.imported.losses
    assert [span.text for span in source.records[0].spans] == ["The best"]
    assert source.records[0].prompt[-1].content == "Describe the lamp."
    assert "is not read" not in capsys.readouterr().err


def test_what_is_in_doubt_is_refused_with_both_candidates(tmp_path: Path) -> None:
    rows = [(*row, f"Another {n} text of the bot, and so on") for n, row in enumerate(shop_rows(ENGLISH))]
    rows[0] = (ENGLISH[0], "Answer 1", *ENGLISH[2:], "Answer 2")
    with pytest.raises(UsageError, match="'Answer 1' or 'Answer 2'") as caught:
        source_of(tmp_path, rows)
    assert "--map 'response=Answer 2'" in caught.value.cure
    source = source_of(tmp_path, rows, names=["response=Answer 2"])
    assert source.records[0].response.startswith("Another")
    asked: list[str] = []

    def choose(question: str, options: Sequence[str]) -> str:
        asked.append(question)
        return options[1]

    source = read_source(config_in(tmp_path), tmp_path / "feedback.xlsx", ImproveOptions(), choose)
    assert len(asked) == 1 and "response=Answer 2" in ",".join(source.arguments)
    assert source.records[0].response.startswith("Another")


def test_a_scale_in_doubt_is_refused_and_can_be_said(tmp_path: Path) -> None:
    rows = [[*row[:3], n % 3 + 1, *row[4:]] if n else row for n, row in enumerate(shop_rows(ENGLISH))]
    with pytest.raises(UsageError, match=r"--scale 1..3 or --scale 1..5"):
        source_of(tmp_path, rows)
    assert {record.score for record in source_of(tmp_path, rows, scales=["1..3"]).records} == {-1.0, 0.0, 1.0}


def test_a_table_without_names_of_columns_is_refused(tmp_path: Path) -> None:
    rows = [(f"How big is {n}?", f"It is {n} inches wide or a little more.", n % 5 + 1, "use cm") for n in range(9)]
    with pytest.raises(UserError, match="'1' is a rating, not the name of a column"):
        source_of(tmp_path, rows, "feedback.csv")


def test_rows_that_cannot_be_used_are_named_and_left_out(tmp_path: Path) -> None:
    rows = [list(row) for row in shop_rows(ENGLISH)]
    rows[1][1] = ""  # no answer
    rows[2][0] = None  # no question
    rows[3][2:5] = [None, "-", None]  # nothing is said
    rows[4][3] = "n/a"
    rows.append(rows[5])  # twice
    source = source_of(tmp_path, rows)
    assert len(source.records) == 21
    losses = "\n".join(source.imported.losses)
    assert all(f"row {number}" in losses for number in (2, 3, 4, 26))
    assert "row 26: " in losses and "in row 6" in losses


def test_people_who_disagree_both_count(tmp_path: Path) -> None:
    rows = shop_rows(ENGLISH)
    both = [(*rows[2][:2], None, rating, None, who, None) for rating, who in ((1, "Ann"), (5, "Cleo"))]
    source = source_of(tmp_path, [*rows[:2], *rows[3:], *both])
    assert "another; both count: 1" in "\n".join(describe(source))


def test_comments_without_quotes_or_ratings_are_counted(tmp_path: Path) -> None:
    source = source_of(tmp_path, columns(0, 1, 2))
    unused = [record for record in source.records if not record.spans and record.critique]
    assert unused and f"{len(unused)} comments quote nothing and have no rating" in "\n".join(describe(source))
    rated = describe(source_of(tmp_path, columns(0, 1, 2, 3), "rated.xlsx"))
    assert not any("no rating" in line for line in rated) and any("through their rating" in line for line in rated)


# The plan.


def columns(*kept: int) -> list[tuple[Any, ...]]:
    """The rows of a file without some columns."""
    return [tuple(row[column] for column in kept) for row in shop_rows(ENGLISH)]


PLANS = {
    "comments, scores and corrections": ((0, 1, 2, 3, 4), ("sft", "offline"), "then the comments"),
    "comments alone": ((0, 1, 2), ("sft", "offline"), "then the comments"),
    "ratings alone": ((0, 1, 3), ("sft", "offline"), "then the ratings"),
    "corrections alone": ((0, 1, 4), ("sft",), "learn the corrections"),
}


@pytest.mark.parametrize("kind", PLANS)
def test_the_plan_is_chosen_from_the_data(tmp_path: Path, kind: str) -> None:
    kept, steps, reason = PLANS[kind]
    source = source_of(tmp_path, columns(*kept))
    plan = make_plan(source.records, "f")
    assert plan.steps == steps and reason in plan.reason
    questions = {example.prompt[0].content for example in plan.training}
    assert not questions & {example.prompt[0].content for example in plan.heldout}
    assert len(plan.heldout) == round(0.2 * (len(questions) + len(plan.heldout)))
    assert plan == make_plan(source.records, "f")


def test_ratings_that_are_all_alike_teach_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(*row[:2], 5) if n else (*row[:2], row[3]) for n, row in enumerate(shop_rows(ENGLISH))]
    path = write_xlsx(tmp_path / "feedback.xlsx", {"Feedback": rows})
    summary = run_improve(config_in(tmp_path), path, ImproveOptions(scales=["1..5"], names=["score=Rating"]))
    assert summary.steps == () and "nothing to learn" in summary.reason
    assert not (tmp_path / "run").exists() and "Nothing was written" in capsys.readouterr().err


def test_too_few_questions_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="4 questions are too few"):
        make_plan(source_of(tmp_path, shop_rows(ENGLISH)[:5]).records, "f")
    assert len(make_plan(source_of(tmp_path, shop_rows(ENGLISH)[:6]).records, "f").training) == 4


def test_corrections_are_what_is_imitated(tmp_path: Path) -> None:
    plan = make_plan(source_of(tmp_path, shop_rows(ENGLISH)).records, "f")
    corrected = {row[0]: row[4] for row in shop_rows(ENGLISH)[1:] if row[4]}
    asked = {example.prompt[0].content: example.reference for example in (*plan.training, *plan.heldout)}
    assert corrected and {question: asked[question] for question in corrected} == corrected


@pytest.mark.nightly
def test_five_thousand_rows_are_read(tmp_path: Path) -> None:
    source = source_of(tmp_path, shop_rows(ENGLISH, 5000), "feedback.csv")
    plan = make_plan(source.records, "f")
    assert len(source.records) == 5000 and len(plan.heldout) == plans.MAX_HELDOUT


# The run.


def test_a_plan_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_xlsx(tmp_path / "feedback.xlsx", {"Feedback": shop_rows(ENGLISH)})
    summary = run_improve(config_in(tmp_path), path, ImproveOptions(plan=True))
    assert not (tmp_path / "run").exists() and summary.estimated_minutes is not None and summary.minutes is None
    assert "held out" in capsys.readouterr().err
    refused = run_improve(config_in(tmp_path), path, ImproveOptions(), confirm=lambda question: False)
    assert refused.minutes is None and not (tmp_path / "run").exists()


def test_a_file_becomes_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    path = write_xlsx(tmp_path / "feedback.xlsx", {"Feedback": shop_rows(MIXED)})
    config = config_in(tmp_path)
    summary = run_improve(config, path, ImproveOptions())
    run, shown = tmp_path / "run", capsys.readouterr().err
    for command in ("import", "sft", "train --offline", "evaluate base", "evaluate offline"):
        assert f"$ text2grad {command}" in shown
    assert summary.steps == ("sft", "offline") and summary.better is False and summary.kept == "base"
    assert "not better beyond chance" in shown and not (run / "policy").exists()
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "On 5 held-out prompts the new model is not better beyond chance" in page
    trained = {record.prompt[0].content for record in read_jsonl(run / "feedback.jsonl", Feedback)}
    heldout = [
        json.loads(line)["prompt"][0]["content"] for line in (run / "heldout.jsonl").read_text().splitlines()
    ]
    assert set(heldout) <= trained and len(heldout) == 5

    # The same command again trains nothing, and a better policy is kept.
    def answers(found: Any, name: str, question: Any) -> dict[str, str]:
        wanted = {text: f"The {text.split()[2]} is 30 cm wide." for text in question.values()}
        return wanted if name == "sft" else dict.fromkeys(question.values(), "no")

    monkeypatch.setattr(verdict, "_read_answers", answers)
    again = run_improve(config, path, ImproveOptions())
    assert "finished earlier" in capsys.readouterr().err and again.minutes == summary.minutes
    assert (again.better, again.kept) == (True, "sft") and (run / "policy" / "config.json").is_file()

    # Another file in the same folder is refused.
    other = write_xlsx(tmp_path / "other.xlsx", {"Feedback": shop_rows(ENGLISH)})
    with pytest.raises(UserError, match="--restart"):
        run_improve(config, other, ImproveOptions())


def test_a_restart_that_is_stopped_early_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_xlsx(tmp_path / "feedback.xlsx", {"Feedback": columns(0, 1, 4)})
    config = config_in(tmp_path)
    assert run_improve(config, path, ImproveOptions()).steps == ("sft",)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runs, "_write_feedback", stop)
        run_improve(config, path, ImproveOptions(restart=True))
    assert run_improve(config, path, ImproveOptions()).minutes is not None


def test_a_restart_needs_no_intact_state(tmp_path: Path) -> None:
    path = write_xlsx(tmp_path / "feedback.xlsx", {"Feedback": columns(0, 1, 4)})
    config = config_in(tmp_path)
    state = tmp_path / "run" / "improve.json"
    state.parent.mkdir()
    state.write_text("{")
    with pytest.raises(UserError, match=r"damaged.*--restart"):
        run_improve(config, path, ImproveOptions())
    assert run_improve(config, path, ImproveOptions(restart=True)).minutes is not None


def test_a_restart_with_another_file_forgets_the_first(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    header, *rows = [(row[0], row[1], row[4]) for row in shop_rows(ENGLISH, 48)]
    corrected = [row for row in rows if row[2]]
    first, second = corrected[: len(corrected) // 2], corrected[len(corrected) // 2 :]
    for name, half in (("first.xlsx", first), ("second.xlsx", second)):
        path = write_xlsx(tmp_path / name, {"Feedback": [header, *half]})
        run_improve(config, path, ImproveOptions(restart=name == "second.xlsx"))
    trained = {record.prompt[0].content for record in read_jsonl(tmp_path / "run" / "feedback.jsonl", Feedback)}
    assert trained == {row[0] for row in second}


def test_another_engine_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    config = config_in(tmp_path, "--engine.name", "trl")
    with pytest.raises(UsageError, match=r"engine\.name trl"):
        run_improve(config, tmp_path / "absent.xlsx", ImproveOptions())


def test_columns_that_the_proposal_leaves_out_are_not_read(tmp_path: Path) -> None:
    """Their own names would make them corrections; those that are read are named."""
    rows = [(*row, "yes" if number % 2 else "no", "Ann said so") for number, row in enumerate(columns(0, 1, 2, 3))]
    rows[0] = (*rows[0][:4], "Corrected", "Good")
    source = source_of(tmp_path, rows)
    lines = "\n".join(describe(source))
    assert "Corrected: not used" in lines and "Good: read as good" in lines
    assert not any("corrected" in record.meta for record in source.records)


def test_columns_that_are_named_are_all_read(tmp_path: Path) -> None:
    rows = [(*row, f"page {number}") for number, row in enumerate(columns(0, 1, 2, 3))]
    rows[0] = (*rows[0][:4], "Source text")
    options = ("prompt=Source text", f"prompt={rows[0][0].upper()}")
    source = source_of(tmp_path, rows, names=options)
    (message,) = source.records[0].prompt
    assert message.content == f"page 1\n\n{rows[1][0]}"
    with pytest.raises(UserError, match="no column 'Sorce text'"):
        source_of(tmp_path, rows, names=("prompt=Sorce text",))


def test_a_run_that_was_stopped_once_sft_had_ended_is_resumed(tmp_path: Path) -> None:
    """Its state does not say that `sft` has ended."""
    table, config = write_table(tmp_path / "f.csv", columns(0, 1, 4)), config_in(tmp_path)
    run_improve(config, table, ImproveOptions())
    state = tmp_path / "run" / "improve.json"
    seconds = json.loads(state.read_text())
    state.write_text(json.dumps({**seconds, "seconds": {"import": 1.0}}))
    before = (tmp_path / "run" / "sft" / "metrics.jsonl").stat().st_mtime_ns
    run_improve(config, table, ImproveOptions())
    assert (tmp_path / "run" / "sft" / "metrics.jsonl").stat().st_mtime_ns == before


def test_questions_of_files_with_equal_ids_differ(tmp_path: Path) -> None:
    records = source_of(tmp_path, columns(0, 1, 4)).records
    plan = make_plan([record.model_copy(update={"id": "1"}) for record in records], "f")
    ids = [example.id for example in (*plan.training, *plan.heldout)]
    assert len(set(ids)) == len(ids) > 5


@pytest.mark.parametrize(("file", "problem"), [("inbox.json", "the run of an inbox"), ("sft/x", "another command")])
def test_a_run_of_something_else_stays_as_it_was(file: str, problem: str, tmp_path: Path) -> None:
    table, kept = write_table(tmp_path / "f.csv", columns(0, 1, 4)), tmp_path / "run" / file
    kept.parent.mkdir(parents=True)
    kept.touch()
    with pytest.raises(UserError, match=problem):
        run_improve(config_in(tmp_path), table, ImproveOptions())
    assert kept.is_file()
