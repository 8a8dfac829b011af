"""Several runs on one page: policies by the names of their runs, settings that differ, the headline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from synthetic_run import write_run, write_seeds
from text2grad.errors import UserError
from text2grad.report.folder import read_metrics, read_run
from text2grad.report.headline import differing_settings, facts_of, headline_of, policies_of
from text2grad.report.together import read_together, run_names, sample_folders
from text2grad.report.viewer import build_report, sections


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    one, other = write_run(tmp_path / "one", steps=6), write_run(tmp_path / "other", steps=9, seed=1)
    config = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(config.replace("40", "20"), encoding="utf-8")
    return [one, other]


def test_the_curves_of_all_runs_are_in_one_chart(runs: list[Path]) -> None:
    shown = sections(read_together(runs))
    names = ["one text2grad", "one scalar_ppo", "other text2grad", "other scalar_ppo"]
    assert [name for name, _ in shown["curves"]["methods"]] == names
    score = next(drawn for drawn, _ in shown["curves"]["main"] if drawn.metric == "score")
    assert [curve["name"] for curve in json.loads(score.hover)["curves"]] == names
    assert [name for name, _ in shown["supervised"][0][2]["methods"]] == ["one", "other"]
    assert shown["differing"] == [("ppo.steps", ["40", "20"])]


def test_results_and_answers_of_all_runs_stand_side_by_side(runs: list[Path]) -> None:
    run = read_together(runs)
    assert [row["name"] for row in run.summary["rows"]][:4] == [
        "one SFT",
        "one scalar PPO",
        "one text2grad",
        "other SFT",
    ]
    assert [row.name for row in policies_of(run)][3:] == ["other sft", "other text2grad", "other scalar_ppo"]
    names = [answer["name"] for answer in sections(run)["data"]["comparisons"][0]["answers"]]
    assert names == [f"{run} {name}" for run in ("one", "other") for name in ("SFT", "scalar PPO", "text2grad")]
    page = build_report(*runs)
    assert page == runs[0] / "report.html" and "Settings that differ" in page.read_text(encoding="utf-8")


def test_runs_measured_otherwise_have_no_common_table(runs: list[Path]) -> None:
    summary = json.loads((runs[1] / "summary.json").read_text(encoding="utf-8"))
    (runs[1] / "summary.json").write_text(json.dumps({**summary, "metric": "ROUGE-L"}), encoding="utf-8")
    assert read_together(runs).summary == {}


def test_one_run_is_that_run_and_no_run_is_there_twice(runs: list[Path], tmp_path: Path) -> None:
    assert read_together(runs[:1]) == read_run(runs[0].resolve())
    assert list(run_names([runs[0], runs[0] / ".." / "one"])) == ["one"]
    (tmp_path / "more").mkdir()
    shutil.copytree(runs[0], tmp_path / "more" / "one")
    same = [runs[0], tmp_path / "more" / "one"]
    assert list(run_names(same)) == [f"{tmp_path.name}/one", "more/one"]


def test_samples_are_named_as_the_curves_are(runs: list[Path], tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path / "three", seeds=2)
    names = [name for name, _ in sample_folders([runs[0], seeds])]
    assert names[:2] == ["one text2grad", "one scalar_ppo"] and names[2] == "three seed-0 text2grad"
    curves = sections(read_together([runs[0], seeds]))["curves"]
    assert "three text2grad" in [name for name, _ in curves["methods"]] and curves["seeds"] == 2


def test_settings_that_cannot_be_read_differ_in_nothing(runs: list[Path]) -> None:
    for run, text in zip(runs, ("a: [", "a: &x [1]\nb: *x\n"), strict=True):
        (run / "config.yaml").write_text(text, encoding="utf-8")
    assert differing_settings(read_together(runs).together) == [("a", ["–", "[1]"]), ("b", ["–", "[1]"])]


def test_a_run_that_was_not_compared_has_a_headline_of_its_evaluations(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=3)
    (run / "summary.json").unlink()
    place = run / "evaluation" / "code"
    place.mkdir()
    scores = {"text2grad": [1, 1, 1, 0], "sft": [1, 0, 1, 0], "base": [0, 0, 0, 0]}
    for name, values in scores.items():
        by_problem = {str(number): {"pass": value} for number, value in enumerate(values)}
        found = {"greedy": {"0": {"pass": 0}}, "sampled": by_problem}
        (place / f"{name}.scores.json").write_text(json.dumps(found), encoding="utf-8")
    headline = headline_of(read_run(run))
    assert headline == (
        "code sampled pass base 0.000 (0.000 to 0.000) → sft 0.500 (0.000 to 1.000)"
        " → text2grad 0.750 (0.260 to 1.000)"
    )


def test_the_facts_say_which_model_when_and_with_which_settings(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=3)
    (run / "config.yaml").write_text("policy:\n  model: my/model\n", encoding="utf-8")
    facts = dict(facts_of(read_run(run), "preset demo, but ppo.lr 1"))
    assert (facts["base model"], facts["settings"]) == ("my/model", "preset demo, but ppo.lr 1")
    assert facts["written"].endswith(" UTC") and facts["time"] == "5 min 41 s"


@pytest.mark.parametrize(
    "end", [b'{"step": 1, "name": "\xc3', b'{"step": 1, "x": "\xf0\x9f\x99', b'{"st', b'{"step": 1']
)
def test_a_last_line_that_is_cut_within_a_character_waits(tmp_path: Path, end: bytes) -> None:
    run = write_run(tmp_path / "run", steps=3)
    files = [
        run / "feedback.jsonl",
        *((run / "ppo/text2grad" / name) for name in ("metrics.jsonl", "samples.jsonl")),
    ]
    whole = read_run(run)
    for file in files:
        file.write_bytes(file.read_bytes() + end)
    found = read_run(run)
    assert found.methods == whole.methods and found.feedback == whole.feedback
    assert [note.split()[4] for note in found.notes] == [
        f"{f.parent.name}/{f.name}" for f in (files[1], files[2], files[0])
    ]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0}\n{"a": "\xc3"}\n{"step": 1}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: not JSON: not UTF-8 \(remove line 2\)"):
        read_metrics(tmp_path / "metrics.jsonl")
