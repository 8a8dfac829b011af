"""The stages of a run, a file for each command's work; between them there are only files.

A stage takes a `Config`, reads what earlier stages left in `run.folder`, writes its own part, and
returns a `Summary`: typed in Python, one JSON object on the command line. A file imports only those
before it in tests/layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def inlined() -> Any:
    """A field that holds a mapping whose items become keys of their own in `as_dict`."""
    return field(default_factory=dict, metadata={"inlined": True})


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Base of the summaries of all stages."""

    def as_dict(self) -> dict[str, Any]:
        """The fields in their order; an optional one (default None) that was not set is left
        out."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata.get("inlined"):
                found |= value
            elif value is not None or each.default is not None:
                found[each.name] = value
        return found
