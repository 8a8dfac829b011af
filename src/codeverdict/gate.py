"""The stub gate: a task whose tests pass for a program that solves nothing must not train or measure anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from codeverdict.inside import operations, rewrite
from codeverdict.runner import Runner


@dataclass(frozen=True)
class Gate:
    """Whether a task may be used; `reason` says which stub passes its tests."""

    accepted: bool
    reason: str = ""


def stub_gate(runner: Runner, tests: str, *names: str) -> Gate:
    """Run the tests against stubs for `names` (those the tests take from `solution` if none are given).

    The stubs: functions that return None, their first argument, or an object that says yes to everything, and a
    class of such objects. Tests that give no verdict are not rejected here: they have an outcome of their own.
    """
    for what, code in stubs(names or taken_names(tests)):
        if runner.run(code, tests).passed:
            return Gate(False, f"the tests pass for {what}")
    return Gate(True)


def taken_names(tests: str) -> tuple[str, ...]:
    """Names that a test file imports from `solution`, or uses without defining them; () if it cannot be parsed."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "solution"
        for alias in node.names
        if alias.name != "*"
    ]
    return tuple(dict.fromkeys([*found, *rewrite.wanted_names(tree, rewrite.nodes_of(tree))]))


def stubs(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(what it is, code) of programs that define these names and solve nothing."""
    yield "a function that returns None", _each(names, "def {name}(*args, **kwargs):\n    return None\n")
    first = "def {name}(*args, **kwargs):\n    return args[0] if args else next(iter(kwargs.values()), None)\n"
    yield "a function that returns its first argument", _each(names, first)
    yield "an always-equal object", _yes() + _each(names, "def {name}(*args, **kwargs):\n    return Yes()\n")
    yield "a class of always-equal objects", _yes() + _each(names, "class {name}(Yes):\n    pass\n")


def _each(names: tuple[str, ...], template: str) -> str:
    return "".join(template.format(name=name) for name in names)


def _yes() -> str:
    """A class whose objects answer every question with yes, or with the closest value of the required type."""
    answers = {
        "__hash__": "1",
        "__len__": "1",
        "__iter__": "iter([self])",
        "__next__": "self",
        "__enter__": "self",
        "__str__": "'yes'",
        "__repr__": "'yes'",
        "__format__": "'yes'",
        "__bytes__": "b'yes'",
        "__int__": "1",
        "__index__": "1",
        "__float__": "1.0",
        "__complex__": "1j",
        "__bool__": "True",
        "__contains__": "True",
        "__exit__": "False",
        "__ne__": "False",
        "__length_hint__": "1",
        **dict.fromkeys([*operations.ORDER, "__eq__"], "True"),
    }
    code = "class Yes:\n    def __init__(self, *args, **kwargs):\n        pass\n"
    code += "    def __getattr__(self, name):\n        return Yes()\n"
    for name in sorted(operations.OPERATIONS):
        code += f"    def {name}(self, *args, **kwargs):\n        return {answers.get(name, 'Yes()')}\n"
    return code
