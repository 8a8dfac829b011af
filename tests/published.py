"""Values that others publish, from the shared data sets; a test is skipped where they are not
here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from places import SHARED


def published_text(folder: str, file: str) -> str:
    """The text of a file."""
    path = SHARED / folder / file
    if not path.is_file():
        pytest.skip(f"the published values are not here: {path}")
    return path.read_text(encoding="utf-8")


def published(folder: str, file: str) -> Any:
    """The value of a JSON file."""
    return json.loads(published_text(folder, file))
