"""Reject tasks whose tests pass for a program that solves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from codeverdict import reading
from codeverdict.inside import perform
from codeverdict.runner import REFERENCE_SECONDS, Job, Runner


@dataclass(frozen=True)
class Gate:
    """The decision on a task; `reason` names the stub that passes or the reference's failure."""

    accepted: bool
    reason: str = ""


def stub_gate(runner: Runner, tests: str, *names: str, reference: str = "") -> Gate:
    """Accept a task if its reference passes and no stub does.

    Stubs are about thirty programs that solve nothing. Unlike the objects of a program, theirs are
    trusted in their order and their equality with plain values. The runner caches the decision.

    Args:
        *names: the names that stubs define; by default those that the tests import from `solution`.
        reference: a correct program, if any. Without one, tests that give no verdict are accepted,
            because they have a separate outcome.
    """
    task = (tests, names, reference)
    if task not in runner.gates:
        runner.gates[task] = _gate(runner, tests, names or reading.read_test_file(tests).solution_names, reference)
    gate: Gate = runner.gates[task]
    return gate


def _gate(runner: Runner, tests: str, names: tuple[str, ...], reference: str) -> Gate:
    if reference:
        patient = Job(reference, tests, seconds=max(REFERENCE_SECONDS, runner.seconds))
        if not (verdict := runner.wait(runner.submit(patient))).passed:
            return Gate(False, f"the reference: {verdict.outcome}{f': {verdict.error}' if verdict.error else ''}")
    submitted = (
        [(stub, runner.submit(Job(code, tests, lenient=True))) for stub, code in stubs(names)] if names else []
    )
    for stub, future in submitted:
        if runner.wait(future).passed:
            for _, other in submitted:
                other.cancel()
            return Gate(False, f"the tests pass for {stub}")
    return Gate(True)


_CONSTANTS = ("None", "True", "False", "0", "1", "-1", "''", "[]", "{}", "float('nan')")
_ARGUMENT_RESULTS = {
    "its first argument": "first",
    "its first argument, sorted": "sorted(first)",
    "its first argument, reversed": "first[::-1]",
    "the length of its first argument": "len(first)",
    "its last argument": "last",
    "an empty iterator": "iter(())",
    "a list of the right length with nothing in it": "Hollow(first)",
    "an object whose methods give back what they are given": "Echo()",
    "an object that contains everything": "Full()",
    "text that contains everything": "FullText()",
    "an object that lies between all bounds": "Between()",
    "an always-equal object": "Yes()",
    "an object that is equal to everything, and nothing else": "Equal()",
    "an empty array": "__import__('numpy').array([])",
}
_ERRORS = (
    "ValueError",
    "TypeError",
    "KeyError",
    "IndexError",
    "AttributeError",
    "ZeroDivisionError",
    "RuntimeError",
    "NotImplementedError",
    "StopIteration",
    "Exception",
)
_CLASSES = {
    "a class of always-equal objects": "Yes",
    "a class of objects that lie between all bounds": "Between",
    "a class whose methods give back what they are given": "Echo",
    "a class whose methods do nothing": "Idle",
}
_HELPERS = """
class Hollow(list):
    def __init__(self, xs): self.size = len(xs) if hasattr(xs, '__len__') else 1
    def __len__(self): return self.size
    def __getitem__(self, i): return self
class Echo:
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name): return lambda *args, **kwargs: args[0] if args else None
class Full(list):
    def __contains__(self, x): return True
class FullText(str):
    def __contains__(self, x): return True
    def startswith(self, *args): return True
    endswith = startswith
class Equal:
    def __eq__(self, other): return True
class Idle:
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name): return lambda *args, **kwargs: None
    def __enter__(self): return self
    def __exit__(self, *error): return True
"""
_IS_ERROR = re.compile(r"(?:Error|Exception|Warning)$")


def stubs(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (description, code) of programs that define these names and solve nothing."""
    errors = [name for name in names if _IS_ERROR.search(name)]
    others = [name for name in names if name not in errors] or list(names)
    shared = _HELPERS + _object("Yes", "True") + _object("Between", "False")
    shared += "".join(f"class {name}(Exception): pass\n" for name in errors)
    for constant in _CONSTANTS:
        yield f"a function that returns {constant}", shared + _functions(others, f"return {constant}")
    for what, expression in _ARGUMENT_RESULTS.items():
        yield f"a function that returns {what}", shared + _functions(others, f"return {expression}")
    for error in (*_ERRORS, *errors[:1]):
        yield f"a function that raises {error}", shared + _functions(others, f"raise {error}(first)")
    for what, base in _CLASSES.items():
        yield what, shared + "".join(f"class {name}({base}): pass\n" for name in others)


def _functions(names: list[str], body: str) -> str:
    """Return the code of functions with this body."""
    preamble = "    given = [*args, *kwargs.values()] or [None]\n    first, last = given[0], given[-1]\n"
    return "".join(f"def {name}(*args, **kwargs):\n{preamble}    {body}\n" for name in names)


def _object(name: str, equal: str) -> str:
    """Return the code of a class whose objects answer yes, or the closest value of another type."""
    answers = {
        **dict.fromkeys(("__hash__", "__len__", "__int__", "__index__", "__length_hint__", "__round__"), "1"),
        **dict.fromkeys(("__next__", "__enter__", "__aiter__", "__copy__", "__deepcopy__"), "self"),
        **dict.fromkeys(("__str__", "__repr__", "__format__", "__fspath__"), "'yes'"),
        **dict.fromkeys(("__lt__", "__le__", "__gt__", "__ge__"), "True"),
        **dict.fromkeys(("__bool__", "__contains__", "__exit__"), "True"),
        **{"__iter__": "iter([self])", "__reversed__": "iter([self])", "__bytes__": "b'yes'", "__float__": "1.0"},
        **{"__complex__": "1j", "__eq__": equal, "__ne__": "False"},
    }
    code = f"class {name}:\n    def __init__(self, *args, **kwargs):\n        pass\n"
    code += f"    def __getattr__(self, name):\n        return {name}()\n"
    for operation in sorted({*perform.OPERATIONS} - perform.AWAITED):
        code += (
            f"    def {operation}(self, *args, **kwargs):\n        return {answers.get(operation, f'{name}()')}\n"
        )
    return code
