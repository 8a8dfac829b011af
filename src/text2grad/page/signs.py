"""Figures of a run in words: warnings, the effect of training, the verdict on a reward model.

Warnings apply the thresholds of a published review of the method (docs/metrics.md, "Signs of
failure"). A missing figure gives no warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from text2grad.page.render import signed

Row = Mapping[str, Any]
LEAST_CORRECT, MOST_UNMATCHED = 0.75, 0.05
ASPECTS = {"critique": "critiques", "spans": "answers' spans", "single_spans": "single spans"}
LEAST_STEPS = 20
"""Fewest steps that show how rewards move."""
PERIODIC, OPPOSITE = 0.6, -0.45
"""Autocorrelations of a periodic series: at a period, and between."""
BLOCKS, REVERSALS = (12, 24, 48, 96), 4
CLEAR, HALF, TENTH = 6.0, 0.5, 0.1
"""Smallest move: in standard errors of a block's mean, in the range of means, in the size of the
rewards."""
ENDS = 0.1
"""Share of the steps compared, at each end of a run."""
NOISE = 2.0
"""Standard errors within which a mean has not moved."""
LARGE_KL, SMALL_KL = 1.0, 0.001
"""Nats a token from the start: too far, and no movement."""
MISLEADING = 0.2
"""Share of labelled tokens with the wrong sign that misleads."""


def human_warnings(people: Mapping[str, Row]) -> Iterator[str]:
    """Warn if people find too few critiques or spans correct (`eval.critics.marks.agreement`)."""
    for aspect, marks in people.items():
        if (share := marks.get("accuracy")) is not None and share < LEAST_CORRECT:
            low, high = marks["interval"]
            yield (
                f"people find {share:.0%} of {marks['count']} {ASPECTS.get(aspect, aspect)} correct"
                f" ({low:.0%} to {high:.0%}), below {LEAST_CORRECT:.0%}: critiques and spans do not match;"
                " read the annotations and their prompt"
            )


def quote_warnings(unmatched: float | None, source: str) -> Iterator[str]:
    """Warn if too large a share of quotes is `unmatched` in the answers."""
    if unmatched is not None and unmatched > MOST_UNMATCHED:
        yield (
            f"{unmatched:.1%} of the quotes {source} are not in the answer, above {MOST_UNMATCHED:.0%}: they reward"
            " nothing; ask for exact quotes, or ground the decoding (reward_model.grounded)"
        )


def scalar_warnings(name: str, scalar: str, lead: float, interval: Sequence[float]) -> Iterator[str]:
    """Warn if a run on token rewards is below scalar PPO, whose `lead` has this 95 % interval."""
    if interval[0] > 0:
        yield (
            f"{name} is below {scalar} by {lead:.3f} ({interval[0]:.3f} to {interval[1]:.3f}): check"
            " wrong_sign_rate (evaluate --task reward-model)"
        )


def metric_warnings(rows: Sequence[Row]) -> list[str]:
    """Warnings about the metrics of a run: quotes, and rewards that oscillate without a trend."""
    unmatched, rewards = _values(rows, "unmatched_share"), _values(rows, "delta_sum")
    warnings = list(quote_warnings(fmean(unmatched) if unmatched else None, "in training"))
    if oscillates(rewards):
        warnings.append(
            f"the reward of an answer oscillates between {min(rewards):.3g} and {max(rewards):.3g} without a trend:"
            " check the precision of spans (evaluate --task reward-model), good_tokens and poor_tokens"
        )
    return warnings


def oscillates(values: Sequence[float]) -> bool:
    """True if a series is periodic, or if its block means reverse often and by a large amount."""
    middle = fmean(values) if values else 0.0
    deviations = [value - middle for value in values]
    spread = sum(deviation**2 for deviation in deviations)
    if len(values) < LEAST_STEPS or spread == 0:
        return False
    return _is_periodic(deviations, spread) or any(
        _reverses(values, blocks) for blocks in BLOCKS if len(values) // blocks > 1
    )


def _is_periodic(deviations: Sequence[float], spread: float) -> bool:
    count = len(deviations)

    def correlation(lag: int) -> float:
        total = sum(a * b for a, b in zip(deviations, deviations[lag:], strict=False))
        return total / spread * count / (count - lag)

    correlations = [correlation(lag) for lag in range(1, count // 3 + 1)]
    return any(
        value >= PERIODIC and min(correlations[:lag]) <= OPPOSITE for lag, value in enumerate(correlations) if lag
    )


def _reverses(values: Sequence[float], blocks: int) -> bool:
    """True if the means of so many blocks reverse often, each time by more than noise."""
    size = len(values) // blocks
    means = [fmean(values[n * size : (n + 1) * size]) for n in range(blocks)]
    noise = fmean((b - a) ** 2 for a, b in pairwise(values)) / 2
    error = (noise / size) ** 0.5
    scale = fmean(map(abs, values))
    least = max(CLEAR * error, HALF * (max(means) - min(means)), TENTH * scale)
    return count_reversals(means, least) >= REVERSALS


def count_reversals(values: Sequence[float], least: float) -> int:
    """Count the moves of at least `least`, each opposite to the one before."""
    count, low, high, direction = 0, values[0], values[0], 0
    for value in values:
        low, high = min(low, value), max(high, value)
        if direction <= 0 and value - low >= least:
            count, direction, high = count + 1, 1, value
        elif direction >= 0 and high - value >= least:
            count, direction, low = count + 1, -1, value
    return count


def describe_training(rows: Sequence[Row]) -> list[str]:
    """Describe the effect of a training with these metrics in sentences; none without metrics."""
    sentences = []
    if _values(rows, "score") or _values(rows, "delta_sum"):
        sentences.append(_reward_sentence(rows))
    if _values(rows, "kl_token"):
        sentences.append(_kl_sentence(rows))
    if _values(rows, "loss"):
        sentences.append(_loss_sentence(rows))
    return sentences


def describe_comparison(name: str, compared: Mapping[str, Any]) -> str:
    """Compare a policy with its starting policy in one sentence."""
    low, high = compared["interval"]
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not significantly different from"
    figures = f"{compared['value']:.3g}, and {compared['other']:.3g} there"
    interval = f"a difference of {signed(low)} to {signed(high)}, 95 %"
    return f"{name} is {verdict} {compared['against']} {_by_measure(compared)}: {figures} ({interval})."


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Compare the policy that a run saved with its start in one sentence."""
    by = _by_measure(choice)
    value, start, last = (choice[name] for name in ("value", "start", "last"))
    if choice["step"] == 0:
        return (
            f"The policy from before training is kept: none of {choice['steps']} steps is better {by}"
            f" ({start:.3g} before, {last:.3g} at the end)."
        )
    before = "" if start is None else f", {start:.3g} before training"
    after = "" if choice["step"] == choice["steps"] else f" and {last:.3g} at the end"
    which = f"The policy of step {choice['step']} of {choice['steps']} is kept"
    return f"{which}, the best {by}: {value:.3g}{before}{after}."


