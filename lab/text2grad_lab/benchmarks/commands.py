"""The commands of the benchmarks: choices, mt-bench, alpaca, samples."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from text2grad.commands.base import ConfiguredAsRun, Stage, Work, argument, command, option
from text2grad.config import Config

TARGET = ("TARGET", "A run's name (sft, text2grad, ...), a model folder or a hub name.", "text2grad")
ANSWERS = "Measure this file of answers instead of a policy."
ARC, MT_BENCH, ALPACA_EVAL = (
    f"text2grad_lab.benchmarks.{name}" for name in ("arc:ARC", "mt_bench:MTBench", "alpaca:AlpacaEval")
)
HUMANEVAL = "text2grad_lab.benchmarks.programs:HumanEval"


def load_on_task(stage: ConfiguredAsRun, name: str) -> Config:
    """Load the configuration with the benchmark `name` as its task.

    Settings of the configured task are dropped; those on the command line still apply.
    """
    stage.overrides = ["--task", json.dumps({"name": name}), *stage.overrides]
    return stage.configuration()


@command("choices")
class Choices(Stage, ConfiguredAsRun):
    """Measure a policy on multiple-choice questions: ARC-Challenge, or a file.

    The choice is the most likely answer, in total and per character. The difference between two
    policies shows what was forgotten in training.

    \b
    Example:
      python -m text2grad_lab choices text2grad --config mine.yaml --evaluate.limit 200
    """

    target: str = argument(*TARGET)

    def work(self) -> Work:
        config = load_on_task(self, ARC)
        from text2grad_lab.benchmarks.choices import run_choices

        return Work(partial(run_choices, config, self.target))


@command("mt-bench")
class MTBench(Stage, ConfiguredAsRun):
    """Have a judge rate two turns of answers to MT-Bench.

    The folder task.data has FastChat's question.jsonl, judge_prompts.jsonl and
    reference_answer_gpt-4.jsonl. With --answers a file of FastChat's model_answer is rated.

    \b
    Example:
      python -m text2grad_lab mt-bench text2grad --task.data mt_bench --evaluate.judge gpt-4o
    """

    target: str = argument(*TARGET)
    answers: Path | None = option("--answers FILE", ANSWERS)

    def work(self) -> Work:
        config = load_on_task(self, MT_BENCH)
        from text2grad_lab.benchmarks.mt_bench_run import run_mt_bench, run_mt_bench_answers

        if self.answers is not None:
            return Work(partial(run_mt_bench_answers, config, self.answers))
        return Work(partial(run_mt_bench, config, self.target))


@command("alpaca")
class Alpaca(Stage, ConfiguredAsRun):
    """Answer AlpacaEval's instructions for its program to judge.

    \b
    Examples:
      python -m text2grad_lab alpaca text2grad --config mine.yaml --out model_outputs.json
      alpaca_eval evaluate --model_outputs model_outputs.json --output_path FOLDER
    """

    target: str = argument(*TARGET)
    out: Path = option("--out FILE", "Where to write the answers.", Path("model_outputs.json"))

    def work(self) -> Work:
        from text2grad_lab.benchmarks.alpaca import run_alpaca

        return Work(partial(run_alpaca, load_on_task(self, ALPACA_EVAL), self.target, self.out))


@command("samples")
class Samples(Stage, ConfiguredAsRun):
    """Run programs by any system against the tests of their tasks: pass@k.

    Every line of FILE is {"task_id", "solution"} or {"task_id", "completion"}, in EvalPlus's
    format.

    \b
    Example:
      python -m text2grad_lab samples samples.jsonl --task text2grad_lab.benchmarks.programs:MBPP
    """

    samples: Path = argument("FILE", "Programs in EvalPlus's format.", ...)
    task: str = option("--task CLASS", "The task with the tests, as module:Class.", HUMANEVAL)

    def work(self) -> Work:
        config = load_on_task(self, self.task)
        from text2grad_lab.benchmarks.samples import run_samples

        return Work(partial(run_samples, config, self.samples))
