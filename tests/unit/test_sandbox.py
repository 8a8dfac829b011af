"""The sandbox as this package uses it: our errors and settings, and known verdicts on published
programs."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from codeverdict import launch
from places import SHARED
from text2grad.config import find_config, load_config
from text2grad.errors import UsageError, UserError
from text2grad.sandbox import Runner, SandboxSettings
from text2grad.signals import StopRequest
from text2grad.stages import critics
from text2grad.stages.critics import MOST_PROGRAMS, make_runner

SECONDS = 60.0  # mbpp-123 takes ten on a busy machine

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")


def test_a_machine_without_protection_is_one_line_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PROBED", {})
    monkeypatch.setattr(launch.landlock, "abi", lambda: 0)
    with Runner() as runner, pytest.raises(UserError, match=r"bubblewrap.*Landlock.*--sandbox.tier none") as raised:
        runner.run("def f(): pass\n", "def test(): pass\n")
    assert "\n" not in str(raised.value)


def test_sandbox_settings_are_a_section() -> None:
    demo = find_config("demo")
    sandbox = load_config(demo, ["--sandbox.tier=none", "--sandbox.seconds=3"]).sandbox
    assert isinstance(sandbox, SandboxSettings) and (sandbox.tier, sandbox.seconds) == ("none", 3.0)
    with pytest.raises(UsageError, match="did you mean"):
        load_config(demo, ["--sandbox.second=3"])


@pytest.mark.parametrize(("cores", "programs"), [(1, 1), (3, 3), (64, MOST_PROGRAMS)])
def test_parallel_programs_are_limited_by_cores(cores: int, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critics, "count_cores", lambda: cores)
    with make_runner(SandboxSettings()) as runner:
        assert runner.workers == programs


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(seconds=SECONDS, workers=2) as made:
        yield made


def ilf_rows() -> list[dict[str, Any]]:
    text = (SHARED / "ilf_code_feedback" / "surge_annotations.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def ilf_tests(row: dict[str, Any]) -> str:
    name = [line for line in row["prompt"].splitlines() if line.startswith("def ")][-1][4:].partition("(")[0]
    return f"from solution import {name}\n{row['test']}\ndef test_it():\n    check({name})\n"


@needs_shared
def test_human_repairs_pass_and_the_originals_fail(runner: Runner) -> None:
    rows = ilf_rows()
    fixed = runner.run_all([(row["unedited_annotator_completion"], ilf_tests(row)) for row in rows])
    assert Counter(verdict.outcome for verdict in fixed) == {"passed": 195}
    wrong = runner.run_all([(row["original_model_completion"], ilf_tests(row)) for row in rows])
    assert len(wrong) == 195 and not any(verdict.passed for verdict in wrong)


def test_waiting_for_a_program_ends_at_a_signal() -> None:
    """Thirty programs never end; the first of them is running."""
    with pytest.raises(SystemExit), StopRequest(), Runner(seconds=1.0, tier="none") as runner:
        runner.run("def f():\n    return 1\n", "def test():\n    assert f()\n")  # the server is there
        jobs = [(f"while True:\n    {n}\n", "def test():\n    pass\n") for n in range(30)]
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        runner.run_all(jobs)
    assert len(runner._verdicts) < len(jobs) / 2
