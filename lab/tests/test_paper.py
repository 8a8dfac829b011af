"""The paper's list of steps: commands, prices, tables, the runner and lab/paper.md."""

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
from text2grad_lab.paper import check, runner, steps, tables

UNIT_MODEL = "text2grad_lab.baselines.units:UNIT_MODEL"
PAGE = ROOT / "lab" / "paper.md"
STEPS = steps.steps()


def parsed(arguments: Sequence[str]) -> Config | None:
    """Parse options, presets and settings of a command without running it.

    Returns its configuration, if it has one.
    """
    words, overrides = split_overrides(arguments)
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
def test_invalid_commands_are_detected(wrong: list[str]) -> None:
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


def checked(selected: Sequence[steps.Step]) -> None:
    """Check steps together with the wrong ones, which alone must fail, each with its line."""
    base = "meta-llama/Meta-Llama-3-8B-Instruct"
    wrong = [
        dataclasses.replace(STEPS[0], name=name, words=tuple(words.format(base=base).split()))
        for name, (words, _) in WRONG.items()
    ]
    result = check.check([*selected, *wrong])
    assert (result["steps"], result["ran"]) == (len(selected) + len(WRONG), len(selected)), result["failed"]
    lines = {row["name"]: row["line"] for row in result["failed"]}
    assert lines.keys() == WRONG.keys()
    for name, (_, says) in WRONG.items():
        assert lines[name].startswith(says) and "\n" not in lines[name]


def test_steps_that_fail_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    by_name = {step.name: step for step in STEPS}
    labelled = ("steps_annotate", "steps_annotate_heldout")
    names = ("sft", "annotate", *labelled, "train_steps", "train_prm", "measure_prm")
    checked([by_name[f"slf5k/{name}"] for name in names])
    assert "sft (" in capfd.readouterr().err


@pytest.mark.nightly
def test_every_step_is_run() -> None:
    checked(STEPS)


def test_a_bug_fails_only_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: Sequence[str]) -> None:
        if words[0] == "feedback-report":
            raise ZeroDivisionError("division\nby zero")
        raise SystemExit(None)

    monkeypatch.setattr("text2grad.cli.main", broken)
    by_name = {step.name: step for step in STEPS}
    assert check.check_step(by_name["slf5k/feedback_report"]) == "ZeroDivisionError: division by zero"
    assert check.check_step(by_name["slf5k/sft"]) == ""


