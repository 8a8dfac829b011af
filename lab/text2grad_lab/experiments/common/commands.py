"""Commands that are run once, in a folder of their own, and what they say of a reward model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from text2grad.demo import run_command
from text2grad.errors import UserError
from text2grad.stages.run_folder import write_json
from text2grad_lab.experiments.common.options import Row, preset_name

FIGURES = ("poor_f1", "good_f1", "verdict_order")


def lines_of(folder: Path) -> list[str]:
    """The records of a run, as they stand in the file."""
    return (folder / "feedback.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)


def prompt_of(line: str) -> str:
    return json.dumps(json.loads(line)["prompt"])


def rates(report: Row) -> Row:
    """What is told of a reward model that was measured on critiques."""
    row = {each: report.get(each) for each in FIGURES}
    row["random_poor_f1"] = report["baselines"]["random_spans"]["poor_f1"]
    row["verdict_r"] = (report["verdict"] or {}).get("r")
    return row


def command(folder: Path, name: str, words: Sequence[str], settings: Sequence[str], task: str) -> Row:
    """The result of a command of text2grad with the preset of a task, which is run unless it has been."""
    note, log = folder / "notes" / f"{name}.json", folder / "notes" / f"{name}.log"
    if words and not note.is_file():
        note.parent.mkdir(parents=True, exist_ok=True)
        laid = [f"--{each}" for each in (f"run.folder={folder}", *settings)]
        at = words.index("--config") if "--config" in words else len(words)
        line = [*words[:at], "--config", preset_name(task), *words[at:], *laid, "--json"]
        print(f"{folder}: {name}", file=sys.stderr, flush=True)
        code, _ = run_command([sys.executable, "-m", "text2grad.cli", *line], log)
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        if code:
            raise UserError(f"{folder}: {name} failed: {' '.join(last)}", f"its whole output is in {log}")
        write_json(note, json.loads(last[0]))
    return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
