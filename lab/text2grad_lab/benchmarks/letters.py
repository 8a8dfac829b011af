"""Multiple-choice questions answered by a letter: the letter chosen, and the share correct. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

from text2grad.eval.metrics import mean
from text2grad.feedback import Example
from text2grad_lab.benchmarks.arc import ANSWER, CHOICES

Row = dict[str, Any]
MEASURES = ("likelihood", "likelihood_normalised")
GENERATED = "generated"
_OPEN, _CLOSE = r"[\s*_`\"'(\[]*", r"(?=[\s*_`\"')\].:,;]|$)"
_STATED = re.compile(rf"(?i:answer|option|choice)(?:\s+(?i:is|would be))?\s*:?{_OPEN}([A-Z]){_CLOSE}")
_FIRST = re.compile(rf"{_OPEN}([A-Z])(?:\s*$|[*_`\"']*[)\].:,;])")
_ALONE = re.compile(r"\(([A-Z])\)|^\W*([A-Z])\W*$", re.MULTILINE)


def letter_rows(examples: Sequence[Example], responses: Sequence[str]) -> list[Row]:
    """What responses to `arc.lettered` questions chose. Without a readable letter an answer is wrong.

    Returns:
        For each question `id`, `response`, `letter` ("" where there is none) and `scores`: `generated`, 1 or 0.
    """
    rows: list[Row] = []
    for example, response in zip(examples, responses, strict=True):
        letter = read_letter(response, len(example.meta[CHOICES]))
        right = letter == ascii_uppercase[example.meta[ANSWER]]
        rows.append({"id": example.id, "response": response, "letter": letter, "scores": {GENERATED: float(right)}})
    return rows


def read_letter(response: str, options: int) -> str:
    """The capital letter that a response chooses among the first `options`; "" where it does not choose one.

    In this order: the last one stated as the answer ("the answer is (B)"), the one that the response begins
    with ("B. Fog", not "A dog"), the last that stands in brackets or alone on a line.
    """
    letters = ascii_uppercase[:options]
    stated = [letter for letter in _STATED.findall(response) if letter in letters]
    first = _FIRST.match(response)
    alone = [letter for letter in map("".join, _ALONE.findall(response)) if letter in letters]
    begun = [first[1]] if first and first[1] in letters else []
    return next((found[-1] for found in (stated, begun, alone) if found), "")


def with_letters(rows: Sequence[Row], letters: Sequence[Row]) -> list[Row]:
    """The rows of `choose`, and what was answered in words beside them."""
    return [
        {**row, "said": said["response"], "letter": said["letter"], "scores": {**row["scores"], **said["scores"]}}
        for row, said in zip(rows, letters, strict=True)
    ]


def choice_figures(rows: Sequence[Row]) -> dict[str, float]:
    """The share of right choices by each way of choosing, and `total`, the number of questions.

    `unreadable` are those whose answer in words names no letter; they count as wrong.
    """
    ways = [name for name in (*MEASURES, GENERATED) if rows and name in rows[0]["scores"]]
    shares = {name: mean([row["scores"][name] for row in rows]) for name in ways}
    unread = {"unreadable": float(sum(not row["letter"] for row in rows))} if GENERATED in ways else {}
    return {**shares, **unread, "total": float(len(rows))}
