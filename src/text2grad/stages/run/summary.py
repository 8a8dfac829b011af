"""What a stage reports: typed in Python, one JSON object on the command line. No torch, no configuration."""

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
        """The fields in their order; an optional one (default None) that was not set is left out."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata.get("inlined"):
                found |= value
            elif value is not None or each.default is not None:
                found[each.name] = value
        return found
