"""Reading run folders: damage is named, what is half written waits, several runs are laid over each
other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from synthetic_run import write_run
from text2grad.errors import UserError
from text2grad.page.report import build_report, differing_settings, policy_rows, sections
from text2grad.page.runs import name_runs, read_metrics, read_run, read_runs, read_samples, sample_files


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    one, other = write_run(tmp_path / "one", steps=6), write_run(tmp_path / "other", steps=9, seed=1)
    config = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(config.replace("40", "20"), encoding="utf-8")
    return [one, other]


def test_the_curves_results_and_answers_of_all_runs_are_side_by_side(runs: list[Path]) -> None:
    run = read_runs(runs)
    shown = sections(run)
    names = ["one text2grad", "one scalar_ppo", "other text2grad", "other scalar_ppo"]
    assert [name for name, _ in sample_files(runs)] == names
    assert [name for name, _ in shown["curves"]["methods"]] == names
    score = next(chart for chart, name, _ in shown["curves"]["main"] if name == "score")
    assert [curve["name"] for curve in json.loads(score.hover)["curves"]] == names
    assert [name for name, _ in shown["supervised"][0][2]["methods"]] == ["one", "other"]
    assert shown["differing"] == [("ppo.steps", ["40", "20"])]
    assert [row.name for row in policy_rows(run)][3:] == ["other sft", "other text2grad", "other scalar_ppo"]
    answers = [answer["name"] for answer in shown["data"]["comparisons"][0]["answers"]]
    assert answers == [f"{run} {name}" for run in ("one", "other") for name in ("SFT", "scalar PPO", "text2grad")]
    page = build_report(*runs)
    assert page == runs[0] / "report.html" and "Settings that differ" in page.read_text(encoding="utf-8")


def test_a_run_is_named_by_its_folder_and_appears_once(runs: list[Path], tmp_path: Path) -> None:
    assert read_runs(runs[:1]) == read_run(runs[0])
    assert list(name_runs([runs[0], runs[0] / ".." / "one"])) == ["one"]
    shutil.copytree(runs[0], tmp_path / "more" / "one")
    assert list(name_runs([runs[0], tmp_path / "more" / "one"])) == [f"{tmp_path.name}/one", "more/one"]


def test_settings_that_cannot_be_read_differ_in_nothing(runs: list[Path]) -> None:
    for run, text in zip(runs, ("a: [", "a: &x [1]\nb: *x\n"), strict=True):
        (run / "config.yaml").write_text(text, encoding="utf-8")
    assert differing_settings(read_runs(runs).together) == [("a", ["–", "[1]"]), ("b", ["–", "[1]"])]


def test_a_last_line_that_is_cut_off_waits(tmp_path: Path) -> None:
    files = ["feedback.jsonl", "ppo/text2grad/metrics.jsonl", "ppo/text2grad/samples.jsonl"]
    for end in (b'{"step": 1, "name": "\xc3', b'{"step": 1, "x": "\xf0\x9f\x99', b'{"st'):
        run = write_run(tmp_path / "run", steps=3)
        before, samples = read_run(run), read_samples([run], [])
        for file in files:
            (run / file).write_bytes((run / file).read_bytes() + end)
        after = read_run(run)
        assert after.methods == before.methods and after.feedback == before.feedback
        notes = after.notes
        assert read_samples([run], notes) == samples
        assert len(notes) == 3 and "text2grad/metrics.jsonl" in notes[0]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    for text in (b'{"step": 0}\n{"a": "\xc3"}\n{"step": 1}\n', b'{"step": 0}\n{"st\n{"step": 1}\n', b"\n{}\n"):
        (tmp_path / "metrics.jsonl").write_bytes(text)
        with pytest.raises(UserError, match=r"metrics\.jsonl:2: "):
            read_metrics(tmp_path / "metrics.jsonl")
    for name in ("evaluation/reward_model.json", "ppo/text2grad/samples.jsonl", "feedback.jsonl"):
        write_run(tmp_path / "run", steps=1)
        (tmp_path / "run" / name).write_text("[" * 3000 + "\n\n")  # nested without end
        with pytest.raises(UserError, match=Path(name).name):
            build_report(tmp_path / "run")


def test_a_missing_or_empty_folder_is_the_users_mistake(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="text2grad demo"):
            build_report(folder)
    assert list(tmp_path.iterdir()) == []
