"""Jobs that the server plays through in itself before the first one: what they leave in memory, each job inherits.

Python 3.11 and later rewrite code while it runs the first times; done after the fork, that is done for every job,
and copies the pages it is on. The programs here are ours.
"""

from __future__ import annotations

import _thread
import os
import sys
import warnings

from codeverdict.inside import frames, remote, rpc, solution_side, test_side

_TIMES = 12
_SOLUTION = """
def f(xs):
    return sum(x for x in xs if x > 1)

class C:
    def __init__(self, x):
        self.x = x
"""
_TESTS = """
import pytest
from solution import C, f

@pytest.mark.parametrize("x", [1, 2])
def test_f(x):
    assert f([1, 2, 3]) == 5 and f([]) == 0
    assert C(x).x == x

def test_error():
    with pytest.raises(TypeError):
        f(None)
"""


def rehearse() -> None:
    """Play jobs through, with a thread for the solution that has ended when this returns."""
    kept = sys.stdout, sys.stderr, {name: sys.modules.get(name) for name in ("solution", "tests", "pytest")}
    filters, show = warnings.filters[:], warnings.showwarning
    try:
        for _ in range(_TIMES):
            _job()
        remote.forget()
    finally:
        sys.stdout, sys.stderr, modules = kept
        warnings.filters[:], warnings.showwarning = filters, show  # type: ignore[index]
        for name, module in modules.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def _job() -> None:
    to_solution, to_tests, verdict = os.pipe(), os.pipe(), os.pipe()
    code, tests = _holding({"code": _SOLUTION, "coverage": False}), _holding({"tests": _TESTS, "coverage": False})
    ended = _thread.allocate_lock()  # not `threading`: a server must stay small
    ended.acquire()
    _thread.start_new_thread(_solution, (code, to_solution[0], to_tests[1], ended))
    test_side.judge(tests, to_tests[0], to_solution[1], verdict[1])
    os.close(to_solution[1])
    ended.acquire()
    for descriptor in (to_solution[0], *to_tests, *verdict):
        os.close(descriptor)


def _holding(message: dict[str, object]) -> int:
    """A pipe with one frame in it."""
    reader, writer = os.pipe()
    frames.send(writer, message)
    os.close(writer)
    return reader


def _solution(code: int, reader: int, writer: int, ended: _thread.LockType) -> None:
    try:
        solution_side.serve(code, reader, writer)
    except rpc.Gone:
        return
    finally:
        ended.release()
