"""Commands about trained models: evaluate, sample, try and merge."""

from __future__ import annotations

import json
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from text2grad.commands.base import ConfiguredAsRun, Stage, Work, argument, command, option
from text2grad.commands.console import show_policy, show_reward_report, typed_lines
from text2grad.errors import EXIT_DONE, EXIT_SOME_RECORDS_FAILED, UsageError

if TYPE_CHECKING:
    from text2grad.config import Config
    from text2grad.stages.talk import PromptAnswers

POLICY, REWARD_MODEL = TARGETS = ("policy", "reward-model")
TASK_HELP = "policy, reward-model, or another task to measure the policy on: qa, module:Class, ..."
NO_FILES: list[Path] = []
WITH = (
    "--with NAMES",
    "The policies that answer, separated by commas: base, sft, a run's name, a model folder, a hub name or"
    " smollm2. [default: all policies of the run]",
)
CRITIQUE = ("--critique", "Have the run's critic (critic.kind) judge the answers.", False)


@command("evaluate")
class Evaluate(Stage, ConfiguredAsRun):
    """Measure a policy, a reward model or a file of answers.

    A policy answers the held-out prompts. A reward model judges the held-out feedback.

    With --answers no policy is loaded; the answers of a file are measured with ROUGE and BLEU. Each
    row has a response, and either a reference or the id of a held-out prompt of the task. With
    --against a judge (evaluate.judge) compares them with other answers to the same prompts, in both
    orders.

    The settings come from the run (<run.folder>/config.yaml) unless --config names others.

    \b
    Examples:
      text2grad evaluate text2grad --config mine.yaml
      text2grad evaluate text2grad --config mine.yaml --evaluate.temperatures "[0.3, 0.5, 0.7, 1.0]"
      text2grad evaluate --task reward-model --config mine.yaml
      text2grad evaluate --task summarization --answers gpt-4o.jsonl --json
      text2grad evaluate --task qa --answers ours.jsonl --against theirs.jsonl \\
        --evaluate.judge gpt-4o
    """

    target: str = argument(
        "TARGET", "A run's name (sft, text2grad, ...), a model folder or a hub name.", "text2grad"
    )
    what: str = option("--task WHAT", TASK_HELP, POLICY)
    answers: list[Path] = option(
        "--answers FILE", "A file with answers of any system; each file becomes a row of the table.", NO_FILES
    )
    against: str | None = option(
        "--against FILE|references", "Have evaluate.judge compare the answers or critiques with these."
    )
    marks: Path | None = option(
        "--marks FILE", "Human marks of the reward model's critiques: id and correct, one per line."
    )

    def work(self) -> Work:
        self.apply_task()
        self.refuse_contradictions()
        config = self.configuration()
        if self.answers:
            from text2grad.stages.evaluate.answers import run_evaluate_answers

            return Work(partial(run_evaluate_answers, config, self.answers, self.against))
        if self.what == REWARD_MODEL:
            from text2grad.stages.reward_model.train import run_evaluate_reward_model

            against = Path(self.against) if self.against else None
            return Work(partial(run_evaluate_reward_model, config, against, self.marks), show_reward_report)
        from text2grad.stages.evaluate.policy import run_evaluate

        return Work(
            partial(run_evaluate, config, self.target, self.against), partial(show_policy, config, self.target)
        )

    def apply_task(self) -> None:
        """Replace the configured task with the one of --task.

        The complete section is replaced, because its settings are about the other task. Settings on
        the command line still override.
        """
        if self.what in TARGETS:
            return
        from text2grad.tasks.base import TASKS

        if self.what not in TASKS and ":" not in self.what:
            names = ", ".join([*TARGETS, *TASKS])
            raise UsageError(f"unknown task {self.what!r}", f"--task is one of {names}, or module:Class")
        if self.untrusted_configuration()[0].task.name != self.what:
            self.overrides = ["--task", json.dumps({"name": self.what}), *self.overrides]

    def refuse_contradictions(self) -> None:
        """Refuse options that exclude each other."""
        reward_model = self.what == REWARD_MODEL
        if self.answers and reward_model:
            raise UsageError("--answers and --task reward-model exclude each other", "use only one of them")
        if self.marks is not None and not reward_model:
            raise UsageError("--marks is for --task reward-model", "text2grad evaluate --help")
        prompt = any(word.partition("=")[0] == "--judge.prompt" for word in self.overrides)
        if prompt and self.against is None and not reward_model:
            raise UsageError("--judge.prompt needs answers to compare with", "--against FILE or references")


