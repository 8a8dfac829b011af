"""People's feedback through the stages: what is kept and left out, and no held-out question in any
training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from human_data import corrected_file, reviews_file, small_config
from human_run import Trained
from text2grad import wire
from text2grad.config import Config, RewardModelSettings, load_config
from text2grad.critics.prompted import CUT
from text2grad.data.records import write_feedback
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Feedback, Source, Span
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.load import load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages import run_folder
from text2grad.stages.evaluate import policy as stage
from text2grad.stages.intake import run_import
from text2grad.stages.reward_model import data as reward_data
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.sft import run_sft
from text2grad.tasks.base import TaskSettings, question_text
from text2grad.train.pairs import Pair


def feedback(config: Config) -> list[Feedback]:
    return list(read_jsonl(config.run.folder / "feedback.jsonl", Feedback))


def import_figures(config: Config) -> dict[str, Any]:
    files = sorted((config.run.folder / "evaluation").glob("import_*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


# Import


def test_a_second_import_adds_to_the_first(imported: Config) -> None:
    data_sets = [record.meta["dataset"] for record in feedback(imported)]
    assert data_sets == ["remarks"] * 30 + ["csv"] * 60
    figures = import_figures(imported)
    assert set(figures) == {"import_remarks", "import_csv"}
    assert (figures["import_remarks"]["records"], figures["import_remarks"]["spans"]) == (30, 30)
    assert (figures["import_csv"]["records"], figures["import_csv"]["unmatched"]) == (60, 0)


def test_importing_a_file_twice_changes_nothing(imported: Config, tmp_path: Path) -> None:
    before, figures = feedback(imported), import_figures(imported)
    report = run_import(imported, tmp_path / "dev_feedback.jsonl", "auto", None)
    assert (feedback(imported), import_figures(imported)) == (before, figures)
    assert (report["records"], report["added"], report["replaced"]) == (30, 0, 30)
    assert report["file_holds"] == {"remarks": 30, "csv": 60}


def test_a_record_imported_again_takes_the_place_of_the_old_one(imported: Config, tmp_path: Path) -> None:
    corrected_file(tmp_path / "dev_feedback.jsonl", corrected="Mended: {n}.")
    run_import(imported, tmp_path / "dev_feedback.jsonl", "auto", None)
    again = feedback(imported)
    assert len(again) == 90
    assert [record.meta["corrected"] for record in again[:2]] == ["Mended: 0.", "Mended: 1."]


def test_ratings_that_are_lost_are_said_first_and_fail_the_command(imported: Config, tmp_path: Path) -> None:
    source, out = tmp_path / "rated.csv", tmp_path / "rated.jsonl"
    source.write_text("prompt,response,stars,critique\np,r,4,c\np,s,5,d\n", encoding="utf-8")
    ended = run_import(imported, source, "auto", out)
    assert next(iter(ended)) == "unscored" and "--scale stars=" in ended["unscored"][0]
    assert (ended["exit_code"], ended["records"], ended.get("losses")) == (3, 2, None)
    saved = run_import(imported, source, "auto", out, scales=("1..5",))
    assert not {"unscored", "exit_code"} & saved.keys()


def test_a_file_that_cannot_be_read_leaves_the_earlier_import_intact(imported: Config, tmp_path: Path) -> None:
    before = feedback(imported)
    (tmp_path / "broken.json").write_text('[{"question": "What"}]', encoding="utf-8")
    with pytest.raises(UserError):
        run_import(imported, tmp_path / "broken.json", "remarks", None)
    assert feedback(imported) == before


def test_figures_stay_out_of_the_run_when_the_records_do(tmp_path: Path) -> None:
    chosen = small_config(tmp_path / "run")
    source = corrected_file(tmp_path / "dev_feedback.jsonl")
    run_import(chosen, source, "auto", tmp_path / "own" / "feedback.jsonl")
    assert not chosen.run.folder.exists()


# The prompts of the task


def test_only_answers_that_people_corrected_become_prompts(imported: Config) -> None:
    task = run_folder.RunFolder.of(imported).task()
    examples = [example for split in ("train", "heldout") for example in task.examples(split)]
    assert sorted(example.reference for example in examples) == sorted(f"It was {n}." for n in range(30))
    records = {record.id: record.prompt for record in feedback(imported)}
    assert all(example.prompt == records[example.id] for example in examples)


def test_without_an_import_the_cure_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="text2grad import"):
        run_sft(small_config(tmp_path / "run"))


def test_reviews_alone_are_no_prompts(tmp_path: Path) -> None:
    chosen = small_config(tmp_path / "run")
    run_import(chosen, reviews_file(tmp_path / "reviews.jsonl"), "csv", None)
    with pytest.raises(UserError, match="no corrected answers"):
        run_sft(chosen)


# The split


def test_a_held_out_question_is_in_no_training_set_of_any_stage(trained: Trained) -> None:
    counts = {name: len(questions) for name, questions in trained.questions.items()}
    assert counts == {"sft": 26, "reward model": 26 + 22, "ppo": 26, "policy": 4}, "both train the reward model"
    _, measured_on = reward_data.reward_data(RunFolder.of(trained.config))
    heldout = trained.questions["policy"] | {question_text(record) for record in measured_on}
    training = set().union(*(trained.questions[name] for name in ("sft", "reward model", "ppo")))
    assert heldout and training and not heldout & training


def test_human_records_beside_sampled_ones_are_split_by_question_too(imported: Config) -> None:
    records = feedback(imported)
    alone = reward_data.reward_data(RunFolder.of(imported))
    program = {"kind": "program"}
    sampled = [
        Feedback.model_validate({**records[0].model_dump(), "id": f"s{n}", "source": program, "meta": {}})
        for n in range(2)
    ]
    trained_on = sampled[0].model_copy(update={"meta": {"question": "a training question"}})
    asked = sampled[1].model_copy(update={"meta": {"question": question_text(alone[0][0]).upper()}})
    write_jsonl(imported.run.folder / "feedback.jsonl", [*records, trained_on])
    write_jsonl(imported.run.folder / "feedback_heldout.jsonl", [asked])
    train, heldout = reward_data.reward_data(RunFolder.of(imported))
    assert trained_on in train and asked in heldout
    moved = [record for record in alone[0] if question_text(record) == question_text(alone[0][0])]
    assert moved and all(record in heldout and record not in train for record in moved)
    assert all(record in heldout for record in alone[1])


# What does not fit


def test_prompts_lose_their_middle_and_what_still_does_not_fit_is_left_out(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    config = trained.config
    policy = load_policy(RunFolder.of(config).policy())
    train, _ = reward_data.reward_data(RunFolder.of(config))
    whole = reward_data.fitting(policy, train, config.reward_model)
    said = capsys.readouterr().err
    assert len(whole) == len(train) and "left out" not in said and "in the middle" not in said

    def length(pair: Pair) -> int:
        prompt, target = encode_prompt(policy.tokenizer, pair.prompt), encode_target(policy.tokenizer, pair.target)
        return len(prompt) + len(target)

    limit = sorted(length(pair) for _, pair in whole)[len(whole) // 3]
    policy.model.config.max_position_embeddings = limit
    kept = reward_data.fitting(policy, train, config.reward_model)
    before = {record.id: pair for record, pair in whole}
    cut = [(record, pair) for record, pair in kept if pair.prompt != before[record.id].prompt]
    assert 0 < len(cut) < len(kept)
    for record, pair in cut:
        assert length(pair) <= limit < length(before[record.id])
        assert pair.target == before[record.id].target
        assert record.response in pair.prompt[-1].content and CUT in pair.prompt[-1].content
    assert (
        f"{len(cut)} of {len(train)} prompts were cut in the middle to fit {limit} tokens"
        in capsys.readouterr().err
    )
    short = limit // 2
    policy.model.config.max_position_embeddings = short
    fewer = reward_data.fitting(policy, train, config.reward_model)
    assert len(fewer) < len(train) and all(length(pair) <= short for _, pair in fewer)
    left = f"{len(train) - len(fewer)} of {len(train)} critiques are left out: they still exceed {short} tokens"
    assert left in capsys.readouterr().err


def test_the_configuration_of_a_run_is_written_as_given(trained: Trained) -> None:
    assert load_config(trained.config.run.folder / "config.yaml") == trained.config


# Held-out token reward


def test_evaluation_adds_the_reward_models_view_of_the_same_answers(trained: Trained) -> None:
    without, asked, off = trained.evaluations
    assert without == off == {key: value for key, value in asked.items() if key in without}
    added = {f"{way}_{name}" for way in ("greedy", "sampled") for name in ("token_reward", "critic_failed")}
    assert added <= set(asked) - set(without)


def qa_run(folder: Path) -> RunFolder:
    return RunFolder(
        folder, TaskSettings(name="qa"), PolicySettings(model="any"), folder / "reward_model" / "policy"
    )


def test_answers_of_all_measured_policies_stand_side_by_side_the_changed_ones_first(tmp_path: Path) -> None:
    examples = [
        Example.model_validate({"id": str(n), "prompt": [{"role": "user", "content": "?"}], "reference": "r"})
        for n in range(2)
    ]
    for name, answers in {"text2grad": ("same", "new"), "sft": ("same", "old"), "a_run": ("same", "old")}.items():
        rows = [{"id": str(n), "response": text, "scores": {"x": 1.0}} for n, text in enumerate(answers)]
        run_folder.write_json(tmp_path / "evaluation" / "qa" / f"{name}.answers.json", rows)
    (tmp_path / "before_after.jsonl").write_text('{"task": "mbpp", "id": "m"}\n{"task": "qa", "id": "old"}\n')
    stage.write_before_after(qa_run(tmp_path), examples)
    lines = [json.loads(line) for line in (tmp_path / "before_after.jsonl").read_text().splitlines()]
    assert [(line["task"], line["id"]) for line in lines] == [("mbpp", "m"), ("qa", "1"), ("qa", "0")]
    assert [(answer["name"], answer["response"]) for answer in lines[1]["answers"]] == [
        ("SFT", "old"),
        ("a_run", "old"),
        ("text2grad", "new"),
    ]


def test_answers_that_come_while_the_others_are_written_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that measure at once, the second may write its answers while the first
    gathers them."""
    example = Example.model_validate({"id": "0", "prompt": [{"role": "user", "content": "?"}]})

    def answered(name: str) -> None:
        rows = [{"id": "0", "response": f"by {name}", "scores": {}}]
        run_folder.write_json(tmp_path / "evaluation" / "qa" / f"{name}.answers.json", rows)

    def late(path: Path, text: str) -> None:
        answered("late")
        run_folder.write_atomically(path, text)
        monkeypatch.setattr(stage, "write_atomically", run_folder.write_atomically)

    answered("sft")
    monkeypatch.setattr(stage, "write_atomically", late)
    stage.write_before_after(qa_run(tmp_path), [example])
    (line,) = (tmp_path / "before_after.jsonl").read_text().splitlines()
    assert [answer["name"] for answer in json.loads(line)["answers"]] == ["SFT", "late"]


