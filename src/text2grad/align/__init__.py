"""The one place that knows both text and tokens: critiques point at characters, the optimiser wants tokens.

`TokenTable.align` reads the characters of each *sampled* token off its bytes; nothing is re-tokenised, because
decode-then-encode moves token boundaries. `credit` turns a critique into the pseudo-reward delta (paper,
section 3.3), one number per sampled token, under a named credit scheme. `token_rewards` is both in one call, for
any trainer, and `TokenCredit` asks a critic about a batch of trajectories.
"""

from text2grad.align.credit import Credit, CreditScheme, CreditSettings, Membership, credit, token_labels
from text2grad.align.rewards import (
    Payment,
    TokenCredit,
    scored,
    token_rewards,
    trajectory_rewards,
)
from text2grad.align.tokens import Aligned, TokenTable
from text2grad.align.trajectory import Trajectory

__all__ = [
    "Aligned",
    "Credit",
    "CreditScheme",
    "CreditSettings",
    "Membership",
    "Payment",
    "TokenCredit",
    "TokenTable",
    "Trajectory",
    "credit",
    "scored",
    "token_labels",
    "token_rewards",
    "trajectory_rewards",
]
