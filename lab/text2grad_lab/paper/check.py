"""Run every step of the paper's list on tiny models and data, generated in a temporary folder.

This needs no network, GPU or key. Each step runs its own command with one step of PPO and two
evaluation problems, so that a broken command is found before the expensive training before it.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from text2grad.data import files
from text2grad_lab.paper import tiny_world
from text2grad_lab.paper.steps import Step


def check(selected: Sequence[Step]) -> dict[str, Any]:
    """Run steps in a tiny world, data sets in parallel; return the counts and the failed steps.

    A step that uses the output of another step needs that step in `selected`.
    """
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", OPENAI_API_KEY="none")  # before torch is imported
    parts = [
        [step for step in selected if step.data == data] for data in dict.fromkeys(step.data for step in selected)
    ]
    with TemporaryDirectory() as name, chdir(name):
        tiny_world.make_models(Path())
        tiny_world.write_files(Path())
        # Not forked: torch may have started threads here.
        with multiprocessing.get_context("spawn").Pool(min(len(parts), os.cpu_count() or 1)) as pool:
            problems = [line for lines in pool.imap_unordered(check_part, parts) for line in lines]
    lines = dict(problems)
    failed = [{"name": step.name, "line": lines[step.name]} for step in selected if lines[step.name]]
    code = 1 if failed else 0
    return {"steps": len(selected), "ran": len(selected) - len(failed), "failed": failed, "exit_code": code}


def check_part(part: Sequence[Step]) -> list[tuple[str, str]]:
    """Run steps in order in the current folder; return names with error lines ("": success)."""
    problems = []
    with tiny_world.chat_endpoint() as url, mock.patch.object(files, "_hub_rows", tiny_world.hub_rows):
        os.environ["OPENAI_BASE_URL"] = url
        for step in part:
            started = time.perf_counter()
            problems.append((step.name, check_step(step)))
            status = f"{step.name} ({time.perf_counter() - started:.1f} s)"
            print(f"{status} FAILED: {problems[-1][1]}" if problems[-1][1] else status, file=sys.stderr, flush=True)
    return problems


def check_step(step: Step) -> str:
    """Run the command of a step with `tiny_world.SMALL`; return its error line, or ""."""
    from text2grad.cli import main as text2grad
    from text2grad_lab.__main__ import register

    register()
    link_checkpoints(step)
    output = StringIO()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(output):
            text2grad([*step.words, *tiny_world.SMALL.get(step.words[0], ()), "--json"])
    except SystemExit as exited:
        lines = [line for line in output.getvalue().splitlines() if line.strip()] or ["no output"]
        return "" if not exited.code else f"exit code {exited.code}: {lines[-1]}"
    except Exception as error:  # a bug in the command: report one line and run the other steps
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def link_checkpoints(step: Step) -> None:
    """Link later checkpoints named in a command to the policy after the single PPO step."""
    for word in step.words:
        match = re.fullmatch(r"(.*/ppo/(\w+))/\2-step-\d+", word)
        if match and Path(word).parent.is_dir() and not Path(word).exists():
            Path(word).symlink_to(Path("policy"), target_is_directory=True)
