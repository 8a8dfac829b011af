"""Run untrusted Python, and judge it: a program and its tests never share a process.

The names below are imported when first used, because the sandboxed processes import this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codeverdict.errors import NotSafeError
    from codeverdict.gate import Gate, stub_gate
    from codeverdict.launch import Probe, TierChoice, probe_tiers
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

_HOMES = {
    "errors": ("NotSafeError",),
    "gate": ("Gate", "stub_gate"),
    "launch": ("Probe", "TierChoice", "probe_tiers"),
    "results": ("NO_VERDICT", "Outcome", "TestResult", "Tier", "Verdict", "clean"),
    "runner": ("Job", "Runner"),
    "settings": ("SandboxSettings",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
