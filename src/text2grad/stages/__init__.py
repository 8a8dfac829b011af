"""The stages of a run: one module per command. Stages exchange data only through files.

A stage takes a `Config`, reads what earlier stages wrote to `run.folder`, writes its own files and
returns a `Summary` or a dict: one JSON object on the command line. A module imports only
modules listed before it in tests/layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def inlined() -> Any:
    """Return a dataclass field whose mapping `as_dict` merges into the top level."""
    return field(default_factory=dict, metadata={"inlined": True})


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Base class of the summaries that stages return."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields in order, without optional fields (default None) that are unset."""
        values: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.metadata.get("inlined"):
                values |= value
            elif value is not None or item.default is not None:
                values[item.name] = value
        return values
