"""`report`: the page that shows a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from text2grad.report.viewer import build_report


def run_report(folder: Path) -> dict[str, Any]:
    """Write the page that shows a run."""
    return {"out": str(build_report(folder))}
