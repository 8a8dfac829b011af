"""AlpacaEval 2: 805 instructions, and the baseline's answers that a policy is compared with (Li et al. 2023)."""

from __future__ import annotations

from text2grad.data.files import Row, optional_text, text_of
from text2grad.data.published import Shape, one_turn, read_examples
from text2grad.feedback import Example
from text2grad.tasks.base import TaskSettings, rouge_l_scores
from text2grad.tasks.data_task import Benchmark

HUB_NAME = "tatsu-lab/alpaca_eval"
DATASET = "dataset"
"""Key of an example's `meta`: the part of AlpacaEval that it is of."""


class AlpacaEvalTask(Benchmark):
    """Instructions, with the baseline's answer as reference."""

    name = "alpaca_eval"

    def read(self, settings: TaskSettings) -> list[Example]:
        """All instructions with the baseline's answers."""
        return read_examples(settings.data or HUB_NAME, SHAPES, settings.limit, "alpaca_eval_gpt4_baseline.json")

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """ROUGE-L F1 against the baseline's answer; empty without one."""
        return rouge_l_scores(example.reference, response) if example.reference else {}


def _instruction(row: Row, fallback_id: str) -> Example:
    meta = {DATASET: optional_text(row, DATASET)}
    return one_turn(
        str(row.get("id") or fallback_id), text_of(row, "instruction"), optional_text(row, "output"), meta
    )


SHAPES = (Shape("AlpacaEval", frozenset({"instruction"}), _instruction),)
