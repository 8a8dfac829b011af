"""The few system calls the standard library does not offer, through ctypes. Linux on x86_64 and
aarch64."""

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
    """`x86_64`, `aarch64`, or another name, for which there is no sandbox."""
    return os.uname().machine


def prctl(option: int, argument: int = 0, other: int = 0) -> None:
    """prctl(2).

    Raises:
        OSError: refused.
    """
    _check(_libc.prctl(option, argument, other, 0, 0))


def call(number: int, *args: Any) -> int:
    """A system call by number.

    Raises:
        OSError: refused.
    """
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _check(_libc.syscall(ctypes.c_long(number), *words))


_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()


def drop_capabilities() -> None:
    """Give up every capability; with no_new_privs none ever comes back.

    Raises:
        OSError: refused.
    """
    _check(_libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES))


def fork() -> int:
    """fork(2) without Python's own work around it, which costs a millisecond: for a process of one
    thread only.

    Raises:
        OSError: refused, BlockingIOError where there are too many processes at this moment.
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
_ITEMS = object.__basicsize__ + _POINTER  # where in a list the address of its items is: behind their number


def same_items(one: list[Any], other: list[Any]) -> bool:
    """True if the same objects are in two lists. A loop over 50,000 would take longer than a
    message."""
    if len(one) != len(other):
        return False
    if len(one) < _SHORT:
        return all(map(operator.is_, one, other))
    places = (ctypes.c_void_p.from_address(id(each) + _ITEMS).value for each in (one, other))
    return int(_libc.memcmp(*places, len(one) * _POINTER)) == 0
