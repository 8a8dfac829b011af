"""Seconds per training step by phase, and relative to scalar PPO (paper, Table 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Row = Mapping[str, Any]
PHASES = ("generate", "critique", "score", "update")
SCALAR = ("scalar", "scalar_ppo", "scalar_rm")
"""Names of scalar PPO runs to compare with, preferred first."""
HEAD = ("seconds per step", *PHASES, "total", "times scalar PPO")


def seconds_of(row: Row) -> float:
    """Return the seconds of a step, without evaluation."""
    return sum(row.get(f"seconds_{phase}") or 0.0 for phase in PHASES)


def seconds_a_step(runs: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, float]]:
    """Return the mean seconds per step of each run that reports phases.

    Each run has the seconds of every phase, their sum (`whole`), and, if there is a scalar PPO run,
    the ratio to its sum (`times_scalar`).
    """
    timed = {name: [row for row in rows if row.get("seconds_generate") is not None] for name, rows in runs.items()}
    phases_by_run = {
        name: {phase: fmean(row.get(f"seconds_{phase}") or 0.0 for row in rows) for phase in PHASES}
        for name, rows in timed.items()
        if rows
    }
    totals = {name: sum(phases.values()) for name, phases in phases_by_run.items()}
    scalar = next((totals[name] for name in SCALAR if totals.get(name)), None)
    ratios = {name: {"times_scalar": total / scalar} if scalar else {} for name, total in totals.items()}
    return {name: {**phases, "whole": totals[name], **ratios[name]} for name, phases in phases_by_run.items()}


def time_rows(times: Mapping[str, Mapping[str, float]], titles: Mapping[str, str]) -> list[list[str]]:
    """Return the table under `HEAD`, a row per run."""
    columns = (*PHASES, "whole", "times_scalar")
    return [
        [titles.get(name, name), *(f"{seconds[key]:.2f}" if key in seconds else "–" for key in columns)]
        for name, seconds in times.items()
    ]
