"""The sandbox for untrusted Python: what this package uses of `codeverdict`, which stands beside it."""

from __future__ import annotations

import codeverdict
from codeverdict import (
    NO_VERDICT,
    Gate,
    Outcome,
    SandboxSettings,
    TestResult,
    Verdict,
    clean,
    probe_tiers,
    stub_gate,
)
from codeverdict.launch import INSTALL, Server
from text2grad.errors import UserError

__all__ = [
    "CURE",
    "NO_VERDICT",
    "Gate",
    "Outcome",
    "Runner",
    "SandboxSettings",
    "TestResult",
    "Verdict",
    "clean",
    "probe_tiers",
    "stub_gate",
]

CURE = f"{INSTALL}; --sandbox.tier none runs programs without protection"
"""What helps where programs cannot be run safely."""


class Runner(codeverdict.Runner):
    """The runner of `codeverdict`; a machine without protection is a UserError that names the option."""

    def start_server(self, preload: tuple[str, ...]) -> Server:
        """A new server.

        Raises:
            UserError: programs cannot be run safely on this machine.
        """
        try:
            return super().start_server(preload)
        except codeverdict.NotSafeError as error:
            raise UserError(error.message, CURE) from error
