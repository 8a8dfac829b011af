"""Summaries of stages: typed in Python, flat JSON on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from text2grad.stages.summary import Summary, inlined


@dataclass(frozen=True, kw_only=True)
class Trained(Summary):
    records: int
    rates: Mapping[str, float] = inlined()
    usd: float | None
    out: str
    hub: str | None = None


def test_fields_stand_in_their_order_and_mappings_between_them() -> None:
    found = Trained(records=2, rates={"good_f1": 0.5}, usd=None, out="x").as_dict()
    assert list(found.items()) == [("records", 2), ("good_f1", 0.5), ("usd", None), ("out", "x")]
    assert Trained(records=2, usd=1.0, out="x", hub="me/it").as_dict()["hub"] == "me/it"
