"""Precision, recall and F1 of a unit model's labels of steps or tokens (paper, Table 17)."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.eval.critics.reward_model import baselines
from text2grad.eval.critics.spans import SpanCase, intervals, span_report, tally

KNOWING_NOTHING = {"random": "random_spans", "always": "always_poor"}
RATES = [f"{name}_{rate}" for name in ("poor", "good") for rate in ("precision", "recall", "f1")]


def unit_report(cases: Sequence[SpanCase], seed: int = 0) -> dict[str, float]:
    """Figures of held-out answers, in which the "tokens" of a case are its units.

    Returns:
        `answers`, `units`; `poor_share`, the share of the units that are poor; `unreadable`, that of the answers
        without labels; `poor_*` and `good_*`: precision, recall and F1 of the units with the label, F1 with the
        bounds of its 95 % interval over the answers (`poor_f1_low`, `poor_f1_high`); `random_poor_f1` and
        `always_poor_f1`, what random spans of the same lengths and one label for all would have.

    Raises:
        ValueError: nothing to compare.
    """
    rates = span_report(cases)
    bounds = intervals(cases, seed=seed)
    units = sum(len(case.aligned) for case in cases)
    poor = sum(tally(case)["poor_token_gold"] for case in cases)
    report = {"answers": float(len(cases)), "units": float(units), "poor_share": poor / units}
    report |= {name: rates[name] for name in ("unreadable", *RATES)}
    for name in ("poor_f1", "good_f1"):
        report[f"{name}_low"], report[f"{name}_high"] = bounds[name]
    nothing = baselines(cases, seed=seed)
    report |= {f"{name}_poor_f1": nothing[of]["poor_f1"] for name, of in KNOWING_NOTHING.items()}
    return report
