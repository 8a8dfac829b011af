"""Run and judge untrusted Python; a program and its tests never share a process.

The names below are imported on first use, because the sandboxed processes also import this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codeverdict.gate import Gate, stub_gate
    from codeverdict.launch import NotSafeError, Probe, TierChoice, probe_tiers
    from codeverdict.results import NO_VERDICT, Outcome, TestResult, Tier, Verdict, clean
    from codeverdict.runner import Job, Runner
    from codeverdict.settings import SandboxSettings

__all__ = [
    "NO_VERDICT",
    "Gate",
    "Job",
    "NotSafeError",
    "Outcome",
    "Probe",
    "Runner",
    "SandboxSettings",
    "TestResult",
    "Tier",
    "TierChoice",
    "Verdict",
    "clean",
    "probe_tiers",
    "stub_gate",
]

_HOMES = ("results", "launch", "runner", "gate", "settings")


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        module = import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
