"""The outcome of a run in one sentence: how the new model compares on held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from text2grad.eval.improvement import MIN_QUESTIONS, TITLES
from text2grad.eval.metrics import mean_with_interval
from text2grad.page.runs import Answer, BeforeAfter, RunFolder
from text2grad.page.words import measure_title


def describe_outcome(run: RunFolder) -> str:
    """Compare the last policy with the first in one sentence; empty if nothing was measured."""
    if after := run.improvement.get("after"):  # the verdict that `improve` reached
        before, better, prompts = run.improvement["before"], run.improvement.get("better"), len(run.before_after)
        changes = ", ".join(f"{TITLES.get(name, name)} {before[name]:.2f} → {after[name]:.2f}" for name in after)
        if better is None:
            return f"{prompts} held-out prompts are too few to tell whether the new model is better: {changes}."
        if better:
            return f"On {prompts} held-out prompts the new model is better: {changes}."
        verdict = "the new model is not better beyond chance"
        return f"On {prompts} held-out prompts {verdict}: {changes}. The old model was kept."
    names = list(dict.fromkeys(answer.name for item in run.before_after for answer in item.answers))
    if len(names) > 1 and (sentence := _describe_pairs(run.before_after, names[0], names[-1])):
        return sentence
    return ""


def _describe_pairs(items: Sequence[BeforeAfter], first: str, last: str) -> str:
    """Compare the greedy answers of two policies to the same prompts by their first measure."""
    pairs = [
        (before, after)
        for item in items
        if (before := _scores(item.answers, first)) and (after := _scores(item.answers, last))
    ]
    measure = next((name for before, after in pairs for name in before if name in after), "")
    values = [
        (before[measure], after[measure]) for before, after in pairs if measure in before and measure in after
    ]
    if not values:
        return ""
    old, new = (fmean(side) for side in zip(*values, strict=True))
    change = f"{measure_title(measure)} {_share(measure, old)} → {_share(measure, new)}"
    if len(values) < MIN_QUESTIONS:
        return f"{len(values)} held-out prompts are too few to compare {last} with {first}: {change}."
    _, low, high = mean_with_interval([after - before for before, after in values])
    verdict = "better" if low > 0 else "worse" if high < 0 else "neither clearly better nor worse"
    return f"On {len(values)} held-out prompts {last} is {verdict} than {first}: {change}."


def _scores(answers: Sequence[Answer], name: str) -> Mapping[str, float]:
    scores = next((answer.scores for answer in answers if answer.name == name), {})
    return {measure: value for measure, value in scores.items() if value is not None}


def _share(measure: str, value: float) -> str:
    return f"{value:.0%}" if measure == "pass" else f"{value:.2f}"
