"""The text of an engine's files, where it cannot be installed: read from its wheel, which pip downloads."""

from __future__ import annotations

import os
import zipfile
from functools import cache
from pathlib import Path


@cache
def source_of(engine: str, path: str) -> str:
    """A file of an engine's wheel, out of the folder that `PLUGIN_WHEELS` names."""
    (wheel,) = Path(os.environ["PLUGIN_WHEELS"]).glob(f"{engine}-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return opened.read(path).decode("utf-8")
