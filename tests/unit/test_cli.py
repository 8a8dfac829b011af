"""The command line: what it hands to the stages, what it prints where, and how it leaves."""

from __future__ import annotations

import atexit
import errno
import gc
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from safetensors import SafetensorError

import text2grad
from span_cases import case, critique, word_span
from text2grad.cli import main
from text2grad.commands.console import split_overrides
from text2grad.config import Config, dump_config, find_config, load_config
from text2grad.errors import EXIT_BUDGET, EXIT_FAILED, UserError
from text2grad.eval.critics.reward_model import reward_model_report
from text2grad.stages import Summary, inlined
from text2grad.stages.paid import AnnotateOptions
from text2grad.tasks.base import TaskSettings

Run = Callable[..., tuple[int, str, str]]
STAGES = (
    "annotate",
    "evaluate.answers",
    "evaluate.policy",
    "intake",
    "merge",
    "train",
    "reward_model.train",
    "sft",
)


class Stages(ModuleType):
    """Stand-in for the modules of the stages and `.demo`: notes each call; answers with `summary`,
    or raises it."""

    def __init__(self) -> None:
        super().__init__("text2grad.stages")
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.summary: Summary | Mapping[str, Any] | BaseException = {"records": 2}

    def __getattr__(self, name: str) -> Callable[..., Summary | Mapping[str, Any]]:
        if not name.startswith(("run_", "build_report")):
            raise AttributeError(name)
        # `presets` are of a page: what differs from the preset
        return lambda *given, presets=None, **options: self._answer(name, (*given, *options.values()))

    def _answer(self, name: str, given: tuple[Any, ...]) -> Summary | Mapping[str, Any]:
        self.calls.append((name, given))
        if isinstance(self.summary, BaseException):
            raise self.summary
        return self.summary


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    fake = Stages()
    for name in (*(f"stages.{stage}" for stage in STAGES), "demo", "page.report"):
        monkeypatch.setitem(sys.modules, f"text2grad.{name}", fake)
    return fake


