"""What the tests do to this process and what the solution says in its own: each side as the other is.

Seeds, patched modules, variables of the environment and the current folder of the tests hold in the solution's
process too; what the solution prints, warns and logs comes out here.
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from codeverdict.inside import rpc, solution_side, values

OURS = ((sys, "stdout"), (sys, "stderr"), (sys, "stdin"), (sys, "argv"))
"""What `patched` leaves alone: it is mirrored in another way, or where it is looked at."""


class Mirror:
    """Keeps the solution's process like this one."""

    def __init__(self, peer: rpc.Peer) -> None:
        self.peer = peer
        peer.heard = self.heard
        self._environment = dict(os.environ)
        self._streams = sys.stdin
        self.log: Callable[[str, int, str], None] = lambda *_: None

    def watch_process(self) -> None:
        """Look before each request whether the environment or the input is another."""
        self.peer.before = self.now

    def watch_threads(self) -> None:
        """An assertion that fails in a thread of the tests fails the test."""
        import threading

        def note(said: Any) -> None:
            self.peer.dropped[id(said.exc_value)] = said.exc_value

        threading.excepthook = note

    def patch_both(self) -> None:
        """What `unittest.mock.patch` does to a module of the standard library, it does to the solution's too."""
        import unittest.mock

        kind: Any = vars(unittest.mock)["_patch"]
        enter, leave = kind.__enter__, kind.__exit__

        def patched(patch: Any) -> Any:
            made = enter(patch)
            self.patched(patch.target, patch.attribute)
            return made

        def unpatched(patch: Any, *error: Any) -> Any:
            target = patch.target
            left = leave(patch, *error)
            self.unpatched(target, patch.attribute)
            return left

        kind.__enter__, kind.__exit__ = patched, unpatched

    def log_both(self) -> None:
        """Log records of the solution are handled here as well."""
        import logging

        def handle(name: str, level: int, text: str) -> None:
            logger = logging.getLogger(str(name))
            if logger.isEnabledFor(level):
                logger.handle(logger.makeRecord(str(name), level, "<solution>", 0, str(text), (), None))

        self.log = handle
        logging.lastResort = None
        self.peer.request("log", None)

    def seed_both(self) -> None:
        """Tests that seed a generator of random numbers mean the solution's too."""
        import random

        plain = random.seed

        def seed(value: Any = None, *args: Any) -> None:
            plain(value, *args)
            self.peer.request("seed", None, args=(value, False))

        random.seed = seed  # type: ignore[assignment]
        np = sys.modules.get("numpy")
        if np is not None:
            arrays = np.random.seed

            def seed_arrays(value: Any = None) -> None:
                arrays(value)
                self.peer.request("seed", None, args=(value, True))

            np.random.seed = seed_arrays

    def now(self) -> None:
        """Have the solution's process be as this one where the tests changed it: variables of the environment, the
        input, attributes of modules that they patched."""
        if os.environ != self._environment:
            changed = {*self._environment.items()} ^ {*os.environ.items()}
            self._environment = dict(os.environ)
            for name in {name for name, _ in changed}:
                self.peer.request("environ", None, args=(name, os.environ.get(name)))
        if sys.stdin is not self._streams:
            self._streams = sys.stdin
            self.peer.request("patch", None, args=("sys", "stdin", True, sys.stdin))

    def patched(self, target: Any, name: str) -> None:
        """Set an attribute of a module of the standard library, which the tests have set, in the solution too."""
        if isinstance(target, types.ModuleType) and target.__name__ in values.STDLIB and (target, name) not in OURS:
            self.peer.request("patch", None, args=(target.__name__, name, True, getattr(target, name)))

    def unpatched(self, target: Any, name: str) -> None:
        """Undo that."""
        if isinstance(target, types.ModuleType) and target.__name__ in values.STDLIB and (target, name) not in OURS:
            self.peer.request("patch", None, args=(target.__name__, name, False, None))

    def set_environment(self, name: str, value: str | None) -> None:
        """Set a variable of the environment, or remove it."""
        solution_side.set_environment(name, value)

    def change_folder(self, folder: str) -> None:
        """Change the current folder here and in the solution."""
        os.chdir(folder)
        self.peer.request("chdir", None, args=(folder,))

    def heard(self, said: list[Any]) -> None:
        """What the solution printed, where the tests' own output goes at this moment; its warnings; its log."""
        for each in said:
            if isinstance(each, Warning):
                try:
                    warnings.warn(each, stacklevel=1)
                except Warning as error:  # the tests have made an error of it
                    self.peer.to_raise = error
            elif isinstance(each, list) and type(each[0]) is bool:
                (sys.stderr if each[0] else sys.stdout).write(each[1])
            elif isinstance(each, list) and type(each[0]) is int:
                self.log(each[1], each[0], each[2])
