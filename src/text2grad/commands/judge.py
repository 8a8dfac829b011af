"""Commands about feedback: import, export, feedback-report, serve and annotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from text2grad.commands.base import (
    DEMO,
    MAP,
    SCALE,
    SHEET,
    UNSET,
    ConfiguredAsRun,
    ConfiguredCommand,
    Stage,
    Work,
    argument,
    command,
    option,
)
from text2grad.errors import UsageError, UserError

if TYPE_CHECKING:
    from text2grad.feedback import Feedback, Span

READ_KINDS = (
    "auto, remarks, csv, feedback, label_studio, argilla, prodigy, doccano, langsmith, langfuse, phoenix, slf5k, "
    "ultrafeedback, or module:NAME."
)
WRITTEN_KINDS = "The format to write: csv or preference (for TRL)."
RECORDS = ("FILE", "A file of feedback records (JSON Lines).")
OUT = ("--out FILE", "The file to write. [default: <run.folder>/feedback.jsonl]")
START = ("--from NAME", "The policy to sample from: a run's name or a folder. [default: sft]")
FILE_ONLY_SETTINGS = ("--task.name=qa", "--policy.model=tiny")
"""Default settings when a file is judged without a configuration, where no policy is needed."""


@command("import")
class Import(Stage, ConfiguredCommand):
    """Convert existing feedback into records.

    Reads critiques written by people or by any tool, and finds the words they refer to: quotes,
    offsets, or mark-up in the response, [-poor words-]{why} and [+good words+]. Reports every line
    with unused content, such as a quote that is not in the response. A rating becomes a score only
    if its scale is known, from the file or from --scale. Rollouts and multi-turn chats are records
    too (docs/data.md); their tool calls are written in the chat template of --policy.model.

    \b
    Examples:
      text2grad import remarks.jsonl --out feedback.jsonl
      text2grad import label-studio.json --scale 1..5 --out feedback.jsonl
      text2grad import table.csv --map response=answer,critique=comment --out feedback.jsonl
      text2grad import rollouts.jsonl --scale reward=0..1 --out feedback.jsonl
    """

    source: Path = argument("SOURCE", "The file with the feedback: a table, a workbook or JSON.")
    kind: str = option("--kind KIND", f"The format of the file: {READ_KINDS}", "auto")
    names: list[str] = option(*MAP, UNSET)
    scales: list[str] = option(*SCALE, UNSET)
    no_prompt: bool = option("--no-prompt", "Accept records without a prompt.", False)
    sheet: str = option(*SHEET)
    skip: bool = option("--skip", "Skip unusable rows, and list them.", False)
    out: Path | None = option(*OUT)

    def work(self) -> Work:
        if not self.config and self.out is None:
            raise UsageError("import needs a file to write", "give --out FILE or --config NAME|FILE")
        config = self.configuration(self.config or DEMO)
        from text2grad.stages.intake import run_import

        options = (self.names, self.scales, self.no_prompt, self.sheet, self.skip)
        return Work(partial(run_import, config, self.source, self.kind, self.out, *options))


@command("export")
class Export(Stage):
    """Write feedback records as a table or as preference pairs for another trainer.

    The table can be edited in a spreadsheet and read back with import.

    \b
    Examples:
      text2grad export feedback.jsonl --as csv --out feedback.csv
    """

    source: Path = argument(*RECORDS)
    kind: str = option("--as KIND", WRITTEN_KINDS, ...)
    out: Path = option("--out FILE", "The file to write.", ...)
    pairs_per_prompt: int = option(
        "--pairs-per-prompt",
        "Preference pairs of a prompt: best and worst, second best and second worst, ...",
        1,
        min=1,
    )

    def work(self) -> Work:
        return Work(self.export)

    def export(self) -> dict[str, Any]:
        """Write the file."""
        from text2grad.data.export import count_left_out, export
        from text2grad.feedback import Feedback
        from text2grad.jsonl import read_jsonl

        rows = export(read_jsonl(self.source, Feedback), self.kind, self.out, self.pairs_per_prompt)
        return {"rows": rows, **count_left_out(read_jsonl(self.source, Feedback), self.kind), "out": str(self.out)}


@command("feedback-report")
class FeedbackReport(Stage):
    """Report what a policy would learn from a file of feedback, and what feedback is missing.

    Shows the worst answers with their marked words. --json prints the statistics: quotes that are
    not in the response, length of spans, balance of labels, failures, repeated records, canaries,
    and the agreement of annotators.

    \b
    Example:
      text2grad feedback-report feedback.jsonl
    """

    source: Path = argument(*RECORDS)
    marks: Path | None = option("--marks FILE", "Human marks of the records, correct or not, one per line.")
    limit: int = option("--show N", "Number of records to show, worst first.", 5, min=0)

    def work(self) -> Work:
        return Work(self.figures, self.show)

    def figures(self) -> dict[str, Any]:
        """Compute the statistics of the file; with --marks, also print people's marks on stderr."""
        from text2grad.critics.canaries import canaries_path
        from text2grad.page.quality import feedback_quality

        figures = feedback_quality(self.source, canaries_path(self.source))
        return {**figures, **(self.people(self.marks) if self.marks else {})}

    def show(self, figures: Mapping[str, Any]) -> None:
        """Print the worst records, what the statistics mean, and what feedback is missing."""
        from rich.console import Console

        from text2grad.page.quality import worst_records
        from text2grad.page.terminal import show_feedback

        show_feedback(Console(stderr=True), worst_records(self.source, self.limit), figures)

    def people(self, marks: Path) -> dict[str, Any]:
        """Return and print people's marks of the records; warn if they find too few correct."""
        from text2grad.eval.critics.marks import marks_report
        from text2grad.feedback import Feedback
        from text2grad.jsonl import read_jsonl
        from text2grad.page.signs import human_warnings
        from text2grad.unicode_words import units

        def length(record: Feedback, span: Span) -> int:
            return sum(start < span.end and span.start < end for start, end in units(record.response))

        agreement = marks_report(marks, read_jsonl(self.source, Feedback), length)
        for aspect, share in agreement.items():
            low, high = share["interval"]
            interval = f"{share['accuracy']:.0%} ({low:.0%} to {high:.0%}) of {share['count']}"
            typer.echo(f"people find {aspect} correct: {interval}", err=True)
        for line in human_warnings(agreement):
            typer.echo(f"warning: {line}", err=True)
        return {"people": agreement}


