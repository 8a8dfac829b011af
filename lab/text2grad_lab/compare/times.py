"""Seconds of a step of training from feedback, by phase, and relative to scalar PPO (paper, Table
13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Row = Mapping[str, Any]
PHASES = ("generate", "critique", "score", "update")
SCALAR = ("scalar", "scalar_ppo", "scalar_rm")
"""Names of scalar PPO runs, in the order in which one is taken to compare with."""
HEAD = ("seconds a step", *PHASES, "whole", "times scalar PPO")


def seconds_of(row: Row) -> float:
    """Seconds of a step, without those of measuring."""
    return sum(row.get(f"seconds_{phase}") or 0.0 for phase in PHASES)


def seconds_a_step(runs: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, float]]:
    """For each run with phases: the mean seconds of each, their sum (`whole`), and its ratio to the
    sum of a run of scalar PPO, if there is one (`times_scalar`)."""
    timed = {name: [row for row in rows if row.get("seconds_generate") is not None] for name, rows in runs.items()}
    phases_by_run = {
        name: {phase: fmean(row.get(f"seconds_{phase}") or 0.0 for row in rows) for phase in PHASES}
        for name, rows in timed.items()
        if rows
    }
    wholes = {name: sum(phases.values()) for name, phases in phases_by_run.items()}
    scalar = next((wholes[name] for name in SCALAR if wholes.get(name)), None)
    ratios = {name: {"times_scalar": whole / scalar} if scalar else {} for name, whole in wholes.items()}
    return {name: {**phases, "whole": wholes[name], **ratios[name]} for name, phases in phases_by_run.items()}


def time_rows(times: Mapping[str, Mapping[str, float]], titles: Mapping[str, str]) -> list[list[str]]:
    """The table under `HEAD`, a row for each run by its title."""
    columns = (*PHASES, "whole", "times_scalar")
    return [
        [titles.get(name, name), *(f"{seconds[key]:.2f}" if key in seconds else "–" for key in columns)]
        for name, seconds in times.items()
    ]
