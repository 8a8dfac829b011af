from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from annotating import Job, job_in


@pytest.fixture
def job(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """`annotate` in `tmp_path`."""
    with job_in(tmp_path, capsys, monkeypatch) as made:
        yield made
