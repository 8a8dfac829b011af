"""The report of a run: one static HTML page."""

from __future__ import annotations

from pathlib import Path

from text2grad.report.folder import RunFolder, read_run
from text2grad.report.pages import render_page, write_page
from text2grad.report.sections import sections


def build_report(run_folder: Path) -> Path:
    """Write `run_folder/report.html`, and one for each `seed-*` run folder inside; returns its path.

    A `seed-*` that is a link to another place is shown, but gets no page there.

    Raises:
        UserError: no run folder, nothing in it yet, a damaged file in it, or the page cannot be written.
    """
    run = read_run(run_folder)
    for seed in run.seeds:
        if not seed.is_empty and not seed.path.is_symlink():
            write_page(seed.path / "report.html", page(seed, parent="../report.html"))
    return write_page(run_folder / "report.html", page(run))


def page(run: RunFolder, parent: str = "") -> str:
    """The page of a run as text; `parent` links a seed's page to the page over all seeds."""
    return render_page("page.html.j2", script="page.js", parent=parent, **sections(run))
