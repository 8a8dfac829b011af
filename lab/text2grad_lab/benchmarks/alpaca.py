"""AlpacaEval 2: 805 instructions with a baseline's answers (Li et al. 2023).

`model_outputs.json` has our answers. AlpacaEval's program judges them and counts the wins:
`alpaca_eval evaluate --model_outputs model_outputs.json --output_path FOLDER`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from text2grad.config import Config
from text2grad.data.files import Row, load_rows, optional_text, required_text
from text2grad.data.published import Shape, read_examples, single_turn_example
from text2grad.feedback import Example
from text2grad.stages.run_folder import (
    ANSWERS,
    RunFolder,
    heldout_prompts,
    target_name,
    write_json,
)
from text2grad.tasks.base import TaskSettings, rouge_l_scores
from text2grad_lab.benchmarks import Benchmark

if TYPE_CHECKING:
    from text2grad.stages.evaluate.policy import PolicySummary

HUB_NAME = "tatsu-lab/alpaca_eval"
DATASET = "dataset"
"""Key of an example's `meta`: the AlpacaEval subset."""


class AlpacaEval(Benchmark):
    """Instructions, with the baseline's answer as reference."""

    name = "AlpacaEval"

    def read_questions(self, settings: TaskSettings) -> list[Example]:
        """Return all instructions with the baseline's answers."""
        return read_examples(settings.data or HUB_NAME, SHAPES, settings.limit, "alpaca_eval_gpt4_baseline.json")

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return ROUGE-L F1 against the baseline's answer; empty without one."""
        return rouge_l_scores(example.reference, response) if example.reference else {}


def _instruction(row: Row, fallback_id: str) -> Example:
    meta = {DATASET: optional_text(row, DATASET)}
    return single_turn_example(
        str(row.get("id") or fallback_id), required_text(row, "instruction"), optional_text(row, "output"), meta
    )


SHAPES = (Shape("AlpacaEval", frozenset({"instruction"}), _instruction),)


def model_outputs(examples: Sequence[Example], texts: Sequence[str], generator: str) -> list[Row]:
    """Return the rows of `model_outputs.json`."""
    return [
        {
            "dataset": example.meta.get(DATASET, ""),
            "instruction": example.prompt[0].content,
            "output": text,
            "generator": generator,
        }
        for example, text in zip(examples, texts, strict=True)
    ]


def run_alpaca(config: Config, target: str, out: Path) -> PolicySummary:
    """Measure a policy on the instructions and write its greedy answers as `model_outputs.json`."""
    from text2grad.stages.evaluate.policy import run_evaluate

    summary = run_evaluate(config, target)
    name = target_name(target)
    answers = load_rows(str(RunFolder.of(config).results / f"{name}{ANSWERS}"))
    examples = heldout_prompts(RunFolder.of(config).task(), config.evaluate.limit)
    write_json(out, model_outputs(examples, [str(row["response"]) for row in answers], name))
    return summary
