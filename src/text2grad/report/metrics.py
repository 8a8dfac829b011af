"""Which curves come first, and one line on how to read each (docs/metrics.md explains them in full)."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAIN = (
    (r"held_?out.*|.*pass@1.*", "held-out problems, never trained on: higher is better"),
    (r"score", "the critic's verdict, mean over the responses, −1 to 1"),
    (r"delta(_sum)?", "token pseudo-rewards of a response added up, mean"),
    (r"kl", "distance from the reference policy per response: must not run away"),
    (r"wrong_sign_rate", "labelled tokens whose advantage has the other sign: lower is better"),
    (r"explained_variance", "of the value function: 1 foresees all returns, 0 none"),
    (r"critic_failed", "share of critiques that failed and were masked out"),
    (r"response_length", "tokens per response, mean"),
    (r"entropy", "of the policy, per token: towards 0 it stops exploring"),
)
SUPERVISED = (
    (r"loss|train_loss", "next-token loss"),
    (r"label_loss", "second loss: good, poor or neither, of every response token"),
    (r"(held_?out|eval|validation)_loss", "next-token loss, held-out"),
)
OF_VALUES = ("value", "value_loss", "explained_variance")  # these say nothing where there is no value function


def arranged(
    names: Iterable[str], main: tuple[tuple[str, str], ...] = MAIN
) -> tuple[list[tuple[str, str]], list[str]]:
    """Split metric names into the main ones with their explanation, in the order of `main`, and the rest."""
    rest = list(names)
    first: list[tuple[str, str]] = []
    for pattern, about in main:
        matching = [name for name in rest if re.fullmatch(pattern, name)]
        first += [(name, about) for name in matching]
        rest = [name for name in rest if name not in matching]
    return first, rest
