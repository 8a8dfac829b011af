"""The list of lab/text2grad_lab/paper and lab/paper.md: commands that exist, prices that add up,
one line for what is missing."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from places import ROOT
from text2grad.cli import _refuse_unknown_options, app, main
from text2grad.commands.console import split_overrides
from text2grad.commands.measure import TARGETS
from text2grad.config import Config, find_config, load_config
from text2grad.errors import UsageError
from text2grad.named import load_named
from text2grad.tasks.base import TASKS
from text2grad_lab.__main__ import repeat_listed
from text2grad_lab.paper import check, steps

UNIT_MODEL = "text2grad_lab.baselines.units:UNIT_MODEL"
PAGE = ROOT / "lab" / "paper.md"
STEPS = steps.steps()


def parsed(given: Sequence[str]) -> Config | None:
    """Read a command as the program reads it, up to the point where it would begin: options,
    presets, settings.

    Returns its configuration, where it has one.
    """
    words, overrides = split_overrides(given)
    words = repeat_listed(words)
    _refuse_unknown_options(words)
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    context = command.make_context(words[0], list(words[1:]), obj=overrides)
    if what := context.params.get("what"):
        assert what in TARGETS or load_named("task", what, TASKS.get(what, what)), what
    if "config" not in context.params:
        return None
    return load_config([find_config(name) for name in context.params["config"] or ["demo"]], overrides)


def test_every_step_is_a_command_that_exists() -> None:
    for step in STEPS:
        configuration(step.words)


@pytest.mark.parametrize(
    "wrong",
    [
        ["train", "--config", "slf5k", "--nmae", "x"],
        ["train", "--config", "slf5k", "--ppo.stepss", "3"],
        ["train", "--config", "no_such_preset"],
        ["train", "--config", "slf5k", "--credit.scheme", "no_such_scheme"],
    ],
)
def test_a_command_that_does_not_exist_is_found(wrong: list[str]) -> None:
    with pytest.raises(UsageError):
        parsed(wrong)


def test_the_page_names_steps_of_the_list_and_its_totals() -> None:
    page, names = PAGE.read_text("utf-8"), {step.name for step in STEPS}
    assert len(names) == len(STEPS)
    named = set(re.findall(r"`((?:slf5k|kodcode|ultrafeedback|mistral)/[\w+]+)`", page))
    assert len(named) > 20 and named <= names
    for line in steps.table(STEPS, 2.5):
        assert line in page, f"python -m text2grad_lab paper --plan prints: {line}"


@cache
def configuration(words: tuple[str, ...]) -> Config | None:
    return parsed(words)


WRONG = {
    "an unknown option": ("train --config slf5k --nmae x", "exit code 2: error: unknown option --nmae"),
    "a split of another task": (
        "choices {base} --config ultrafeedback --task.split [0.3,0.5,0.2]",
        "exit code 1: error: task 'text2grad_lab.benchmarks.arc:ARC' has predefined splits",
    ),
    "an unknown data set": (
        "evaluate sft --config slf5k --task.data no/such",
        "exit code 1: error: no split",
    ),
    "an untrained policy": ("evaluate nobody --config slf5k", "exit code 1: error: no policy 'nobody'"),
    "a missing file": ("refine runs/no.jsonl --config slf5k", "exit code 1: error: no feedback in"),
}
"""Commands of wrong steps, and the error lines that they fail with."""


def checked(chosen: Sequence[steps.Step]) -> None:
    """Check steps and those that are wrong: the latter alone fail, each with its line."""
    base = "meta-llama/Meta-Llama-3-8B-Instruct"
    wrong = [
        dataclasses.replace(STEPS[0], name=name, words=tuple(words.format(base=base).split()))
        for name, (words, _) in WRONG.items()
    ]
    found = check.check([*chosen, *wrong])
    assert (found["steps"], found["ran"]) == (len(chosen) + len(WRONG), len(chosen)), found["failed"]
    lines = {each["name"]: each["line"] for each in found["failed"]}
    assert lines.keys() == WRONG.keys()
    for name, (_, says) in WRONG.items():
        assert lines[name].startswith(says) and "\n" not in lines[name]


def test_steps_that_fail_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    by_name = {step.name: step for step in STEPS}
    checked([by_name[f"slf5k/{name}"] for name in ("sft", "annotate", "train_steps", "train_prm", "measure_prm")])
    assert "sft (" in capfd.readouterr().err


@pytest.mark.nightly
def test_every_step_is_run() -> None:
    checked(STEPS)


def test_a_bug_of_a_command_fails_its_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: Sequence[str]) -> None:
        if words[0] == "feedback-report":
            raise ZeroDivisionError("division\nby zero")
        raise SystemExit(None)

    monkeypatch.setattr("text2grad.cli.main", broken)
    by_name = {step.name: step for step in STEPS}
    assert check.check_step(by_name["slf5k/feedback_report"]) == "ZeroDivisionError: division by zero"
    assert check.check_step(by_name["slf5k/sft"]) == ""


def paper(*words: str) -> int:
    """Run `paper` with these words; its exit code."""
    with pytest.raises(SystemExit) as left:
        main(["paper", *words, "--json"])
    return int(left.value.code or 0)


@pytest.mark.parametrize("failed", [[], [{"name": "slf5k/sft", "line": "exit code 1: error: no"}]])
def test_the_last_line_of_a_check_is_json_and_its_code_says_whether_all_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failed: list[dict[str, str]]
) -> None:
    def check_part(part: Sequence[steps.Step]) -> list[tuple[str, str]]:
        lines = {row["name"]: row["line"] for row in failed}
        return [(step.name, lines.get(step.name, "")) for step in part]

    class Pool:
        __enter__ = __exit__ = lambda self, *_: self

        def imap_unordered(self, run: Any, parts: Any) -> Any:
            return map(check_part, parts)

    monkeypatch.setattr(check.multiprocessing, "get_context", lambda _: SimpleNamespace(Pool=lambda _: Pool()))
    monkeypatch.setattr(check.tiny_world, "make_models", lambda _: None)
    assert paper("--check") == (1 if failed else 0)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["steps"], result["ran"], result["failed"]) == (len(STEPS), len(STEPS) - len(failed), failed)


def test_a_step_costs_what_its_row_says() -> None:
    by_name = {step.name: step for step in STEPS}
    ppo = by_name["slf5k/train"]
    assert ppo.gpu_hours == pytest.approx(1667 * 0.49 / 60 * 8)
    annotate = by_name["slf5k/annotate"]
    assert annotate.chat_usd == pytest.approx(5500 * (1000 * 2.5 + 300 * 10) / 1e6)
    assert annotate.gpu_hours == pytest.approx(0.4e6 / 1000 / 3600)
    assert annotate.needs == ("gpu", "key") and by_name["slf5k/feedback_report"].needs == ()
    assert by_name["kodcode/base_mbpp+"].needs == ("gpu", "data/MbppPlus.jsonl.gz")
    assert steps.words_of(ppo)[:2] == ["text2grad", "train"]
    assert steps.words_of(by_name["slf5k/train_ilf"])[1:4] == ["-m", "text2grad_lab", "imitate"]


@pytest.mark.parametrize("name", ["slf5k", "kodcode", "ultrafeedback"])
def test_ppo_is_priced_by_the_steps_of_the_preset(name: str) -> None:
    data, ppo = steps.read_list()["data"][name], load_config(find_config(name)).ppo
    assert data["text2grad"][0] == data["scalar"][0] == ppo.steps


def test_what_is_missing_is_one_line_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(steps, "gpu_here", lambda: False)
    assert paper() == 1
    said = capsys.readouterr().err.splitlines()[-1]
    for part in ("a GPU", "OPENAI_API_KEY", "data/mt_bench/question.jsonl", "data/MbppPlus.jsonl.gz"):
        assert part in said
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_ended_well_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "text2grad"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\necho progress\necho \'{{"spans": 3}}\'\nexit ${{CODE:-0}}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(steps, "steps", lambda: [STEPS[0]])
    monkeypatch.setattr(steps, "gpu_here", lambda: True)
    monkeypatch.setenv("CODE", "1")
    assert paper() == 1 and not steps.NOTES.exists()
    assert "slf5k/sft failed (exit code 1)" in capfd.readouterr().err
    monkeypatch.setenv("CODE", "3")
    assert paper() == paper() == 0
    assert (tmp_path / "ran").read_text().splitlines() == ["sft --config slf5k --json"] * 2
    assert "1 of 1 steps are done" in capfd.readouterr().err
    [note] = [json.loads(file.read_text()) for file in steps.NOTES.iterdir()]
    assert (note["code"], note["summary"]) == (3, {"spans": 3})
    monkeypatch.setattr(steps, "steps", lambda: [STEPS[4]])
    assert not steps.is_done(STEPS[4])


def test_the_plan_needs_nothing_and_ends_with_its_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("--plan", "--only", "slf5k") == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = [step for step in STEPS if step.group == "slf5k"]
    assert json.loads(lines[-1]) == steps.totals(wanted, 2.5)
    assert sum(line.startswith("slf5k/") for line in lines) == len(wanted)
