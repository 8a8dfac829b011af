"""Your own credit scheme: a function that turns a critique into a number for each token.

python examples/own_scheme.py
PYTHONPATH=examples text2grad train --credit.scheme own_scheme:first_fault
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

import text2grad as t2g


def first_fault(critique: t2g.Critique, aligned: t2g.Aligned, settings: t2g.CreditSettings) -> NDArray[np.float32]:
    """Pay +1 per token before the first poor span, -1 in the span, and nothing after it."""
    poor = [span for span in critique.spans if span.label < 0]
    start, end = min(((span.start, span.end) for span in poor), default=(len(aligned.text), len(aligned.text)))
    inside = (aligned.starts < end) & (aligned.ends > start)
    return np.where(inside, -1.0, np.where(aligned.ends <= start, 1.0, 0.0)).astype(np.float32)


def main() -> None:
    """Print the reward of each token of one answer, as in a training step."""
    response = "two plus three is six of course"
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(response.split())}, unk_token="two"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrong = t2g.Span(start=18, end=21, label=-1, text="six", reason="2 + 3 is 5")
    critique = t2g.Critique(text="The sum is wrong.", spans=(wrong,), score=-1.0)
    ids = tokenizer.encode(response).ids
    rewards = t2g.Aligner(tokenizer).rewards(critique, ids, scheme=f"{__name__}:first_fault")
    for word, reward in zip(response.split(), rewards, strict=True):
        print(f"{reward:+.0f} {word}")


if __name__ == "__main__":
    main()
