"""Measurements of the experiments on fixed records and answers."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from text2grad.config import Config, find_config, load_config
from text2grad.critics.table import spec_of
from text2grad.errors import UserError
from text2grad.feedback import Critique, Failure, Feedback, Message, Source, Span
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.stages.intake import run_import
from text2grad.stages.reward_model.corrections import corrections
from text2grad.stages.reward_model.data import reward_data
from text2grad.stages.run_folder import RunFolder
from text2grad.tasks.base import TaskSettings, feedback_split, load_task
from text2grad_lab.experiments import agreement, annotation, credit_signs, own_data, tastes
from text2grad_lab.experiments.options import recipe_of, refuse_other_recipe
from text2grad_lab.paper import dense_cost


def test_models_made_with_other_settings_are_refused(tmp_path: Path) -> None:
    def of(*words: str) -> Config:
        return load_config(find_config("demo"), [f"--run.folder={tmp_path}", *words])

    assert recipe_of(of()) == recipe_of(of("--run.threads=7")) != recipe_of(of("--ppo.lr=1e-3"))
    refuse_other_recipe(of())
    refuse_other_recipe(of("--ppo.lr=1e-3", "--credit.outcome_weight=0"))
    with pytest.raises(SystemExit, match="made with other settings: choose another --out"):
        refuse_other_recipe(of("--sft.epochs=9"))
    refuse_other_recipe(of())


def test_critics_of_taste_mark_what_they_like_and_dislike() -> None:
    reply = "Thanks for asking! The logo is on the shelf. I think it might rain. I am busy."
    example = tastes.Replies(TaskSettings(name="tastes:Replies")).examples("heldout")[0]
    critiques = {name: judge(reply) for name, judge in {**tastes.TASTES, "every": tastes.every}.items()}
    marks = {name: [(span.text, span.label) for span in critique.spans] for name, critique in critiques.items()}
    assert marks["brief"] == [("I think it might rain.", -1), ("I am busy.", -1)]
    assert marks["warm"] == [("Thanks", 1), ("busy", -1)]
    assert marks["sure"] == [("I think", -1), ("might", -1)]
    assert marks["every"] == marks["brief"] + marks["warm"] + marks["sure"]
    assert [critique.score for critique in critiques.values()] == [0.0, 0.0, -1.0, pytest.approx(-1 / 3)]
    scores = tastes.Replies(TaskSettings(name="tastes:Replies")).scores(example, reply)
    assert scores == {"taste": pytest.approx(1 / 3), "brief": 0.5, "warm": 0.5, "sure": 0.0, "about": 0.0}
    critic = spec_of(f"{tastes.__name__}:Every").make(None, None)
    assert [critique.score for critique in critic.critique([example] * 2, [reply, " "])] == [
        pytest.approx(-1 / 3),
        -1.0,
    ]


def test_held_out_things_occur_in_no_other_split() -> None:
    task = tastes.Replies(TaskSettings(name="text2grad_lab.experiments.tastes:Replies", limit=60))
    things = {
        split: {example.meta["thing"] for example in task.examples(split)} for split in ("sft", "train", "heldout")
    }
    assert not things["heldout"] & (things["sft"] | things["train"]) and len(task.examples("sft")) == 60
    assert task.examples("train") == tastes.Replies(TaskSettings(name="tastes:Replies")).examples("train")


def test_a_right_token_with_a_negative_advantage_has_the_wrong_sign() -> None:
    strip = {"response": "good bad", "starts": [0, 4], "ends": [4, 8], "advantage": [-2.0, -1.0], "failure": None}
    spans = (Span(start=0, end=4, label=1, text="good"), Span(start=5, end=8, label=-1, text="bad"))
    signed = dict(credit_signs.tokens_of(strip, Critique(text="", spans=spans, score=-1.0)))
    assert signed["right"].tolist() == [-2.0] and signed["wrong"].tolist() == [1.0]
    assert credit_signs.summary([signed["right"], np.array([3.0])]) == {"tokens": 2, "wrong_sign": 0.5, "push": 0.5}
    passing = dict(credit_signs.tokens_of(strip, Critique(text="", spans=spans[:1], score=1.0)))
    assert passing["passing"].tolist() == [-2.0]
    assert not list(credit_signs.tokens_of(strip | {"failure": {"kind": "invalid"}}, Critique(text="")))


def record(number: int, response: str, *quotes: str) -> Feedback:
    """An annotated answer; its quotes are poor."""
    places = [(response.index(quote), quote) for quote in quotes]
    spans = tuple(Span(start=at, end=at + len(quote), label=-1, text=quote) for at, quote in places)
    prompt = (Message(role="user", content=f"problem {number}"),)
    critique = f"about {number}"
    return Feedback(
        id=f"p{number}", prompt=prompt, response=response, critique=critique, spans=spans, score=-1.0,
        source=Source(kind="program"),
    )  # fmt: skip


def test_noise_changes_spans_but_not_critiques(tmp_path: Path) -> None:
    records = [record(n, "x = a + b", "a + b") for n in range(200)]
    flipped = annotation.training_records("flip_20", records, seed=0)
    assert 0.1 < annotation.altered_share(records, flipped) < 0.3
    assert {span.label for row in flipped for span in row.spans} == {1, -1}
    assert [row.critique for row in flipped] == [row.critique for row in records]
    moved = annotation.training_records("displace_20", records, seed=0)
    write_jsonl(tmp_path / "moved.jsonl", moved)
    assert list(read_jsonl(tmp_path / "moved.jsonl", Feedback)) == moved  # every span still quotes its response
    assert {span.text for row in moved for span in row.spans} != {"a + b"}
    assert annotation.training_records("clean", records, seed=0) == records


@pytest.mark.parametrize(("arm", "kinds"), [("kinds_50", 2), ("records_50", 4)])
def test_half_of_the_kinds_is_as_many_records_as_half_of_all(arm: str, kinds: int) -> None:
    records = [record(n // 2, "a", "a").model_copy(update={"meta": {"kind": n // 2 % 4}}) for n in range(48)]
    fewer = annotation.training_records(arm, records, seed=0)
    assert len(fewer) == 24 and {count for count in Counter(row.id for row in fewer).values()} == {2}
    assert len({row.meta["kind"] for row in fewer}) == kinds
    assert annotation.altered_share(records, fewer) == 0.5


def test_two_reward_models_agree_on_what_both_mark_alike(tmp_path: Path) -> None:
    gold = record(0, "good poor", "poor")
    said = {"a": gold, "b": record(0, "good poor", "good poor")}
    for name, judged in said.items():
        write_jsonl(tmp_path / name / "evaluation" / "reward_model.said.jsonl", [judged])
        write_jsonl(tmp_path / name / "feedback_heldout.jsonl", [gold])
    found = agreement.compare(tmp_path / "b", tmp_path / "a")
    assert found["both"] == found["second"] and found["second"]["poor_f1"] == 1
    assert found["first"]["poor_precision"] == round(4 / 9, 4)
    write_jsonl(tmp_path / "b" / "evaluation" / "reward_model.said.jsonl", [record(0, "poor", "poor")])
    with pytest.raises(UserError, match="did not judge the same answers"):
        agreement.compare(tmp_path / "a", tmp_path / "b")


def test_irrelevant_critiques_keep_only_quotes_of_the_response(
    tmp_path: Path,
) -> None:
    records = [record(n, f"y = {n} + 1; z", f"{n} + 1", "z") for n in range(40)]
    changed = annotation.training_records("irrelevant_20", records, seed=0)
    hit = [(old, new) for old, new in zip(records, changed, strict=True) if old != new]
    assert len(hit) == 8 and annotation.altered_share(records, changed) == 0.2
    for old, new in hit:
        assert new.critique != old.critique and (new.id, new.response) == (old.id, old.response)
        assert "z" in [span.text for span in new.spans]
        assert all(new.response[span.start : span.end] == span.text for span in new.spans)
    assert annotation.training_records("irrelevant_20", records, seed=1) != changed
    source = tmp_path / "feedback.jsonl"
    write_jsonl(source, records)
    annotation.write_noisy_records(str(source), "irrelevant_20", str(tmp_path / "noisy.jsonl"), seed=0)
    assert list(read_jsonl(tmp_path / "noisy.jsonl", Feedback)) == changed


@pytest.mark.parametrize("arm", ["clean", "flip", "flip_x", "shuffle_10"])
def test_change_accepts_only_noise_arms(arm: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"no noise '{arm}'"):
        annotation.write_noisy_records(str(tmp_path / "feedback.jsonl"), arm, str(tmp_path / "noisy.jsonl"), seed=0)
    with pytest.raises(SystemExit, match="No such file"):
        annotation.write_noisy_records(
            str(tmp_path / "none.jsonl"), "flip_10", str(tmp_path / "noisy.jsonl"), seed=0
        )


def test_weaker_teachers_see_less_and_report_less(tmp_path: Path) -> None:
    words = ["--task.limit=64", f"--run.folder={tmp_path}"]
    config = load_config(find_config("demo"), words)
    example = load_task(config.task).examples(feedback_split(config.task))[0]
    wrong = example.reference.replace("return", "return not")
    records = [
        Feedback(
            id=example.id, prompt=example.prompt, response=response, source=Source(kind="program"), critique="?"
        )
        for response in (example.reference, wrong, "def f(xs):\n    return 0\n")
    ]
    for teacher, blamed, lucky in (("tests", wrong.strip(), -1.0), ("one_test", "not len(set(zs))", 1.0)):
        right, poor, empty_alone = annotation.rejudge(annotation.TEACHERS[teacher], config, records)
        assert (right.score, poor.score, empty_alone.score) == (1.0, -1.0, lucky)
        assert poor.response == wrong and [span.text for span in poor.spans if span.label < 0] == [blamed]
    assert annotation.with_first_test(example).meta["tests"].count("def test") == 1
    assert example.meta["tests"].count("def test") == 8
    other_source = [row.model_copy(update={"source": Source(kind="llm")}) for row in records]
    assert annotation.altered_share(records, other_source) == 0


def test_annotation_means_over_seeds_and_keeps_the_measures_apart() -> None:
    common = {"arm": "clean", "recipe": "r", "cpu_seconds": 1.0}
    rows = [{"what": "reward_model", "seed": seed, "poor_f1": f1, **common} for seed, f1 in ((0, 0.8), (1, 0.6))]
    means = annotation.summary([*rows, {"what": "policy", "seed": 0, "greedy": 0.5, **common}])
    assert means["reward_model"]["clean"] == {"poor_f1": {"seeds": [0.8, 0.6], "mean": 0.7}}
    assert means["policy"]["clean"] == {"greedy": {"seeds": [0.5], "mean": 0.5}}


@pytest.mark.nightly
def test_annotation_trains_on_changed_records_and_measures_on_unchanged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "task.limit=64 sft.epochs=1"
    small += " annotate.prompts=16 annotate.samples_per_prompt=1 evaluate.limit=4 reward_model.training.epochs=1"
    small += " reward_model.max_new_tokens=24 generation.max_new_tokens=24"
    words = f"--seeds 3 --kinds irrelevant --shares .5 --policies --out {tmp_path} --set {small}"
    monkeypatch.setattr(sys, "argv", ["annotation.py", *words.split()])
    annotation.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures["reward_model"]) == {"clean", "irrelevant_50", "teacher_tests", "teacher_one_test"}
    assert not figures["policy"]
    assert figures["reward_model"]["irrelevant_50"]["altered"]["seeds"] == [0.5]
    clean, *changed = (
        [(tmp_path / f"seed-3-{arm}" / name).read_bytes() for name in ("feedback.jsonl", "feedback_heldout.jsonl")]
        for arm in ("clean", "irrelevant_50", "teacher_tests")
    )
    assert all(clean[0] != arm[0] and clean[1] == arm[1] for arm in changed)
    rows = (tmp_path / "results.jsonl").read_bytes()
    annotation.main()
    assert (tmp_path / "results.jsonl").read_bytes() == rows  # nothing was repeated


def test_dense_cost_counts_tokens_of_both_formats() -> None:
    """Tokens are words here; a failed record is left out."""
    span = Span(start=0, end=2, label=-1, text="It", reason="who?")
    prompt, source = (Message(role="user", content="Why?"),), Source(kind="llm")
    annotated = Feedback(
        id="1", prompt=prompt, response="It is so.", critique="Too short.", spans=(span,), source=source
    )
    failed = Feedback(id="2", prompt=prompt, response="x", error=Failure(kind="refused", message=""), source=source)
    figures = dense_cost.costs([annotated, failed], "qa_plain", lambda text: [(0, 0) for _ in text.split()])
    answers = [figures[name] for name in ("records", "span_answer", "span_map", "dense_answer")]
    assert answers == [1, len(Z.split()), len(Z_MAP.split()), len(DENSE.split())]
    assert figures["answer_ratio"] == answers[3] / answers[1] and figures["map_ratio"] == answers[3] / answers[2]
    dense_tokens = figures["dense_prompt"] + figures["dense_answer"]
    assert figures["ratio"] == dense_tokens / (figures["span_prompt"] + figures["span_answer"])
    assert 100 < figures["dense_prompt"] < figures["span_prompt"]


Z = '{"critique": "Too short.", "good_spans": [], "poor_spans": [{"quote": "It", "reason": "who?"}]}'
Z_MAP = '{"critique": "", "good_spans": [], "poor_spans": ["It"]}'
DENSE = '{"words": [["It", -1], ["is", 0], ["so.", 0]]}'


# A user's own feedback

MAIL = 'Mail from Ann: "When is the audit due?"\nYour notes: The audit is due on Friday.\nWrite the reply.'


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("The audit is due on Friday.", 1.0),
        ("Dear Ann,\n\nIt is due on Friday.\n\nBest regards, Tom", 1.0),
        ("Probably on Friday.", 1 / 3),
        ("It is due on Friday. Let me know how else I may be of service.", 1 / 3),
        ("It is due on Friday. I think it is due on Friday.", -1 / 3),
        (
            "It is due on Friday. We are always happy to help. Have a very nice day. I shall write again.",
            -1.0,
        ),
        ("on Friday " * 21, 1 / 3),
        ("It is due on Monday.", -1.0),
        ("due audit is on The.", -1.0),
        ("", -1.0),
    ],
)
def test_the_judge_rewards_replies_that_state_only_the_requested_fact(reply: str, score: float) -> None:
    assert own_data.score_reply(MAIL, reply) == pytest.approx(score)


@pytest.mark.parametrize("seed", range(3))
def test_the_judge_agrees_with_comments_on_phrases_it_does_not_know(seed: int) -> None:
    rows = list(own_data.make_mails(seed))
    assert len({row["prompt"] for row in rows}) == own_data.RECORDS + own_data.HELDOUT
    for row in rows:
        assert own_data.score_reply(row["prompt"], row["response"]) == pytest.approx(row["score"], abs=0.01)
        assert all(quote in row["response"] for quote in (row["good"], *row["poor"].splitlines()))
        assert row["prompt"].count(row["fact"]) == 1
    assert {row["score"] for row in rows} == {1.0, 0.33, -0.33, -1.0}


@pytest.mark.parametrize("start", ["sent", "corrected"])
def test_the_simulated_files_are_imported_completely(tmp_path: Path, start: str) -> None:
    own_data.write_files(tmp_path, 0, start)
    words = [
        "--task.data",
        str(tmp_path / "questions.jsonl"),
        "--task.heldout_data",
        str(tmp_path / "heldout.jsonl"),
    ]
    config = load_config(find_config("own"), ["--run.folder", str(tmp_path / "run"), *words])
    summary = run_import(config, tmp_path / "remarks.csv", "auto", None)
    assert summary["added"] == 60 and not summary.keys() & {"losses", "ignored"}
    task = load_task(config.task)
    assert (len(task.examples("train")), len(task.examples("heldout"))) == (48, 12)
    train, heldout = reward_data(RunFolder.of(config))
    assert (len(train), len(heldout)) == (48, 12)
    right = {
        own_data.score_reply(example.prompt[-1].content, example.reference) for example in task.examples("heldout")
    }
    assert (right == {1.0}) == (start == "corrected"), "SFT imitates what was sent, or what should have been"
    assert len(corrections(heldout)) == (12 if start == "corrected" else 0)


@pytest.mark.parametrize(
    ("gate", "settings"),
    [
        ({"fit": True, "spans_alone": {"fit": True}}, []),
        ({"fit": False, "spans_alone": {"fit": True}}, ["--credit.outcome_weight", "0"]),
        ({"fit": False, "spans_alone": {"fit": False}}, []),
        ({"fit": False, "spans_alone": None}, []),
    ],
)
def test_options_follow_the_gate(tmp_path: Path, gate: dict[str, Any], settings: list[str]) -> None:
    (tmp_path / "mine" / "reward_model").mkdir(parents=True)
    (tmp_path / "mine" / "reward_model" / "gate.json").write_text(json.dumps(gate))
    assert own_data.options_after_gate(tmp_path) == settings


def test_recorded_commands_are_not_repeated_and_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run_once(command: list[str], log: Path, folder: Path) -> tuple[int, float]:
        ran.append(command[3:])
        log.write_text("one\nerror: it broke\n", "utf-8")
        return int("break" in command), 12.4

    monkeypatch.setattr(own_data, "run_command", run_once)
    for _ in range(2):
        commands = own_data.Commands(tmp_path)
        commands.run("sft", "--run.seed", "0")
        assert commands.summaries[0]["peak_mb"] == 12
    assert ran == [["sft", "--run.seed", "0"]]
    with pytest.raises(SystemExit, match="choose another --out"):
        own_data.Commands(tmp_path).run("sft", "--run.seed", "1")
    with pytest.raises(SystemExit, match="break: error: it broke"):
        commands.run("break")
    assert not (tmp_path / "done" / "1_break.json").exists()
    refused = commands.run("break", may_fail=True)
    assert (refused["code"], refused["last"]) == (1, "error: it broke")
