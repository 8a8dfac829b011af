"""AlpacaEval's instructions, and the file of answers for its program."""

from __future__ import annotations

import json
from pathlib import Path

from text2grad.tasks.base import TaskSettings
from text2grad_lab.benchmarks.alpaca import AlpacaEval, model_outputs


def test_instructions_become_rows_of_model_outputs(tmp_path: Path) -> None:
    rows = [
        {"dataset": "vicuna", "instruction": "Why?", "output": "So.", "generator": "gpt4"},
        {"instruction": "How?"},
    ]
    (tmp_path / "alpaca_eval.json").write_text(json.dumps(rows))
    task = AlpacaEval(TaskSettings(name="AlpacaEval", data=str(tmp_path / "alpaca_eval.json")))
    examples = task.examples("heldout")
    assert [example.reference for example in examples] == ["So.", ""] and task.examples("train") == []
    assert model_outputs(examples, ["Because.", "Thus."], "ours") == [
        {"dataset": "vicuna", "instruction": "Why?", "output": "Because.", "generator": "ours"},
        {"dataset": "", "instruction": "How?", "output": "Thus.", "generator": "ours"},
    ]
