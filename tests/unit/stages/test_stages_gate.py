"""The gate as stages: what `train-reward` writes, and what `train` makes of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from human_data import small_config
from human_run import Trained
from text2grad.config import Config
from text2grad.critics.damage import CORRUPTIONS
from text2grad.data.spans.marks import build_human_record
from text2grad.errors import UserError
from text2grad.feedback import Critique, Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages.critics import critic_inputs
from text2grad.stages.reward_model.corrections import corrections, with_corrections
from text2grad.stages.reward_model.data import with_damage
from text2grad.stages.reward_model.gate import FRESH, gate_file, read_gate, refuse_unfit_reward_model, verdict_line
from text2grad.stages.run_folder import RunFolder

REFUSING = ("--critic.reward_model.gate", "true")


def with_gate(folder: Path, text: str, *settings: str) -> Config:
    config = small_config(folder, *REFUSING, *settings)
    gate_file(RunFolder.of(config)).parent.mkdir(parents=True)
    gate_file(RunFolder.of(config)).write_text(text, encoding="utf-8")
    return config


def test_a_reward_model_is_checked_when_it_is_trained(trained: Trained) -> None:
    summary, folder = trained.reward_model, trained.config.run.folder
    written = read_gate(RunFolder.of(trained.config))
    assert written is not None and asdict(written) == summary.gate
    assert summary.damaged and summary.corrections == 26, "each answer to a training prompt was corrected"
    assert summary.trained_on == summary.records + summary.corrections + summary.damaged
    figures = written.figures
    assert figures.corrected <= figures.heldout == 90 - summary.records, "held-out corrections are measured"
    assert not written.fit, "a model of 16 dimensions that saw each record once"
    assert 0 <= figures.fresh <= 16 and 0 <= figures.spoiled <= 32
    fresh = list(read_jsonl(folder / "evaluation" / FRESH, Feedback))
    assert len({record.id for record in fresh}) == 16
    with pytest.raises(UserError, match=r"not fit to train against: .*critic\.reward_model\.gate false"):
        refuse_unfit_reward_model(small_config(folder, *REFUSING))


FIT, FAILED = {"fit": True, "reasons": []}, {"fit": False, "reasons": ["verdict"]}
ALONE = {**FAILED, "spans_alone": FIT}
NEITHER = {**FAILED, "spans_alone": {"fit": False, "reasons": ["spans"]}}
UNCHECKED = {**FIT, "spans_alone": None, "figures": {"pays_verdict": False}}
NO_SCORE = ("--credit.outcome_weight", "0")
LAST_TOKEN = (*NO_SCORE, "--credit.scheme", "last_token")
SPANS = r"\(--credit\.outcome_weight 0 trains on its spans alone"


@pytest.mark.parametrize(
    ("verdict", "settings", "message"),
    [
        (FIT, (), ""),
        (FAILED, (), r"against: verdict \(.*gate\.json\) \(add critiques"),
        (FAILED, ("--critic.reward_model.gate", "false"), ""),
        (FAILED, ("--critic.kind", "human"), ""),
        ({"fit": False, "reasons": ["one", "two", "three"]}, (), r"one, and 2 more .*gate\.json"),
        (ALONE, (), rf"against: verdict .*{SPANS}"),
        (ALONE, NO_SCORE, ""),
        (ALONE, LAST_TOKEN, "verdict"),
        (UNCHECKED, (), rf"checked with credit\.outcome_weight 0, .* {SPANS}"),
        (UNCHECKED, NO_SCORE, ""),
        (NEITHER, (), r"against: verdict .*\(add critiques"),
        (NEITHER, NO_SCORE, r"against: spans .*\(add critiques"),
    ],
)
def test_a_verdict_counts_where_what_it_is_about_is_paid(
    tmp_path: Path, verdict: dict[str, object], settings: tuple[str, ...], message: str
) -> None:
    config = with_gate(tmp_path, json.dumps(verdict), *settings)
    if not message:
        return refuse_unfit_reward_model(config)
    with pytest.raises(UserError, match=message):
        refuse_unfit_reward_model(config)
    (tmp_path / "feedback.jsonl").touch()
    with pytest.raises(UserError, match=r"train --offline .*feedback\.jsonl learns"):
        refuse_unfit_reward_model(config)


def test_what_is_trained_against_unchecked_or_unfit_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_unfit_reward_model(with_gate(tmp_path / "fit", json.dumps(FIT)))
    unfit = with_gate(tmp_path / "unfit", json.dumps(ALONE), "--critic.reward_model.gate", "false")
    own = ("--critic.reward_model.folder", str(tmp_path / "own" / "policy"))
    unchecked = small_config(tmp_path, *REFUSING, *own)
    refuse_unfit_reward_model(unchecked)
    assert capsys.readouterr().err == "", "that there is no model is told by what looks for it"
    (tmp_path / "own" / "policy").mkdir(parents=True)
    for config, words in (
        (unfit, "not fit to train against: verdict"),
        (unchecked, str(tmp_path / "own" / "gate.json")),
    ):
        refuse_unfit_reward_model(config)
        refuse_unfit_reward_model(config, warn=False)
        [line] = capsys.readouterr().err.splitlines()
        assert words in line


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ((), "the reward model of this run is not fit to train against: verdict"),
        (("--credit.outcome_weight", "0"), "the reward model of this run is fit to train against"),
        (("--critic.kind", "human"), ""),
    ],
)
def test_a_policys_evaluation_says_what_the_gate_said(tmp_path: Path, settings: tuple[str, ...], line: str) -> None:
    assert verdict_line(small_config(tmp_path / "none")) == ""
    assert verdict_line(with_gate(tmp_path / "run", json.dumps(ALONE), *settings)) == line


def remark(response: str, corrected: str, score: float | None = None, id: str = "a") -> Feedback:
    return build_human_record(id, "When?", response, Critique(text="x", score=score), {"corrected": corrected})


def test_what_people_corrected_is_praised_once() -> None:
    records = [
        remark("Soon.", "On Friday.", -1.0),
        remark("Later.", "On Friday.", id="b"),
        remark("On Monday.", "On Monday.", 1.0, "c"),
        remark("Never.", "", -1.0, "d"),
    ]
    assert [text for _, text in corrections(records)] == ["On Friday.", "On Monday."]
    *same, praise = with_corrections(records)
    assert same == records, "an answer that a record is about is praised, or not, by that record"
    assert (praise.id, praise.response, praise.score) == ("a:corrected", "On Friday.", 1.0)
    assert [(span.label, span.text) for span in praise.spans] == [(1, "On Friday.")]
    assert with_corrections([remark("Soon.", "On Friday.")])[-1].score is None, "nobody gave a verdict"


def test_of_a_long_correction_what_was_put_in_is_praised() -> None:
    before = [f"word{n}" for n in range(80)]
    after = [*before[:40], "other", "words", *before[42:]]
    *_, praise = with_corrections([remark(" ".join(before), " ".join(after))])
    assert [(span.label, span.text, span.reason) for span in praise.spans] == [(1, "other words", "")]


def test_the_gate_of_a_named_folder_counts(tmp_path: Path) -> None:
    other = with_gate(tmp_path / "other", json.dumps(FAILED))
    folder = str(gate_file(RunFolder.of(other)).parent / "policy")
    with pytest.raises(UserError, match="not fit"):
        refuse_unfit_reward_model(small_config(tmp_path / "run", *REFUSING, "--critic.reward_model.folder", folder))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fit": true}'])
def test_what_is_no_verdict_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"gate\.json is not a verdict"):
        refuse_unfit_reward_model(with_gate(tmp_path, text))


def test_the_setting_does_not_change_what_a_run_depends_on(tmp_path: Path) -> None:
    (tmp_path / "reward_model" / "policy").mkdir(parents=True)
    on, off = (small_config(tmp_path, "--critic.reward_model.gate", value) for value in ("true", "false"))
    assert critic_inputs(on) == critic_inputs(off)


def test_a_few_records_are_joined_by_spoiled_ones(imported: Config, tmp_path: Path) -> None:
    records = list(read_jsonl(imported.run.folder / "feedback.jsonl", Feedback))[:30]
    few = with_damage(records, imported.reward_model, seed=0)
    assert few[:30] == records and {each.meta["damage"] for each in few[30:]} == set(CORRUPTIONS)
    assert 13 <= len(few[30:]) <= 15, "half as many, less those that would be as they were"
    assert with_damage(records * 17, imported.reward_model, seed=0) == records * 17, "from 500 on: none"
    none = small_config(tmp_path / "run", "--reward_model.damaged", "0")
    assert with_damage(records, none.reward_model, seed=0) == records
    twice = small_config(tmp_path / "run", "--reward_model.damaged", "2")
    assert len(with_damage(records * 17, twice.reward_model, seed=0)) > 1400
