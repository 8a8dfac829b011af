"""The answer format, to the letter: reward models are trained to write it. `make golden` rewrites
the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from text2grad.feedback import Critique, Label, Span
from text2grad.wire import parse, render

GOLDEN = Path(__file__).parent / "answers"
RESPONSE = (
    'The art fair will "start" in 会议 🙂.\n\n'
    "dp[i][j]=max(dp[i-1][j],dp[i][j-1])+1\n"
    "See C:\\new and the art, and the art again."
)


def at(quote: str, label: Label, place: int = 0, reason: str = "") -> Span:
    start = RESPONSE.index(quote, place)
    return Span(start=start, end=start + len(quote), label=label, text=quote, reason=reason)


CASES = {
    "plain": Critique(text="Clear.", spans=(at("art fair", 1), at("C:\\new", -1)), score=0.5),
    "nothing": Critique(text=""),
    "reasons": Critique(
        text='It says "start";\nratio: 5.',
        spans=(at('"start"', -1, reason="it's over"), at("会议 🙂", 1)),
        score=-1.0,
    ),
    "repeated": Critique(
        text="Twice.", spans=(at("the art", -1), at("the art", -1, RESPONSE.index("the art") + 1)), score=0.0
    ),
    "parts": Critique(text="Pieces.", spans=(at("tart", 1), at("dp[i][j]", 1), at("max(dp[i-1]", -1))),
}


@pytest.mark.parametrize("name", CASES)
def test_answer(name: str) -> None:
    golden = GOLDEN / f"{name}.json"
    z = render(CASES[name], RESPONSE)
    if os.environ.get("WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(z + "\n", encoding="utf-8")
    assert z + "\n" == golden.read_text(encoding="utf-8")
    assert parse(z, RESPONSE) == CASES[name]