@command("serve")
class Serve(Stage, ConfiguredAsRun):
    """Serve the critic of a run over HTTP, for trainers in other processes.

    The critic can be a reward model, a program or a chat model. train, annotate and sample use it
    with --critic.kind URL, other trainers with text2grad.ServedCritic. The address is printed once
    the critic is loaded. Requests that arrive while the critic is busy form its next batch.

    The server listens on this machine only, unless --host names another address. The environment
    variable TEXT2GRAD_TOKEN must then hold the same secret here and on the clients. Ctrl-C and
    SIGTERM end the server after open requests are answered.

    \b
    Examples:
      text2grad serve runs/mine
      text2grad serve runs/mine --critic.kind program --port 9000
    """

    folder: Path | None = argument("FOLDER", "The folder of the run. [default: run.folder]", None)
    host: str = option("--host ADDRESS", "The address to listen on; 0.0.0.0: every interface.", "127.0.0.1")
    port: int = option("--port NUMBER", "The port to listen on; 0: any free port.", 8640, min=0, max=65_535)

    def work(self) -> Work:
        if self.folder is not None:
            if not (self.folder / "config.yaml").is_file():
                raise UserError(
                    f"{self.folder} is not a run: it has no config.yaml", "train a run or give --config"
                )
            self.overrides = ["--run.folder", str(self.folder), *self.overrides]
        config = self.configuration()
        from text2grad.stages.serve import run_serve

        return Work(partial(run_serve, config, self.host, self.port))


@command("annotate")
class Annotate(Stage, ConfiguredCommand):
    """Have a critic judge responses.

    The critic is annotate.critic, or else critic.kind: prompted (a chat model behind an
    OpenAI-compatible endpoint), program (runs unit tests), reference, human, or reward_model (your
    own). It judges the responses of FILE, or responses sampled from the policy.

    Answers of a chat model are saved in a journal as they arrive. If the command is stopped or
    killed, run it again to ask only for missing answers. --plan to --canaries are for chat models.

    Exit code 3: some answers were refused or unreadable; 4: budget reached; 75: batch pending.

    \b
    Examples:
      text2grad annotate --config mine.yaml --annotate.critic program
      text2grad annotate --responses answers.jsonl --out feedback.jsonl --task.name qa \\
        --critic.kind prompted --critic.prompted.model gpt-4o --plan
    """

    responses: Path | None = option(
        "--responses FILE", "Judge the responses or conversations in FILE (.jsonl, .csv, .xlsx, ...)."
    )
    out: Path | None = option(*OUT)
    plan: bool = option("--plan", "Estimate the cost and exit.", False)
    budget_usd: float | None = option("--budget-usd USD", "The most to spend on FILE, over all runs.", min=0.0)
    sheet: str = option(*SHEET)
    limit: int | None = option("--limit", "Judge only the first N responses.", min=1)
    resume: bool = option("--resume/--no-resume", "Reuse the answers of earlier runs.", True)
    start: str = option(*START, "")
    again: bool = option("--again", "Ask refused and unreadable questions again.", False)
    anchor: bool = option(
        "--anchor",
        "Find the words that human critiques refer to: in records of FILE without spans or, without"
        " --responses, in the drafts of the task's data.",
        False,
    )
    batch: bool = option("--batch", "Submit to the Batch API (exit code 75); run again to collect.", False)
    requests: Path | None = option("--write-requests FILE", "Write the requests as a batch file, e.g. for vLLM.")
    answers: Path | None = option("--read-answers FILE", "Read the results of that batch file.")
    canaries: bool | None = option(
        "--canaries/--no-canaries",
        "First test the chat model on responses with known labels. [default: if it is asked]",
    )

    def work(self) -> Work:
        file_only = self.responses is not None and not self.config
        config = self.configuration(
            self.config or ([] if file_only else DEMO), FILE_ONLY_SETTINGS if file_only else ()
        )
        from text2grad.stages.annotate import run_annotate
        from text2grad.stages.paid import AnnotateOptions

        options = AnnotateOptions(**{field.name: getattr(self, field.name) for field in fields(AnnotateOptions)})
        return Work(partial(run_annotate, config, self.responses, self.out, options))
