"""The kind of an object that the tests hold."""

from __future__ import annotations

import _io
import sys
import types
from typing import Any

from codeverdict.inside import resumed, values

TESTS_MODULE = "tests"
RESUMED: dict[type, str] = {resumed.GENERATOR: "g", resumed.ASYNC_GENERATOR: "h", resumed.COROUTINE: "k"}
"""How an object that is resumed is marked in a message."""


def of_the_tests(value: Any) -> bool:
    """Whether a value is a class that the tests define, or an instance of one."""
    kind = value if isinstance(value, type) else type(value)
    return kind.__module__ == TESTS_MODULE or kind is types.SimpleNamespace


def is_stream(value: Any) -> bool:
    """Whether a value is an open file, or a text or bytes in memory that can be used as one."""
    return isinstance(value, _io._IOBase)


def is_mock(value: Any) -> bool:
    """Whether a value is an object of `unittest.mock` that notes what is done to it, or a sentinel."""
    module = sys.modules.get("unittest.mock")
    if module is None:
        return False
    return isinstance(value, module.NonCallableMock) or type(value).__name__ == "_SentinelObject"


def is_array(value: Any) -> bool:
    np = values.numpy()
    return np is not None and type(value) is np.ndarray


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of the language: a generator, a map; not a file."""
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")


def crosses_as_handle(value: Any) -> bool:
    if type(value).__module__ in ("threading", "_thread") or type(value) is types.SimpleNamespace:
        return True
    return of_the_tests(value) or is_iterator(value) or type(value) in RESUMED or is_mock(value) or is_stream(value)
