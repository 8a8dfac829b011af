"""System calls that the standard library lacks, through ctypes, for Linux on x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import operator
import os
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_fork = ctypes.PyDLL(None, use_errno=True).fork

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522


def machine() -> str:
    """Return the name of the architecture; only `x86_64` and `aarch64` have a sandbox."""
    return os.uname().machine


def prctl(option: int, argument: int = 0, other: int = 0) -> None:
    """Call prctl(2), or raise OSError."""
    _check(_libc.prctl(option, argument, other, 0, 0))


def call(number: int, *args: Any) -> int:
    """Make a system call by number, or raise OSError."""
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _check(_libc.syscall(ctypes.c_long(number), *words))


_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()


def drop_capabilities() -> None:
    """Drop every capability, or raise OSError; with no_new_privs they cannot be regained."""
    _check(_libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES))


def fork() -> int:
    """Call fork(2) without Python's hooks, which take a millisecond; needs a single thread.

    Raises:
        OSError: refused; BlockingIOError if there are too many processes at the moment.
    """
    return _check(int(_fork()))


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_SHORT = 64
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_ITEMS = object.__basicsize__ + _POINTER  # offset of the pointer to a list's items, after their number


def same_items(one: list[Any], other: list[Any]) -> bool:
    """Return True if two lists hold the same objects; a loop over 50,000 would be too slow."""
    if len(one) != len(other):
        return False
    if len(one) < _SHORT:
        return all(map(operator.is_, one, other))
    addresses = (ctypes.c_void_p.from_address(id(items) + _ITEMS).value for items in (one, other))
    return int(_libc.memcmp(*addresses, len(one) * _POINTER)) == 0