@command("sample")
class Sample(Stage, ConfiguredAsRun):
    """Show the answers of several policies side by side.

    The settings come from the run (<run.folder>/config.yaml) unless --config names others. All
    policies use the same random numbers; --generation.temperature 0 decodes greedily.

    \b
    Examples:
      text2grad sample "When is it due?" --with base,sft,text2grad --run.folder runs/mine --critique
      text2grad sample --prompts questions.jsonl --with smollm2 -k 4 --out answers.csv
    """

    prompt: str | None = argument("PROMPT", "The prompt to answer.", None)
    names: str = option(*WITH, "")
    prompts: Path | None = option("--prompts FILE", "A file of prompts: .jsonl or .csv with a prompt, or .txt.")
    critique: bool = option(*CRITIQUE)
    count: int = option("-k --answers K", "Answers per policy and prompt.", 1, min=1)
    out: Path | None = option(
        "--out FILE",
        "Also write the answers for marking: a .csv with columns to fill in, for import, or records"
        " (.jsonl), for annotate, feedback-report and import.",
    )
    as_json: bool = field(
        default=option("--json", "Print one JSON object per prompt instead.", False), kw_only=True
    )

    def work(self) -> Work:
        return Work(partial(self.ask, self.configuration()))

    def ask(self, config: Config) -> int:
        """Answer all prompts, and print and write the answers; return 3 if a critique failed."""
        from text2grad.critics.table import source_kind_of
        from text2grad.feedback import Failure, Source
        from text2grad.jsonl import refuse_folder
        from text2grad.stages.talk import prompts_to_ask, repeated, run_sample, to_mark, write_to_mark

        if self.out is not None:
            refuse_folder(self.out)
        examples = repeated(prompts_to_ask(self.prompt, self.prompts), self.count)
        if len(examples) > 1:
            typer.echo(f"sampling {len(examples)} answers of each policy", err=True)
        results = run_sample(config, examples, _names(self.names), self.critique)
        if self.out is not None:
            source = Source(kind=source_kind_of(config.critic.kind) if self.critique else "human")
            records = to_mark(results, source)
            next_step = write_to_mark(self.out, records)
            typer.echo(f"{len(records)} answers in {self.out}; {next_step}", err=True)
        if self.as_json or self.out is None or len(results) == 1:
            for result in results:
                _print_answers(result, self.as_json)
        has_failure = any(isinstance(answer.judgement, Failure) for result in results for answer in result.answers)
        return EXIT_SOME_RECORDS_FAILED if has_failure else EXIT_DONE


@command("try")
class Try(Stage, ConfiguredAsRun):
    """Chat with a policy in the terminal.

    Reads lines from the keyboard or a pipe until the end (Ctrl-D) or /quit; /new starts a new
    conversation. The settings come from the run, as for `sample`. Without --with, the last policy
    of the run answers.

    \b
    Examples:
      text2grad try --run.folder runs/mine
      text2grad try --with smollm2 --single < questions.txt
    """

    names: str = option(*WITH, "")
    keep: bool = option("--keep/--single", "Keep the conversation, or answer each line on its own.", True)
    critique: bool = option(*CRITIQUE)
    as_json: bool = field(default=option("--json", "Print one JSON object per line instead.", False), kw_only=True)

    def work(self) -> Work:
        return Work(partial(self.talk, self.configuration()))

    def talk(self, config: Config) -> int:
        """Answer line by line."""
        from text2grad.stages.run_folder import RunFolder
        from text2grad.stages.talk import run_try

        names = _names(self.names) or [RunFolder.of(config).policies()[-1][0]]
        show = partial(_print_answers, as_json=self.as_json, with_prompt=False)
        run_try(config, names, typed_lines(), show, self.keep, self.critique)
        return EXIT_DONE


def _names(words: str) -> list[str]:
    return [name.strip() for name in words.split(",") if name.strip()]


def _print_answers(result: PromptAnswers, as_json: bool, with_prompt: bool = True) -> None:
    from rich.console import Console

    from text2grad.page.terminal import show_answers

    if as_json:
        typer.echo(json.dumps(result.as_row(), ensure_ascii=False))
    else:
        show_answers(Console(), result.prompt if with_prompt else "", result.answers)


@command("merge")
class Merge(Stage, ConfiguredAsRun):
    """Export a trained model as a folder that other programs can load.

    Adapters are merged into the weights in float32, so that vLLM and transformers can load the
    folder. Half precision rounds away part of a small change; the summary reports how much remains.
    A model card records the sources, the training and the measurements. Nothing is uploaded without
    --push-to-hub.

    With --gguf the folder also contains a GGUF file for llama.cpp and programs built on it. If an
    architecture or tokenizer cannot be converted exactly, the command of llama.cpp's own converter
    is printed instead. With --adapter the folder contains the adapter alone, for use in vLLM or
    PEFT with its base model.

    The settings come from the run (<run.folder>/config.yaml) unless --config names others.

    \b
    Examples:
      text2grad merge text2grad --config mine.yaml --out models/mine
      text2grad merge text2grad --config mine.yaml --out models/mine --gguf --dtype float16
      text2grad merge reward_model --config mine.yaml --out models/critic
    """

    target: str = argument("TARGET", "A run's name (sft, text2grad, ...), reward_model, or a folder.")
    out: Path = option("--out FOLDER", "A new folder for the model.", ...)
    gguf: bool = option("--gguf", "Also write FOLDER/<name of FOLDER>.gguf.", False)
    adapter: bool = option("--adapter", "Write the adapter alone, without merging it.", False)
    base: str = option(
        "--base NAME", "With --adapter: the public name of the base model. [default: its hub name or folder]", ""
    )
    license_name: str = option("--license NAME", "The hub's name of the licence, for the model card.", "other")
    hub: str | None = option("--push-to-hub NAME", "Upload the model to the hub, as user/model.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        "--dtype", "Type of the weights. [default: float32 if an adapter is merged, else as saved]"
    )

    def work(self) -> Work:
        if self.adapter and (self.gguf or self.dtype):
            raise UsageError("--adapter cannot convert the weights", "leave out --gguf and --dtype")
        if self.base and not self.adapter:
            raise UsageError("--base needs --adapter", "add --adapter")
        config = self.configuration()
        from text2grad.stages.merge import MergeForm, run_merge

        form = MergeForm(dtype=self.dtype, gguf=self.gguf, adapter=self.adapter, base=self.base)
        return Work(partial(run_merge, config, self.target, self.out, self.license_name, self.hub, form))
