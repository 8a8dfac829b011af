"""The one place that knows both text and tokens: critiques point at characters, the optimiser wants
tokens.

`TokenTable.align` reads the characters of each *sampled* token off its bytes; nothing is
re-tokenised, because decode-then-encode moves token boundaries. `credit` turns a critique into the
pseudo-reward delta (paper, section 3.3), one number per sampled token, under a named credit scheme.
For trainers that are not ours, `align.rewards` has both in one call, and `TokenCredit`, which asks
a critic about a batch of trajectories.
"""

from text2grad.align.credit import (
    Credit,
    CreditScheme,
    CreditSettings,
    credit,
    scored,
    scored_parts,
    token_labels,
)
from text2grad.align.tokens import Aligned, TokenTable

__all__ = [
    "Aligned",
    "Credit",
    "CreditScheme",
    "CreditSettings",
    "TokenTable",
    "credit",
    "scored",
    "scored_parts",
    "token_labels",
]
