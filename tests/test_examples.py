"""Every file in examples/ runs as it stands, in a folder of its own, and says what it did."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from places import ROOT
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*words: str, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example says what it did"
    return done.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What an example says; each runs once, and leaves nothing where it was started."""

    @cache
    def output(name: str) -> str:
        folder = tmp_path_factory.mktemp(name)
        text = run(str(ROOT / "examples" / f"{name}.py"), cwd=folder)
        assert list(folder.iterdir()) == []
        return text

    return output


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_it_runs(name: str, said: Callable[[str], str]) -> None:
    assert said(name)


def test_a_scheme_of_ones_own_pays_each_token(said: Callable[[str], str]) -> None:
    assert [line.split()[0] for line in said("own_scheme").splitlines()] == ["+1"] * 4 + ["-1", "+0", "+0"]


def test_a_file_is_read_by_the_importer_of_ones_own(tmp_path: Path) -> None:
    example = ROOT / "examples" / "own_importer.py"
    (tmp_path / "own_importer.py").write_bytes(example.read_bytes())
    tickets = runpy.run_path(str(example))["TICKETS"]
    (tmp_path / "tickets.jsonl").write_text("\n".join(map(json.dumps, tickets)), encoding="utf-8")
    words = ["import", "tickets.jsonl", "--kind", "own_importer:HELP_DESK", "--scale", "1..5", "--json"]
    run("-m", "text2grad.cli", *words, "--out", "out.jsonl", cwd=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(record["id"], record["score"]) for record in records] == [("7", -0.5), ("8", 1.0)]
    (span,) = records[0]["spans"]
    assert (span["text"], span["label"], span["reason"]) == ("next week", -1, "the letter says Friday")
    assert records[1]["critique"] == "Quick and right." and records[0]["meta"]["dataset"] == "help_desk"


def test_a_model_learns_from_the_critic_of_ones_own(said: Callable[[str], str]) -> None:
    before, after = map(int, re.findall(r"digits \w+: (\d+)%", said("own_critic")))
    assert before < 10 and after > 90  # eight seeds: 98 (this one) and seven times 100


def test_the_command_line_takes_a_critic_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples"))
    (tmp_path / "answers.jsonl").write_text('{"prompt": "How many?", "response": "12 or so"}\n', "utf-8")
    words = "annotate --responses answers.jsonl --out o.jsonl --task.name qa --critic.kind own_critic:OnlyNumbers"
    run("-m", "text2grad.cli", *words.split(), "--json", cwd=tmp_path)
    (record,) = read_jsonl(tmp_path / "o.jsonl", Feedback)
    assert [(span.text, span.label) for span in record.spans] == [("12", 1), (" or so", -1)]


def test_a_policy_of_trl_learns_from_a_critic_in_another_process(said: Callable[[str], str]) -> None:
    lines = said("served_critic").splitlines()
    before, after = re.findall(r"\d\.\d\d", lines[-1])
    assert lines[0].startswith("the critic at http://127.0.0.1:") and float(before) < 0.3 < 0.9 < float(after)
