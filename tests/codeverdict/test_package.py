"""The sandbox as a package of its own: what it exports, its settings, and that its corpora attack what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from corpus import DATA
from pydantic import ValidationError

import codeverdict
from codeverdict import SandboxSettings


def test_the_list_of_exports_is_sorted_and_true() -> None:
    assert codeverdict.__all__ == sorted(codeverdict.__all__, key=lambda name: (not name.isupper(), name))
    assert all(getattr(codeverdict, name) is not None for name in codeverdict.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Prison'"):
        codeverdict.Prison  # noqa: B018


def test_importing_it_loads_nothing_that_a_sandboxed_process_could_use() -> None:
    code = "import sys, codeverdict; print([name for name in sys.modules if name.startswith('codeverdict.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unknown_settings_are_refused_and_known_ones_do_not_change() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        SandboxSettings.model_validate({"tire": "none"})
    with pytest.raises(ValidationError, match="frozen"):
        SandboxSettings().workers = 2  # type: ignore[misc]


def names_in(text: str) -> set[tuple[str, str]]:
    """(module, attribute) for each name in the sandbox's own modules that a program reaches for."""
    modules = re.findall(r"codeverdict\.inside(?:\.| import )(\w+)", text)
    found = {pair for module in modules for pair in re.findall(rf"\b({module})\.(_?[A-Za-z]\w+)", text)}
    return found | {(module, "__name__") for module in modules}


@pytest.mark.parametrize("file", sorted(DATA.glob("*.txt")), ids=lambda file: file.name)
def test_what_programs_reach_for_in_the_sandbox_is_there(file: Path) -> None:
    """A program that forges by a name that has moved is no test of anything."""
    wanted = names_in(file.read_text(encoding="utf-8"))
    missing = [pair for pair in wanted if not hasattr(import_module(f"codeverdict.inside.{pair[0]}"), pair[1])]
    assert missing == []


def test_the_example_in_its_readme_does_what_it_says() -> None:
    readme = Path(codeverdict.__file__).with_name("README.md").read_text(encoding="utf-8")
    code, said = re.findall(r"```(?:python|text)\n(.*?)```", readme, re.DOTALL)[:2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == said
