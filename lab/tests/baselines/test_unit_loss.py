"""The loss and labels of units against literal numbers and a softmax written out; planted faults must fail."""

from __future__ import annotations

import math
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from text2grad_lab.baselines import unit_model as units


def test_the_loss_is_minus_the_log_of_the_labels_share() -> None:
    """Odds 1 : 2 : 5 of poor, neither and good."""
    logits = torch.tensor([[1.0, 2.0, 5.0]] * 3, dtype=torch.float64).log()
    found = units.unit_loss(logits, torch.tensor([-1, 0, 1]))
    torch.testing.assert_close(found, torch.tensor([8.0, 4.0, 1.6], dtype=torch.float64).log(), rtol=0, atol=1e-12)


def test_the_loss_of_many_units_against_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 3, generator=generator, dtype=torch.float64) * 5
    labels = torch.randint(-1, 2, (40,), generator=generator)
    found = units.unit_loss(logits, labels).tolist()
    for row, label, loss in zip(logits.tolist(), labels.tolist(), found, strict=True):
        total = sum(math.exp(value) for value in row)
        assert loss == pytest.approx(-math.log(math.exp(row[label + 1]) / total), abs=1e-9)


def test_half_precision_is_summed_in_float32() -> None:
    found = units.unit_loss(torch.tensor([[9.0, 0.0, 0.0]], dtype=torch.bfloat16), torch.tensor([-1]))
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(math.log(1 + 2 * math.exp(-9)), rel=1e-3)


def test_the_likeliest_label() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 9.0, 1.0], [2.0, 9.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    assert units.unit_labels(logits, neutral=True).tolist() == [-1, 0, 0, 1, 1]
    assert units.unit_labels(logits, neutral=False).tolist() == [-1, 1, -1, 1, 1]


def test_with_a_threshold_a_unit_is_poor_from_this_probability_on() -> None:
    """Of poor, neither and good: .3 .3 .4, .2 .5 .3, .26 .74 0, .24 .5 .26; for steps .43, .4, 1, .48 are poor."""
    shares = torch.tensor(
        [[0.3, 0.3, 0.4], [0.2, 0.5, 0.3], [0.26, 0.74, 0.0], [0.24, 0.5, 0.26]], dtype=torch.float64
    )
    logits = shares.log() + 3
    assert units.unit_labels(logits, neutral=True, poor_threshold=0.25).tolist() == [-1, 0, -1, 0]
    assert units.unit_labels(logits, neutral=False, poor_threshold=0.41).tolist() == [-1, 1, -1, -1]
    assert units.unit_labels(logits, neutral=True, poor_threshold=0.9).tolist() == [1, 0, 0, 0]


def test_shapes_are_checked() -> None:
    for logits, labels in ((torch.zeros(2, 3), torch.zeros(3)), (torch.zeros(2, 2), torch.zeros(2))):
        with pytest.raises(ValueError, match="expected"):
            units.unit_loss(logits, labels)


FAULTS = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))["fault"]
CHECKS = [function for name, function in list(globals().items()) if name.startswith("test_")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])
def test_a_planted_fault_is_caught(fault: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(str(units.__file__)).read_text("utf-8")
    assert source.count(fault["line"] + "\n") == 1, "the list of faults is stale"
    planted = ModuleType(units.__name__)
    exec(compile(source.replace(fault["line"], fault["fault"]), fault["name"], "exec"), planted.__dict__)
    monkeypatch.setattr(sys.modules[__name__], "units", planted)
    assert not all(_passes(check) for check in CHECKS)


def _passes(check: object) -> bool:
    assert callable(check)
    try:
        check()
    except (AssertionError, ValueError, RuntimeError, IndexError, pytest.fail.Exception):
        return False
    return True
