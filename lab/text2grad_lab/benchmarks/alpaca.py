"""AlpacaEval 2: 805 instructions with a baseline's answers, and win rates from its annotations (Li et al. 2023).

`model_outputs.json` holds our answers, `annotations.json` the preferences of its judge. Its own program asks it:
`alpaca_eval evaluate --model_outputs model_outputs.json --output_path FOLDER`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.config import Config
from text2grad.data.files import Row, convert_rows, load_rows, optional_text, text_of
from text2grad.data.published import Shape, one_turn, read_examples
from text2grad.errors import UserError, warn_once
from text2grad.eval.metrics import mean
from text2grad.feedback import Example
from text2grad.stages.run_folder import (
    ANSWERS,
    RunFolder,
    heldout_prompts,
    target_name,
    write_json,
)
from text2grad.tasks.base import TaskSettings, rouge_l_scores
from text2grad.tasks.data_task import Benchmark

if TYPE_CHECKING:
    from text2grad.stages.evaluate import PolicySummary

NO_LENGTH_CONTROL = "no length-controlled win rate without alpaca_eval: pip install alpaca_eval"
LENGTH_CONTROLLED = "length_controlled_win_rate"
HUB_NAME = "tatsu-lab/alpaca_eval"
DATASET = "dataset"
"""Key of an example's `meta`: the AlpacaEval subset."""


class AlpacaEval(Benchmark):
    """Instructions, with the baseline's answer as reference."""

    name = "AlpacaEval"

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


def model_outputs(examples: Sequence[Example], texts: Sequence[str], generator: str) -> list[Row]:
    """Answers in the shape of `model_outputs.json`."""
    return [
        {
            "dataset": example.meta.get(DATASET, ""),
            "instruction": example.prompt[0].content,
            "output": text,
            "generator": generator,
        }
        for example, text in zip(examples, texts, strict=True)
    ]


def read_annotations(path: Path) -> list[Row]:
    """The rows of an `annotations.json`.

    Raises:
        UserError: it cannot be read, or a row has no `preference` or one that is not null, 0, or from 1 to 2.
    """
    keys = frozenset({"preference", "output_1", "output_2"})
    return list(convert_rows(load_rows(str(path)), path, keys, lambda row, _: [_checked(row)], "AlpacaEval's"))


def win_rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often the second of two systems (`generator_2`) is preferred, as AlpacaEval counts (percent).

    Returns:
        `win_rate`: mean preference - 1; `standard_error` of it; `discrete_win_rate`: preferences rounded, a draw is
        half; `length_controlled_win_rate` (Dubois et al. 2024) by the alpaca_eval package, None and one line where
        that is not installed; `n_wins`, `n_wins_base`, `n_draws`, `n_total`; `unrated`: rows without a preference,
        left out; `length`, `their_length`: mean characters of both.

    Raises:
        UserError: no row has a preference.
    """
    rated = [row for row in rows if row["preference"] is not None]
    if not rated:
        raise UserError("no annotation has a preference", "look into the file: did its judge answer?")
    points = [0.5 if row["preference"] in (0, 1.5) else float(row["preference"]) - 1 for row in rated]
    share = mean(points)
    variance = sum((point - share) ** 2 for point in points) / max(1, len(points) - 1)
    wins, losses = (sum(sign * (point - 0.5) > 0 for point in points) for sign in (1, -1))
    draws = len(points) - wins - losses
    return {
        "win_rate": 100 * share,
        "standard_error": 100 * math.sqrt(variance / len(points)),
        "discrete_win_rate": 100 * (wins + draws / 2) / len(points),
        LENGTH_CONTROLLED: _length_controlled(rated),
        "n_wins": wins,
        "n_wins_base": losses,
        "n_draws": draws,
        "n_total": len(points),
        "unrated": len(rows) - len(rated),
        "length": mean([len(str(row["output_2"])) for row in rated]),
        "their_length": mean([len(str(row["output_1"])) for row in rated]),
    }


def _length_controlled(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """By AlpacaEval's regression; it needs its own instructions by `index`, and their difficulties from the hub."""
    try:
        import pandas  # type: ignore[import-untyped]
        from alpaca_eval.metrics import get_length_controlled_winrate
    except ModuleNotFoundError:
        warn_once(NO_LENGTH_CONTROL)
        return None
    frame = pandas.DataFrame([{**row, "index": row.get("index", n)} for n, row in enumerate(rows)])
    found = get_length_controlled_winrate(frame, save_weights_dir=None)
    return float(found["length_controlled_winrate"])


def _checked(row: Row) -> Row:
    value = row["preference"]
    if isinstance(value, float) and math.isnan(value):
        return {**row, "preference": None}
    if value is not None and (
        not isinstance(value, int | float) or isinstance(value, bool) or not (value == 0 or 1 <= value <= 2)
    ):
        raise ValueError(f"a preference of {value!r} is neither null, 0, nor from 1 to 2")
    return row


def run_alpaca(config: Config, target: str, out: Path) -> PolicySummary:
    """Measure a policy on the instructions and write its greedy answers as `model_outputs.json`."""
    from text2grad.stages.evaluate import run_evaluate

    summary = run_evaluate(config, target)
    name = target_name(target)
    answers = load_rows(str(RunFolder.of(config).results / f"{name}{ANSWERS}"))
    examples = heldout_prompts(RunFolder.of(config).task(), config.evaluate.limit)
    write_json(out, model_outputs(examples, [str(row["response"]) for row in answers], name))
    return summary
