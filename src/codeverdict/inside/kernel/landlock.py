"""Landlock: which files a process may read and write, whoever it runs as (Linux 5.13 and newer).

Numbers from include/uapi/linux/landlock.h. What a kernel does not know yet is left out (`abi`).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from codeverdict.inside.kernel import system

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_VERSION = 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _TRUNCATE = 1 << 7, 1 << 8, 1 << 14
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""ABI -> how many rights on files it knows."""

READ = _READ_FILE | _READ_DIR
WRITE = READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
DEVICE = _READ_FILE | _WRITE_FILE
MINIMUM_ABI = 3
"""The first that keeps a process from cutting files it may not write."""


def abi() -> int:
    """The version of Landlock this kernel speaks, 0 for none."""
    try:
        return system.call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


class Rules:
    """The rules "nothing but these paths", to be made again and again, each time with one path
    more.

    Network and signals to other processes are refused too where the kernel knows how. All that can
    be is prepared: a server makes rules for every job, and what it does between forks has it copy
    memory.
    """

    def __init__(self, paths: Iterable[tuple[int, int]], own: int) -> None:
        """`paths`: (O_PATH descriptor of a file or folder, rights) pairs; `own`: the rights of the
        path to come."""
        version = abi()
        self._handled = (1 << _FILE_RIGHTS.get(version, 16)) - 1
        attributes = struct.pack("QQQ", self._handled, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
        size = 8 if version < 4 else 16 if version < 6 else 24
        self._create = (_CREATE_RULESET, ctypes.create_string_buffer(attributes, 24), size, 0)
        self._paths = [self._rule(descriptor, rights) for descriptor, rights in paths]
        self._own = own

    def _rule(self, descriptor: int, rights: int) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(struct.pack("=Qi", rights & self._handled, descriptor), 12)

    def made(self, folder: int) -> int:
        """A descriptor of the rules with this folder (an O_PATH descriptor) among them.

        Raises:
            OSError: no Landlock, or a path that is not there.
        """
        made = system.call(*self._create)
        for rule in (*self._paths, self._rule(folder, self._own)):
            system.call(_ADD_RULE, made, _PATH_BENEATH, rule, 0)
        return made


def restrict(made: int) -> None:
    """Put this process, and all it starts, under the rules. It must have no_new_privs.

    Raises:
        OSError: refused.
    """
    system.call(_RESTRICT_SELF, made, 0)
    os.close(made)
