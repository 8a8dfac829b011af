"""The sandbox as a package of its own: its exports, its settings, its README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import codeverdict
from codeverdict import SandboxSettings


def test_the_exports_are_sorted_and_exist() -> None:
    assert codeverdict.__all__ == sorted(codeverdict.__all__, key=lambda name: (not name.isupper(), name))
    assert all(getattr(codeverdict, name) is not None for name in codeverdict.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Prison'"):
        codeverdict.Prison  # noqa: B018


def test_the_import_loads_nothing_that_a_sandboxed_process_could_use() -> None:
    code = "import sys, codeverdict; print([name for name in sys.modules if name.startswith('codeverdict.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unknown_settings_are_refused_and_known_ones_do_not_change() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        SandboxSettings.model_validate({"tire": "none"})
    with pytest.raises(ValidationError, match="frozen"):
        SandboxSettings().seconds = 3  # type: ignore[misc]


def test_the_example_in_its_readme_does_what_it_says() -> None:
    readme = Path(codeverdict.__file__).with_name("README.md").read_text(encoding="utf-8")
    code, said = re.findall(r"```(?:python|text)\n(.*?)```", readme, re.DOTALL)[:2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == said
