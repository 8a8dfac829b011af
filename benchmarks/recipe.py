"""What a finished run was made with, so that another recipe under the same name is run again and not read."""

from __future__ import annotations

import hashlib

from text2grad import __version__
from text2grad.config import Config


def recipe_of(config: Config) -> str:
    """A digest of all settings but where the run lies and how many threads it has."""
    fields = config.model_dump_json(exclude={"run": {"folder", "threads"}})
    return hashlib.sha256(f"{__version__} {fields}".encode()).hexdigest()[:16]