def _by_measure(figures: Mapping[str, Any]) -> str:
    prompts, measure = figures["prompts"], str(figures["measure"]).replace("_", " ")
    return f"by {measure} on {prompts} held-out prompt{'s' * (prompts != 1)}"


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row.get(name) is not None]


def _ends(rows: Sequence[Row], name: str) -> tuple[float, float, int]:
    """Return the means of a metric over the first and the last steps, and their number."""
    values = _values(rows, name)
    count = max(1, round(ENDS * len(values)))
    return fmean(values[:count]), fmean(values[-count:]), count


def _reward_sentence(rows: Sequence[Row]) -> str:
    name, subject = "score", "The critic's score"
    if _is_constant(rows, name):
        equal = " (all scores are equal)" if _values(rows, name) else ""
        name, subject = "delta_sum", f"The reward of an answer{equal}"
        if _is_constant(rows, name):
            return "Every answer had the same reward, so nothing was learned (see text2grad sample --critique)."
    first, last, count = _ends(rows, name)
    squares = [(after - before) ** 2 for before, after in pairwise(_values(rows, name))]
    error = (fmean(squares or [0.0]) / count) ** 0.5  # of the difference of two means
    moved = f"{subject} went from {signed(first)} to {signed(last)}"
    if abs(last - first) <= NOISE * error:
        return f"{moved}, within its noise{': try more steps, or a higher ppo.lr' if last >= first else ''}."
    return f"{moved}: {'better' if last > first else 'worse'}."


