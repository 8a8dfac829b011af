"""Fixtures of text2grad's tests for the lab's tests: tiny models and the real command line."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from places import ROOT
from text2grad.cli import app
from text2grad_lab.__main__ import register

TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS / "e2e"))
PRODUCT_COMMANDS = list(app.registered_commands)
register()
ALL_COMMANDS = list(app.registered_commands)
app.registered_commands = PRODUCT_COMMANDS  # other tests see only the product


@pytest.fixture(autouse=True)
def lab_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the commands of the lab with those of the product."""
    monkeypatch.setattr(app, "registered_commands", list(ALL_COMMANDS))


def _module(name: str) -> ModuleType:
    spec = spec_from_file_location(name, TESTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


for _name in ("conftest", "e2e/conftest"):
    globals().update({key: value for key, value in vars(_module(_name)).items() if not key.startswith("_")})
