"""Align critiques with sampled tokens: critiques point at characters, the optimiser needs tokens.

`TokenTable.align` reads the characters of each sampled token off its bytes. Nothing is tokenised
again, because decoding and encoding moves token boundaries. `credit` turns a critique into the
pseudo-reward delta (paper, section 3.3), one number per sampled token, under a named credit scheme.
For other trainers, `align.rewards` does both in one call, and `TokenCredit` there also asks a
critic about a batch of trajectories.
"""

from text2grad.align.credit import (
    Credit,
    CreditScheme,
    CreditSettings,
    credit,
    require_score,
    score_intervals,
    token_labels,
)
from text2grad.align.tokens import Aligned, TokenTable, get_table

__all__ = [
    "Aligned",
    "Credit",
    "CreditScheme",
    "CreditSettings",
    "TokenTable",
    "credit",
    "get_table",
    "require_score",
    "score_intervals",
    "token_labels",
]
