"""Have the configured judge compare answers before and after training."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from text2grad.config import Config
from text2grad.eval.improvement import Comparison
from text2grad.eval.judge import AnswerPair
from text2grad.eval.metrics import Interval
from text2grad.feedback import Example
from text2grad.stages.evaluate.answers import judge_against, judge_of_answers
from text2grad.stages.run_folder import BASE
from text2grad.tasks.base import question_text


def ask_judge(
    config: Config,
    comparison: Comparison,
    heldout: Sequence[Example],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> Comparison:
    """Ask `evaluate.judge` about each pair of answers, blindly and in both orders.

    The judge decides if `comparison`, which people's feedback made, has no gain. Otherwise it only
    rules out a policy that loses beyond chance. `before` and `after` are answers by question.

    Raises:
        UserError: the judge cannot be asked.
    """
    questions = [question_text(example) for example in heldout]
    pairs = [
        AnswerPair(example, after[question], before[question])
        for example, question in zip(heldout, questions, strict=True)
        if question in before and question in after
    ]
    figures = judge_against(judge_of_answers(config), BASE, pairs)
    if not figures["judge_judged"]:
        print(f"judge {config.evaluate.judge}: no readable verdict", file=sys.stderr)
        return comparison
    margin = Interval(*(float(figures[f"judge_{name}"]) for name in ("margin", "margin_low", "margin_high")))
    shares = ", ".join(f"{name} {figures[f'judge_{name}']:.2f}" for name in ("win", "tie", "loss"))
    interval = f"margin {margin.mean:+.2f}, 95 % interval {margin.low:+.2f} to {margin.high:+.2f}"
    print(f"judge {config.evaluate.judge}, {len(pairs)} questions: {shares}; {interval}", file=sys.stderr)
    if comparison.gain is None or margin.high < 0:
        return replace(comparison, gain=margin)
    return comparison