def paper(*words: str) -> int:
    """Run `paper` with these words and return its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        main(repeat_listed(["paper", *words, "--json"]))
    return int(exit_info.value.code or 0)


@pytest.mark.parametrize("failed", [[], [{"name": "slf5k/sft", "line": "exit code 1: error: no"}]])
def test_a_check_ends_with_json_and_an_exit_code(
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


def test_a_steps_cost_follows_its_row() -> None:
    by_name = {step.name: step for step in STEPS}
    ppo = by_name["slf5k/train"]
    assert ppo.gpu_hours == pytest.approx(1667 * 0.49 / 60 * 8)
    assert ppo.h100_hours == pytest.approx(1667 * 12 * 44.5 / 64 / 3600)
    assert (ppo.gpu_gb, by_name["slf5k/feedback_report"].gpu_gb) == (66.6, 0)
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
    assert data["rollouts"] == ppo.rollouts


def test_missing_requirements_are_one_line_with_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(runner, "devices", lambda: [])
    monkeypatch.setattr(runner, "lacking_on_hub", lambda rows: [f"no hub for {len(rows)}"])
    assert paper() == 1
    message = capsys.readouterr().err.splitlines()[-1]
    for part in (
        "a GPU",
        "OPENAI_API_KEY",
        "data/mt_bench/question.jsonl",
        "data/MbppPlus.jsonl.gz",
        "no hub for 12",
    ):
        assert part in message
    assert list(tmp_path.iterdir()) == []


def ready_machine(monkeypatch: pytest.MonkeyPatch, gpus: list[str]) -> None:
    """Simulate a machine with these GPUs and no missing requirement."""
    monkeypatch.setattr(runner, "devices", lambda: gpus)
    monkeypatch.setattr(runner, "lacking", lambda *_: [])


def test_a_finished_step_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "text2grad"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\necho progress\necho \'{{"spans": 3}}\'\nexit ${{CODE:-0}}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(steps, "steps", lambda *_: [STEPS[0]])
    ready_machine(monkeypatch, [""])
    monkeypatch.setenv("CODE", "1")
    assert paper() == 1 and not list(runner.NOTES.iterdir())
    assert "slf5k/sft failed (exit code 1)" in capfd.readouterr().err
    monkeypatch.setenv("CODE", "3")
    assert paper() == paper() == 0
    assert (tmp_path / "ran").read_text().splitlines() == ["sft --config slf5k --json"] * 2
    assert "1 of 1 steps are done" in capfd.readouterr().err
    [record] = [json.loads(file.read_text()) for file in runner.NOTES.iterdir()]
    assert (record["code"], record["summary"]) == (3, {"spans": 3})
    assert not runner.is_done(STEPS[4])


def test_the_plan_needs_nothing_and_ends_with_its_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("--plan", "--only", "slf5k") == 0
    lines = capsys.readouterr().out.splitlines()
    selected = [step for step in STEPS if step.group == "slf5k"]
    assert json.loads(lines[-1]) == steps.totals(selected, 2.5)
    assert sum(line.startswith("slf5k/") for line in lines) == len(selected)


BY_NAME = {step.name: step for step in STEPS}


def test_a_step_comes_after_its_prerequisites() -> None:
    places = {step.name: number for number, step in enumerate(STEPS)}
    for step in STEPS:
        assert all(places[name] < places[step.name] for name in step.after), step.name


def test_a_table_is_run_with_its_prerequisites() -> None:
    selected = [step.name for step in steps.select(STEPS, ["table16", "table17", "mistral/slf5k_mistral_base"])]
    needed = ["sft", "annotate", "steps_annotate", "steps_annotate_heldout", "train_steps"]
    assert selected[:-1] == [f"{data}/{name}" for data in ("slf5k", "kodcode") for name in needed]
    assert selected[-1] == "mistral/slf5k_mistral_base"
    assert len(steps.select(STEPS, ["slf5k"])) == sum(step.group == "slf5k" for step in STEPS)
    with pytest.raises(UsageError, match="no part 'table20'"):
        steps.select(STEPS, ["table20"])


@pytest.mark.parametrize("number", tables.read_tables())
def test_a_table_names_steps_of_the_list_and_has_a_figure_for_each_column(number: int) -> None:
    assert set(tables.steps_of(number)) <= BY_NAME.keys()
    table = tables.fill_table(number, Path("no/such/folder"))
    for name, cells in table.rows:
        assert list(cells) == table.columns, name
        if number not in (9, 10):
            assert all(cell.ours is None for cell in cells.values())


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_a_table_has_means_over_seeds_and_steps_for_missing_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place = "runs/slf5k/evaluation/summarization-SLF5K/sft.json"
    write(tmp_path, {place: {"greedy_rouge_l": 0.2, "greedy_bleu": 0.04}})
    write(tmp_path / "seed-1", {place: {"greedy_rouge_l": 0.3, "greedy_bleu": None}})
    write(tmp_path, {"runs/slf5k/config.yaml": "policy: {model: meta/Llama}\n"})
    assert paper("--table", "2", "11") == 0
    first, second = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    row = next(row for row in first["rows"] if row["name"] == "SFT")
    assert (row["paper"]["R-L"], row["ours"]["R-L"], row["seeds"]["R-L"]) == (0.195, pytest.approx(0.25), 2)
    assert (row["ours"]["BLEU"], row["seeds"]["BLEU"], row["ours"]["R-1"]) == (0.04, 1, None)
    assert (row["model"], len(row["date"])) == ("Llama", 10)
    assert row["missing"]["BERTScore"]["steps"] == ["slf5k/measure_sft", "slf5k/texts_slf5k"]
    assert second["table"] == 11
    tables.show_tables([tables.fill_table(2, tmp_path)])
    output = capsys.readouterr().out
    assert "0.195 | 0.250" in output and "0.380 | –" in output and "1–2" in output
    assert "– SFT: --only slf5k/measure_sft slf5k/texts_slf5k\n" in output


def test_cells_are_arithmetic_on_values_of_files(tmp_path: Path) -> None:
    metrics = {"seconds_generate": 30.0, "seconds_critique": 15.0, "seconds_score": 5.0, "seconds_update": 10.0}
    judge = {"win": 0.621, "tie": 0.09, "loss": 0.289}
    write(
        tmp_path,
        {
            "runs/slf5k/ppo/text2grad/metrics.jsonl": json.dumps({"step": 0, **metrics}) + "\n",
            "runs/slf5k/ppo/scalar_rm/metrics.jsonl": json.dumps({"step": 0, **metrics, "seconds_critique": 0})
            + "\n",
            "runs/slf5k/evaluation/reward_model.full.json": {"judge": judge},
            "runs/ultrafeedback/alpaca_dpo/judge/leaderboard.csv": ",length_controlled_winrate\ndpo,31.5\nx,9\n",
            **{
                f"runs/paper/{data}-feedback_report.json": {"summary": {"unmatched_rate": 0.01 * n, "usd": n}}
                for n, data in enumerate(("kodcode", "slf5k", "ultrafeedback"), start=1)
            },
        },
    )

    def texts(number: int, row: str) -> list[str]:
        return [cell.text.split(" | ")[1] for cell in dict(tables.fill_table(number, tmp_path).rows)[row].values()]

    assert texts(13, "SLF5K") == ["0.75", "1.00", "1.33"]
    assert texts(1, "SLF5K")[4] == "62:9:29"
    assert texts(4, "DPO")[0] == "31.5"
    assert texts(15, "average") == ["2.00", "98.00"]
    assert texts(14, "total")[2] == "6.00" and texts(14, "total")[0] == "–"
    assert texts(10, "initial KL coefficient") == ["0.2", "0.05", "0.07"]
    assert texts(10, "training epochs") == ["4.0008", "4", "4"]
    assert texts(9, "LoRA targets") == ["q_proj:v_proj"]


def test_steps_run_in_parallel_each_on_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "text2grad"
    program.write_text(
        f'#!/bin/sh\necho "$1 $CUDA_VISIBLE_DEVICES" >> {tmp_path}/ran\n'
        f"i=0; while [ $1 = one ] && ! grep -q two {tmp_path}/ran && [ $i -lt 200 ]\n"
        "do sleep 0.05; i=$((i+1)); done\n"
        "echo oops >&2; echo '{}'\n[ $1 != bad ]\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    ready_machine(monkeypatch, ["4", "7"])

    def step(name: str, **fields: Any) -> steps.Step:
        return dataclasses.replace(STEPS[0], name=f"slf5k/{name}", words=(name,), **fields)

    selected = [step("one"), step("two"), step("bad"), step("later", after=("slf5k/bad",))]
    selected += [step("last", after=("slf5k/one",), awaits=("slf5k/t*",))]
    summary = runner.run_paper(selected, keep_going=True)
    ran = dict(line.split() for line in (tmp_path / "ran").read_text().splitlines())
    assert {ran["one"], ran["two"]} == {"4", "7"} and "later" not in ran and "last" in ran
    assert (summary["ran"], summary["exit_code"]) == (3, 1)
    assert summary["failed"]["slf5k/later"] == "not run, it needs slf5k/bad"
    assert (runner.NOTES / "slf5k-one.log").read_text() == "oops\n"


def test_steps_that_share_a_file_do_not_overlap() -> None:
    one, two = (dataclasses.replace(STEPS[0], name=name, holds="journal") for name in ("a", "b"))
    assert runner.is_ready(one, [one, two], []) and not runner.is_ready(two, [two], [one])


def test_gated_hub_names_are_reported_with_a_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--here--model" / "snapshots").mkdir(parents=True)

    def refused(self: object, name: str, repo_type: str) -> None:
        assert (name, repo_type) != ("here/model", "model")
        if name == "meta/gated":
            raise GatedRepoError("gated", response=SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]
        if name == "far/data":
            raise OSError("no route")

    monkeypatch.setattr(HfApi, "auth_check", refused)
    rows: dict[str, Any] = {"here/model": {}, "meta/gated": {}, "open/data": {"data": True}}
    [line] = runner.lacking_on_hub(rows)
    assert line.startswith("meta/gated (accept its licence at https://huggingface.co/meta/gated")
    [line] = runner.lacking_on_hub({"far/data": {"data": True}, "far/other": {}})
    assert line == "the hub cannot be reached for far/data, far/other (no route)"


def test_the_papers_prompts_and_answers_change_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    selected = {step.name: " ".join(step.words) for step in steps.steps("paper", published=True, seed=2)}
    annotate = selected["slf5k/annotate"]
    assert "--critic.prompted.prompt text2grad_lab.prompts:summarization_b1" in annotate
    assert "--responses runs/slf5k/published.jsonl" in annotate and annotate.endswith("--run.seed 2")
    assert "--judge.prompt code_e2" in selected["kodcode/measure_reward"]
    assert "--judge.prompt summarization_e1" in selected["slf5k/judge_dpo"]
    assert "--run.seed" not in selected["slf5k/feedback_report"]
    assert "slf5k/published" not in BY_NAME and "published" not in " ".join(BY_NAME["slf5k/annotate"].words)
    for step in steps.steps("paper", published=True):
        configuration(step.words)


def test_published_answers_are_checked_in_the_tiny_world() -> None:
    all_steps = steps.steps("paper", published=True)
    names = [f"{data}/annotate" for data in ("slf5k", "kodcode", "ultrafeedback")]
    result = check.check(steps.select(all_steps, names))
    assert (result["steps"], result["failed"]) == (12, [])
