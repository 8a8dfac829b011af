"""`improve`: a spreadsheet of people's feedback in, a better model out.

A thin stage over `import`, `sft`, `train --offline`, `evaluate` and `report`. It reads the file,
proposes what its columns hold, chooses the steps by the kind of feedback, runs them, and keeps the
new policy only if it is better on held-out questions. Every step is a command that can be run by
hand with the settings in `improve.yaml` of the run.
"""

from __future__ import annotations

from text2grad.stages.improve.inbox import InboxSummary, roll_back, run_inbox
from text2grad.stages.improve.plan import Plan, make_plan
from text2grad.stages.improve.run import ImproveSummary, run_improve
from text2grad.stages.improve.source import ImproveOptions, Source, describe, read_source

__all__ = [
    "ImproveOptions",
    "ImproveSummary",
    "InboxSummary",
    "Plan",
    "Source",
    "describe",
    "make_plan",
    "read_source",
    "roll_back",
    "run_improve",
    "run_inbox",
]
