"""docs/architecture.md speaks of what exists: every room, file and function, and no room is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from layers import SOURCE
from places import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOUSE = SOURCE / "text2grad"
ROWS = re.findall(r"^\| .* \| `(\S+\.py)` \| `(\S+)` \|$", PAGE, re.MULTILINE)


def names_in(file: Path) -> set[str]:
    """Functions and classes of a file, and methods as `Class.method`."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def rooms_on_the_plan() -> set[str]:
    """The rooms of the floor plan, which stand in its second column; what they are for is indented further."""
    plan = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)[0].partition("---")[0]
    return {word for line in plan.splitlines() if not line.startswith(" " * 14) for word in line[13:].split()}


def test_the_plan_has_every_room_and_no_other() -> None:
    parts = {file.stem for file in HOUSE.iterdir() if file.suffix == ".py" or (file / "__init__.py").exists()}
    assert rooms_on_the_plan() == parts - {"__init__"}


def test_every_room_has_its_paragraph() -> None:
    described = PAGE.partition("## The rooms")[2].partition("## The life")[0]
    rooms = rooms_on_the_plan()
    assert {room for room in rooms if not re.search(rf"`{room}(/|\.py)`", described)} == set()


@pytest.mark.parametrize(("file", "name"), ROWS)
def test_every_function_in_the_life_of_a_critique_exists(file: str, name: str) -> None:
    assert (HOUSE / file).is_file()
    assert name in names_in(HOUSE / file)


def test_the_life_of_a_critique_goes_from_the_policy_to_the_gradient() -> None:
    assert len(ROWS) > 10
    assert ROWS[0][0].startswith("policy/") and ROWS[-1] == ("train/update.py", "apply_gradient")


def test_every_file_named_exists() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)) - {"src/text2grad/"}
    assert len(named) > 25
    assert {name for name in named if not any((place / name).exists() for place in (ROOT, SOURCE, HOUSE))} == set()


def test_ppo_step_is_where_the_page_says() -> None:
    assert "ppo_step" in names_in(HOUSE / "train" / "ppo.py")
