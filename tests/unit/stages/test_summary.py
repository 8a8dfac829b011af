"""Summaries of stages: typed in Python, flat JSON on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from text2grad.commands.console import run_stage
from text2grad.durable.log import RunLog
from text2grad.stages import Summary, inlined


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


def test_a_figure_that_nobody_knows_is_called_so_and_rounding_leaves_no_dust(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_stage(lambda: {"usd": None, "records": 2, "rates": {"score": -1.39e-17, "f1": 0.25}}, as_json=False)
    assert capsys.readouterr().err == "usd: not known\nrecords: 2\nrates\n  score: 0\n  f1: 0.25\n"


def test_a_line_of_progress_has_no_dust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path, "ppo", 2, ("score", "kl")) as log:
        log.metrics(0, {"score": -1.39e-17, "kl": 0.123456})
    assert "1/2 score 0 kl 0.123" in capsys.readouterr().err