def test_a_reward_model_is_taught_suggestions(imported: Config) -> None:
    better = Span(start=0, end=8, label=0, text="Moreover", reason="drop it")
    record = feedback(imported)[0]
    record = record.model_copy(update={"response": f"Moreover {record.response}", "spans": (better,)})
    taught = reward_data.reward_pair(record, RewardModelSettings())
    assert isinstance(taught, Pair)
    assert '"improvable_spans": [{"quote": "Moreover", "reason": "drop it"}]' in taught.target
    read = wire.parse(taught.target, record.response)
    assert isinstance(read, Critique) and read.spans == (better,)


def test_reward_pairs_hold_what_people_wrote(imported: Config) -> None:
    pair = reward_data.reward_pair(feedback(imported)[0], RewardModelSettings())
    assert isinstance(pair, Pair)
    assert '"poor_spans": [{"quote": ", long ago.", "reason": "Unverifiable"' in pair.target


def test_z_holds_as_much_of_a_critique_as_the_reward_model_can_learn(imported: Config) -> None:
    found = next(record for record in feedback(imported) if record.spans)
    spans = [span.model_copy(update={"reason": "Unverifiable: nobody says so"}) for span in found.spans]
    record = found.model_copy(update={"spans": tuple(spans)})

    def read(**settings: Any) -> Critique:
        pair = reward_data.reward_pair(record, RewardModelSettings(**settings))
        assert pair
        judgement = wire.parse(pair.target, record.response)
        assert isinstance(judgement, Critique)
        return judgement

    whole, bare = read(), read(critique=False, reasons=False)
    assert (whole.text, whole.spans) == (record.critique, record.spans)
    assert (bare.text, {span.reason for span in bare.spans}) == ("", {""})
    places = [(span.start, span.end, span.label) for span in record.spans]
    assert [(span.start, span.end, span.label) for span in bare.spans] == places