@pytest.fixture
def run(stages: Stages, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("train", "--json")` -> exit code, stdout, stderr; in a folder where nothing has been
    run."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(words)
        assert isinstance(left.value.code, int)
        return (left.value.code, *capsys.readouterr())

    return call


# What the stages are given


ARGILLA = ["import", "in.json", "--kind", "argilla", "--out", "o.jsonl"]
RUNS: list[tuple[list[str], str, tuple[object, ...]]] = [
    (ARGILLA, "run_import", (Path("in.json"), "argilla", Path("o.jsonl"), [], [], False, "", False)),
    (
        ["import", "in.json", "--config", "human_qa"],
        "run_import",
        (Path("in.json"), "auto", None, [], [], False, "", False),
    ),
    (["annotate"], "run_annotate", (None, None, AnnotateOptions())),
    (
        ["annotate", "--out", "o.jsonl", "--limit", "3", "--anchor"],
        "run_annotate",
        (None, Path("o.jsonl"), AnnotateOptions(limit=3, anchor=True)),
    ),
    (["sft"], "run_sft", ("auto",)),
    (["sft", "--restart"], "run_sft", ("restart",)),
    (["train-reward", "--force"], "run_train_reward", ("force",)),
    (["train"], "run_train", ("text2grad", "auto")),
    (["train", "--name", "scalar_ppo"], "run_train", ("scalar_ppo", "auto")),
    (["evaluate"], "run_evaluate", ("text2grad", None)),
    (["demo"], "run_demo", ()),
]


def test_each_command_runs_its_stage(run: Run, stages: Stages) -> None:
    for words, stage, given in RUNS:
        code, out, _ = run(*words, "--run.seed", "5")
        name, (config, *found) = stages.calls[-1]
        assert isinstance(config, Config)
        assert (code, out, name, tuple(found), config.run.seed) == (0, "", stage, given, 5)
        assert config.task.name == ("qa" if "human_qa" in words else "demo")
    assert len(stages.calls) == len(RUNS)


DATA_PRESETS = ["ultrafeedback", "slf5k", "kodcode", "own", "human_qa"]


@pytest.mark.parametrize("preset", DATA_PRESETS)
def test_another_task_drops_the_settings_of_the_previous_one(run: Run, stages: Stages, preset: str) -> None:
    """The same task keeps its data."""

    def task_of(task: str, *words: str) -> TaskSettings:
        assert run("evaluate", "sft", "--config", preset, "--task", task, *words)[0] == 0
        settings = stages.calls[-1][1][0].task
        assert isinstance(settings, TaskSettings)
        return settings

    for task in ("demo", "toy_task:Toy"):
        assert task_of(task) == TaskSettings(name=task)
        given = TaskSettings(name=task, data="d", limit=2)
        assert task_of(task, "--task.data", "d", "--task.limit", "2") == given
        former = TaskSettings(name=task, heldout_data="x.jsonl", seed=3)
        assert task_of(task, "--task.heldout_data", "x.jsonl", "--task.seed", "3") == former
    same = load_config([find_config(preset)]).task
    assert task_of(same.name) == same
    assert task_of(same.name, "--task.limit", "7") == same.model_copy(update={"limit": 7})


def test_another_task_drops_the_task_of_a_run(run: Run, stages: Stages, tmp_path: Path) -> None:
    kept = load_config([find_config("ultrafeedback")], ["--run.folder", str(tmp_path)])
    (tmp_path / "config.yaml").write_text(dump_config(kept), encoding="utf-8")
    for task, settings in (("code", TaskSettings(name="code")), ("qa", kept.task)):
        assert run("evaluate", "sft", "--run.folder", str(tmp_path), "--task", task)[0] == 0
        assert stages.calls[-1][1][0].task == settings


def test_the_demo_of_a_model_is_a_preset(run: Run, stages: Stages) -> None:
    assert run("demo", "--model", "smollm2")[0] == 0
    [(_, (config,))] = stages.calls
    assert (config.task.name, config.policy.model) == ("function_summaries", "smollm2")
    code, _, said = run("demo", "--model", "smolm2")
    assert code == 2 and "no demo of the model 'smolm2'" in said and "tiny or smollm2" in said


@dataclass(frozen=True, kw_only=True)
class PolicyAnswer(Summary):
    report: Mapping[str, Any] = inlined()


def test_the_table_of_a_reward_model_is_shown_and_its_report_printed(run: Run, stages: Stages) -> None:
    gold = critique(word_span(1, 0, 3), word_span(-1, 7, 9))
    stages.summary = PolicyAnswer(report=reward_model_report([case(gold, gold)]))
    code, out, err = run("evaluate", "some/folder", "--task", "reward-model", "--json")
    assert [name for name, _ in stages.calls] == ["run_evaluate_reward_model"]
    assert (code, json.loads(out)["records"], err) == (0, 1, "")
    figures = {"fresh_paid": 0.0, "fresh": 0, "spoiled_paid": 0.0, "spoiled": 0}
    gate = {"fit": False, "reasons": ["why"], "cautions": [], "figures": figures}
    stages.summary = PolicyAnswer(report={**reward_model_report([case(gold, gold)]), "gate": gate})
    code, _, err = run("evaluate", "some/folder", "--task", "reward-model")
    assert code == 0 and "Reward model against 1 held-out critiques" in err
    assert "Not fit to train against:\n- why" in err


def test_report_takes_a_folder_and_no_settings(run: Run, stages: Stages) -> None:
    assert run("report", "runs/demo")[0] == 0
    assert stages.calls == [("build_report", (Path("runs/demo"),))]
    code, _, err = run("report", "runs/demo", "--run.seed", "5")
    assert (code, len(stages.calls)) == (2, 1)
    assert err == "error: report takes no settings, got --run.seed (text2grad report --help)\n"


def test_settings_may_be_in_any_position(run: Run, stages: Stages) -> None:
    words = "--ppo.lr 1e-3 train --run.folder=somewhere --config slf5k --name x --ppo.lr=2e-3"
    run(*words.split())
    [(_, (config, name, _))] = stages.calls
    assert (config.ppo.lr, config.run.folder, name) == (2e-3, Path("somewhere"), "x")
    assert config.generation.max_new_tokens == 89


def test_settings_are_distinguished_from_options() -> None:
    cases = {
        "a --x.y 1 b": ("a b", "--x.y 1"),
        "--x.y=1 --json": ("--json", "--x.y=1"),
        "--x.y -1": ("", "--x.y -1"),
        "--out=a.b c.d -v.w": ("--out=a.b c.d -v.w", ""),
        "--x.y": ("", "--x.y"),
        "a -- --x.y 1": ("a -- --x.y 1", ""),
    }
    for words, (options, settings) in cases.items():
        assert split_overrides(words.split()) == (options.split(), settings.split())


# What is printed where, and how it leaves


def test_json_is_the_last_line_of_stdout(run: Run, stages: Stages) -> None:
    stages.summary = {"text2grad": {"seeds": [0.25, math.nan]}, "out": Path("x"), "text": "é\n"}
    code, out, err = run("demo", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[-1]) == {"text2grad": {"seeds": [0.25, None]}, "out": "x", "text": "é\n"}


def test_without_json_the_summary_is_text_on_stderr(run: Run, stages: Stages) -> None:
    stages.summary = {"records": 2, "reward_model": {"good_precision": 0.12345}}
    code, out, err = run("train-reward")
    assert (code, out) == (0, "")
    assert err == "records: 2\nreward model\n  good precision: 0.1235\n"


def test_the_exit_code(run: Run, stages: Stages) -> None:
    spent = UserError("2 USD\nare spent", "raise it", EXIT_BUDGET)
    cases: list[tuple[Any, int, str]] = [
        ({"failed_records": 1}, 3, ""),
        ({"failed_records": 0}, 0, ""),
        (spent, EXIT_BUDGET, "error: 2 USD are spent (raise it)\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ]
    for summary, code, line in cases:
        stages.summary = summary
        found, out, err = run("train-reward")
        assert (found, out) == (code, "") and (not line or err == line)


def test_a_bug_keeps_its_traceback(stages: Stages) -> None:
    stages.summary = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        main(["train"])


# The program itself


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "text2grad.cli", *words], capture_output=True, text=True, check=False
    )


def test_version_and_help_without_a_command() -> None:
    done = program("--version")
    assert (done.returncode, done.stdout) == (0, f"text2grad {text2grad.__version__}\n")
    alone, asked = program(), program("--help")
    assert (alone.returncode, alone.stdout) == (0, asked.stdout)
    assert "text2grad doctor" in alone.stdout


def test_output_that_nobody_reads_is_no_traceback() -> None:
    """As when `head` has read its lines."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "text2grad.cli", "doctor"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (EXIT_FAILED, "")


def cpu_seconds(*words: str) -> float:
    before = os.times()
    assert program(*words).returncode == 0
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def test_help_takes_less_than_half_a_second() -> None:
    # Processor time, best of three: wall time is other people's business on a shared machine.
    assert min(cpu_seconds("train", "--help") for _ in range(3)) < 0.5


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "out.jsonl"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EROFS, "Read-only file system", "out.jsonl"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        shutil.Error([("sft/a", "policy/a", "[Errno 28] No space left on device: 'policy/a'")]),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_exhausted_memory_or_disk_is_one_line_everywhere(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(typer, "echo", full)
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    said = capsys.readouterr().err
    assert left.value.code == 1 and said.startswith("error: ") and said.count("\n") == 1
    assert str(getattr(error, "filename", None) or "") in said


def test_the_cure_of_a_command_for_exhausted_memory_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise UserError("train: step 1: out of memory", "lower ppo.rollouts") from MemoryError()

    monkeypatch.setattr(typer, "echo", full)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().err == "error: train: step 1: out of memory (lower ppo.rollouts)\n"


@pytest.mark.parametrize("modules", [(), ("triton",)])
def test_the_last_collection_is_skipped_without_triton(
    modules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    for name in modules:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    with pytest.raises(SystemExit):
        main(["--version"])
    registered[0]()
    assert bool(frozen) is not bool(modules)