def _is_constant(rows: Sequence[Row], name: str) -> bool:
    """True if several steps have the same value of this metric, or none has it."""
    values = _values(rows, name)
    return len(values) != 1 and len({round(value, 9) for value in values}) < 2


def _kl_sentence(rows: Sequence[Row]) -> str:
    distance = _ends(rows, "kl_token")[1]
    if distance < SMALL_KL:  # an estimate from samples may be below 0
        return f"The policy has hardly changed: less than {SMALL_KL:g} nats per token from its start."
    return (
        f"The policy is {distance:.3f} nats per token from its start{': read its answers' * (distance > LARGE_KL)}."
    )


def _loss_sentence(rows: Sequence[Row]) -> str:
    first, last, _ = _ends(rows, "loss")
    if len(_values(rows, "loss")) == 1:
        return f"The loss before the only update was {first:.3g}."
    return f"The loss went from {first:.3g} to {last:.3g}{': nothing was learned' * (last >= first)}."


def describe_reward_model(rates: Row) -> list[str]:
    """Describe a reward model measured on held-out critiques; none without figures."""
    if rates.get("poor_f1") is None or rates.get("wrong_sign_rate") is None:
        return []
    shares = ", ".join(
        f"{rates[f'{label}_recall']:.0%} of the {label} tokens (precision {rates[f'{label}_precision']:.0%})"
        for label in ("good", "poor")
    )
    wrong = rates["wrong_sign_rate"]
    meaning = "too many" if wrong >= MISLEADING else "few enough"
    return [
        f"On held-out answers it finds {shares}.",
        f"Marked tokens with the wrong sign: {wrong:.0%}, {meaning}.",
    ]


def describe_gate(verdict: Row) -> list[str]:
    """Describe the verdict on a reward model (`gate.json`) in lines."""
    figures = verdict["figures"]
    lines = []
    if figures.get("f1") is not None:
        f1, low, high, random, neutral = (
            f"{figures[key]:.2f}" for key in ("f1", "f1_low", "f1_high", "random_f1", "neutral_f1")
        )
        on = f"on {figures['heldout']} held-out critiques"
        lines.append(f"F1 {f1} ({low} to {high}) {on}; random spans {random}, always neutral {neutral}")
    if figures.get("verdict_r") is not None:
        r, low, high = (f"{figures[key]:.2f}" for key in ("verdict_r", "verdict_r_low", "verdict_r_high"))
        lines.append(f"its verdicts correlate with the annotations: r {r} ({low} to {high})")
    lines.append(
        f"it rewards {100 * figures['fresh_paid']:.0f} % of {figures['fresh']} fresh answers, and"
        f" {100 * figures['spoiled_paid']:.0f} % of {figures['spoiled']} made unreadable"
    )
    if corrected := figures.get("corrected"):
        faulted = round(figures["corrected_faulted"] * corrected)
        lines.append(f"it finds fault with {faulted} of {corrected} answers corrected by people")
    if verdict["fit"]:
        lines.append("Fit to train against.")
    else:
        alone = (verdict.get("spans_alone") or {}).get("fit")
        lines += ["Not fit to train against:", *(f"- {reason}" for reason in verdict["reasons"])]
        lines += ["Its spans alone are fit: train --credit.outcome_weight 0."] if alone else []
    return [*lines, *(f"Note: {caution}" for caution in verdict["cautions"])]