@pytest.mark.parametrize(
    ("score", "taught"), [(-5 / 7, "-0.7"), (1.0, "1.0"), (-0.04, "0.0"), (0.25, "0.2"), (None, None)]
)
def test_a_score_is_taught_with_one_digit(imported: Config, score: float | None, taught: str | None) -> None:
    record = next(each for each in feedback(imported) if each.spans).model_copy(update={"score": score})
    pair = reward_data.reward_pair(record, RewardModelSettings())
    assert pair and re.findall(r'"score": ([^}]*)}', pair.target) == ([] if taught is None else [taught])


def test_a_grounded_model_is_not_taught_a_list_it_cannot_write(imported: Config) -> None:
    record = next(each for each in feedback(imported) if each.spans).model_copy(
        update={"meta": {"omissions": ["how"]}}
    )
    targets = {
        grounded: reward_data.reward_pair(record, RewardModelSettings(grounded=grounded))
        for grounded in ("off", "auto", "on")
    }
    assert {name: "omissions" in pair.target for name, pair in targets.items() if pair} == {
        **dict.fromkeys(("auto", "on"), False),
        "off": True,
    }


def test_annotating_keeps_what_others_said_and_replaces_its_own(imported: Config) -> None:
    path = imported.run.folder / "feedback.jsonl"
    people = feedback(imported)
    program = people[0].model_copy(update={"id": "p", "source": Source(kind="program")})
    write_jsonl(path, [*people, program])
    changed = program.model_copy(update={"id": "q"})
    assert write_feedback(path, [changed], replaces="program") == len(people)
    assert list(read_jsonl(path, Feedback)) == [*people, changed]
    assert write_feedback(path.with_name("none.jsonl"), []) == 0 and not path.with_name("none.jsonl").exists()
