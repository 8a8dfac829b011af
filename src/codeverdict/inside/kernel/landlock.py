"""Restrict file access with Landlock, independently of the user (Linux 5.13 and newer).

The numbers are from include/uapi/linux/landlock.h. Rights that a kernel does not support are left
out (`abi`).
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
"""ABI version -> number of file access rights it supports."""

READ_RIGHTS = _READ_FILE | _READ_DIR
WRITE_RIGHTS = READ_RIGHTS | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
DEVICE_RIGHTS = _READ_FILE | _WRITE_FILE
MINIMUM_ABI = 3
"""The first version that prevents truncating files without write access."""


def abi() -> int:
    """Return the Landlock ABI version of this kernel, or 0."""
    try:
        return system.call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


class Rules:
    """A template of rulesets that allow some paths and one additional folder.

    Network access and signals to other processes are also refused if the kernel supports it. As
    much as possible is prepared in advance, because work of a server between forks copies memory.
    """

    def __init__(self, paths: Iterable[tuple[int, int]], folder_rights: int) -> None:
        """Prepare the rules.

        `paths`: (O_PATH descriptor of a file or folder, rights) pairs. `folder_rights`: the rights
        in the additional folder.
        """
        version = abi()
        self._handled = (1 << _FILE_RIGHTS.get(version, 16)) - 1
        attributes = struct.pack("QQQ", self._handled, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
        size = 8 if version < 4 else 16 if version < 6 else 24
        self._create = (_CREATE_RULESET, ctypes.create_string_buffer(attributes, 24), size, 0)
        self._paths = [self._rule(descriptor, rights) for descriptor, rights in paths]
        self._folder_rights = folder_rights

    def _rule(self, descriptor: int, rights: int) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(struct.pack("=Qi", rights & self._handled, descriptor), 12)

    def create(self, folder: int) -> int:
        """Return the descriptor of a ruleset that also allows a folder (an O_PATH descriptor).

        Raises:
            OSError: there is no Landlock, or a path does not exist.
        """
        ruleset = system.call(*self._create)
        for rule in (*self._paths, self._rule(folder, self._folder_rights)):
            system.call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        return ruleset


def restrict(ruleset: int) -> None:
    """Apply a ruleset to this process (with no_new_privs) and its children, or raise OSError."""
    system.call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
