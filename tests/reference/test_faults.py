"""Every planted one-line fault of faults/*.toml makes a reference test fail: the tests are seen to
fail.

A faulty copy of the module is executed in this process and put where the reference tests look for
it; the tests run as plain functions, which takes a few seconds for all faults together.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import test_advantage
import test_credit
import test_loss
import test_offline
import test_vocabulary

import text2grad

FAULTS = Path(__file__).parent / "faults"
SOURCES = Path(text2grad.__file__).parent
TESTS = {
    "advantage": test_advantage,
    "credit": test_credit,
    "loss": test_loss,
    "offline": test_offline,
    "vocabulary": test_vocabulary,
}


class Fault(NamedTuple):
    """`line` of `file` of `package` (without indentation) becomes `fault`."""

    package: str
    name: str
    file: str
    line: str
    fault: str

    @property
    def source(self) -> str:
        return (SOURCES / self.package / self.file).read_text("utf-8")


def read_faults() -> list[Fault]:
    lists = {each.stem: tomllib.loads(each.read_text("utf-8"))["fault"] for each in sorted(FAULTS.iterdir())}
    return [Fault(package, **entry) for package, entries in lists.items() for entry in entries]


def checks(module: str) -> Iterator[Callable[[], None]]:
    for name, function in vars(TESTS[module]).items():
        if name.startswith("test_"):
            yield function


def plant(fault: Fault) -> ModuleType:
    """The module with the faulty line in it, executed under its own name but not registered as
    imported."""
    planted = "\n".join(
        line.replace(fault.line, fault.fault) if line.strip() == fault.line else line
        for line in fault.source.splitlines()
    )
    module = ModuleType(f"text2grad.{fault.package}.{Path(fault.file).stem}")
    exec(compile(planted, f"{fault.file} with {fault.name}", "exec"), module.__dict__)
    return module


def passes(check: Callable[[], None]) -> bool:
    """Whether the check holds; a crash of the faulty code is a failure too, as it would be under
    pytest."""
    try:
        check()
    except (AssertionError, ValueError, RuntimeError, IndexError, pytest.fail.Exception):
        return False
    return True


@pytest.mark.parametrize("fault", read_faults(), ids=lambda fault: fault.name)
def test_fault_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.strip() for line in fault.source.splitlines()].count(fault.line) == 1, (
        "the list of faults is stale"
    )
    name = Path(fault.file).stem
    monkeypatch.setattr(TESTS[name], name, plant(fault))
    assert not all(map(passes, checks(name))), f"no reference test notices: {fault.name}"


@pytest.mark.parametrize("name", TESTS)
def test_the_module_without_a_fault_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded the same way, unchanged: what is caught above is the fault, not the way it is
    planted."""
    package = "align" if name == "credit" else "rl"
    monkeypatch.setattr(TESTS[name], name, plant(Fault(package, "nothing", f"{name}.py", "", "")))
    for check in checks(name):
        check()


def test_the_list_is_long_and_names_are_unique() -> None:
    faults = read_faults()
    assert len(faults) >= 18
    assert len({fault.name for fault in faults}) == len(faults)
    assert {fault.file for fault in faults} == {f"{name}.py" for name in TESTS}
