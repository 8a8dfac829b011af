"""What every plug-in must hold: the numbers an engine trains on stand at the tokens that were paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from text2grad.feedback import Critique, Example, Judgement, Source, Span


class BlamesLetter:
    """Blames every place of a letter; the verdict is 1 without it and falls with their number."""

    source = Source(kind="program")

    def __init__(self, letter: str = "a") -> None:
        self.letter = letter

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Judgement:
        places = [place for place, character in enumerate(text) if character == self.letter]
        spans = [Span(start=place, end=place + 1, label=-1, text=self.letter) for place in places]
        return Critique(text="", spans=tuple(spans), score=1 / (1 + len(places)))


def check_landing(landed: Any, ids: Any, mask: Any, decode: Any, letter: str, whole: Sequence[float]) -> int:
    """Check a batch (B, T) of an engine against what its tokens say, read one by one; how many tokens were blamed.

    `landed` are its advantages, `mask` is 1 at the policy's own ids, `whole` (B,) what a row got for its verdict.
    """
    blamed = 0
    for row in range(len(ids)):
        expected: NDArray[np.float64] = np.zeros(len(ids[row]))
        for place, (index, own) in enumerate(zip(ids[row], mask[row], strict=True)):
            if own:
                poor = letter in decode([int(index)])
                blamed += poor
                expected[place] = whole[row] - poor
        np.testing.assert_allclose(np.asarray(landed[row], dtype=np.float64), expected, atol=2e-6)
    return blamed
