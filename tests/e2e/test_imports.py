"""Files of other tools through the real command: right, or one line with a cure that is tried
(`tests/formats`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from commands import Command

from text2grad.commands.judge import READ_KINDS
from text2grad.data.records import KINDS

ROOT = Path(__file__).parents[2]
CASES = sorted(path.parent for path in (ROOT / "tests" / "formats").glob("*/expected.json"))


@pytest.fixture(scope="module")
def imports() -> ModuleType:
    spec = importlib.util.spec_from_file_location("imports", ROOT / "benchmarks" / "imports.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_of_a_tool(command: Command, imports: ModuleType, tmp_path: Path, case: Path) -> None:
    def run(words: Sequence[str]) -> object:
        ended = command(*words)
        return imports.Ended(ended.code, ended.out + ended.err)

    assert imports.faults(case, tmp_path / "case", run) == []


def test_what_differs_is_a_fault(command: Command, imports: ModuleType, tmp_path: Path) -> None:
    case = tmp_path / "wrong"
    case.mkdir()
    (case / "remarks.jsonl").write_text(
        '{"prompt": "p", "response": "It is so.", "poor": ["so"]}\n', encoding="utf-8"
    )
    record = {"response": "It is so.", "spans": [[6, "so", 1]]}
    expected = imports.json.dumps({"file": "remarks.jsonl", "records": [record], "says": ["never said"]})
    (case / "expected.json").write_text(expected, encoding="utf-8")

    def run(words: Sequence[str]) -> object:
        ended = command(*words)
        return imports.Ended(ended.code, ended.out + ended.err)

    found = imports.faults(case, tmp_path / "case", run)
    assert len(found) == 2 and "never said" in found[0] and "[[6, 'so', -1]]" in found[1]


def test_the_help_names_every_kind() -> None:
    *kinds, own = READ_KINDS.rstrip(".").split(", ")
    assert sorted(kinds) == sorted(KINDS) and own == "or module:NAME"
