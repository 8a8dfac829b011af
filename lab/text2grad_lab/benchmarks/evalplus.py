"""EvalPlus: HumanEval and MBPP with many more inputs; the reference solution computes the expected
values.

The published files (`HumanEvalPlus.jsonl.gz`, `MbppPlus.jsonl.gz`) hold inputs and a reference, but
no expected values. The test module contains the reference and runs it for each call, in the test
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any

from text2grad_lab.benchmarks.checks import as_test

_INPUTS_PER_TEST = 50


def plus_module(row: Mapping[str, Any], reference: str) -> str:
    """Return the test module of a task: a test per base input, the other inputs in groups.

    Raises:
        ValueError: the inputs are not lists of arguments.
    """
    entry_point, mbpp = str(row["entry_point"]), str(row.get("task_id", "")).startswith("Mbpp/")
    tolerance = float(row.get("atol") or 0)
    base, plus = (restore_types(row, key) for key in ("base_input", "plus_input"))
    head = f"""
from copy import deepcopy
from solution import {entry_point}

inf, nan = float("inf"), float("nan")
REFERENCE = {{}}
exec({reference!r}, REFERENCE)


def expected(*arguments):
    value = REFERENCE[{entry_point!r}](*deepcopy(arguments))
    return Expected({entry_point!r}, arguments, value, {tolerance!r}, {mbpp!r})
"""
    tests = []
    for number, arguments in enumerate(base, start=1):
        listed = ", ".join(map(repr, arguments))
        tests.append(as_test(f"test_base_{number}", f"assert {entry_point}({listed}) == expected({listed})"))
    for number, start in enumerate(range(0, len(plus), _INPUTS_PER_TEST), start=1):
        group = [tuple(arguments) for arguments in plus[start : start + _INPUTS_PER_TEST]]
        check = f"assert {entry_point}(*deepcopy(arguments)) == expected(*arguments)"
        tests.append(as_test(f"test_plus_{number}", f"for arguments in {group!r}:\n    {check}"))
    oracle = (resources.files("text2grad_lab.benchmarks") / "plus_oracle.py").read_text(encoding="utf-8")
    return "\n\n".join([oracle.rstrip(), head.strip(), *tests]) + "\n"


def restore_types(row: Mapping[str, Any], key: str) -> list[list[Any]]:
    """Restore types that JSON lost: some MBPP functions take tuples, sets or complex numbers.

    Raises:
        ValueError: not a list of lists.
    """
    inputs = row[key]
    if not isinstance(inputs, list) or not all(isinstance(arguments, list) for arguments in inputs):
        raise ValueError(f"{key} is not a list of argument lists")
    task = str(row.get("task_id", ""))
    number = int(task[5:]) if task.startswith("Mbpp/") and task[5:].isdigit() else 0
    restore = next((function for numbers, function in _TYPES if number in numbers), list)
    return [restore(arguments) for arguments in inputs]


def _tuples(values: Iterable[Any]) -> list[Any]:
    return [tuple(value) for value in values]


def _deep_tuple(value: Any) -> Any:
    return tuple(map(_deep_tuple, value)) if isinstance(value, list) else value


_TUPLES = "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809"
_LISTS_OF_TUPLES = {63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780}
_TYPES: tuple[tuple[set[int], Callable[[list[Any]], list[Any]]], ...] = (
    ({int(number) for number in _TUPLES.split()}, _tuples),
    (_LISTS_OF_TUPLES, lambda arguments: [_tuples(item) for item in arguments]),
    ({75, 413, 444, 753}, lambda arguments: [_tuples(arguments[0]), *arguments[1:]]),
    ({106, 750}, lambda arguments: [arguments[0], tuple(arguments[1]), *arguments[2:]]),
    ({115}, lambda arguments: [[set(item) if isinstance(item, list) and item else {} for item in arguments[0]]]),
    ({124}, lambda arguments: [float(arguments[0]), complex(arguments[1])]),
    ({250, 307, 405, 446, 617, 720, 763, 808}, lambda arguments: [tuple(arguments[0]), *arguments[1:]]),
    ({259, 401, 445}, lambda arguments: [tuple(_tuples(item)) for item in arguments]),
    ({278}, lambda arguments: [tuple(tuple(item) if isinstance(item, list) else item for item in arguments[0])]),
    ({722}, lambda arguments: [{key: tuple(value) for key, value in arguments[0].items()}, *arguments[1:]]),
    ({252}, lambda arguments: [complex(arguments[0])]),
    ({580, 615, 791}, lambda arguments: [_deep_tuple(item) for item in arguments]),
)
"""Conversions of arguments by MBPP's task numbers (evalplus 0.3.1)."""
