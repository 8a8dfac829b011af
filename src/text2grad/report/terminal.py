"""The results and samples on a terminal, by rich. Without colour, signs are brackets: [+good+] [-poor-]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from text2grad.feedback import Failure, Feedback, Judgement, Span
from text2grad.report.curves import signed, without_dust
from text2grad.report.folder import Sample
from text2grad.report.tables import REWARD_MODEL_COLUMNS, is_number, results, reward_model_grid, reward_model_rates
from text2grad.report.visible import stripped

STYLES = {1: "bold green", -1: "underline red", 0: "dim"}
BRACKETS = {1: ("[+", "+]"), -1: ("[-", "-]"), 0: ("", "")}

NO_TEXT = (
    "no text yet, but parts of characters in any order. This model has to be trained longer, or be a larger one"
)
FEWEST_BROKEN, BROKEN = 3, 0.01
"""Broken characters of what is no text, and their share: an answer that was cut may end in one."""
NARROWEST = 36
"""Characters of a column of answers."""
WIDEST = 10_000
"""Characters of a line where no terminal limits it."""


def show_table(console: Console, table: Table) -> None:
    """Print a table of which nothing is cut: on a terminal its cells are folded, in a pipe or a file its lines are
    as long as they need."""
    for column in table.columns:
        column.overflow = "fold"
    width = console.width
    if not console.is_terminal:
        whole = console.measure(table, options=console.options.update(width=WIDEST))
        console.width = max(width, whole.maximum)
    console.print(table)
    console.width = width


def results_table(summary: Mapping[str, Any]) -> Table:
    """The results of summary.json: a row for each policy, a column for each way to measure."""
    found = results(summary)
    table = Table(title=Text(stripped(found.metric)), title_justify="left")
    table.add_column("policy")
    for column in found.columns:
        table.add_column(Text(stripped(column)), justify="right")
    for name, cells in zip(found.names, found.cells, strict=True):
        table.add_row(Text(stripped(name)), *(cell.text for cell in cells))
    if found.has_spread:
        table.caption = "± standard deviation over the seeds"
    return table


def reward_model_table(figures: Mapping[str, Any]) -> Table:
    """The reward model measured against held-out critiques: token precision and recall, and its failures."""
    table = Table(title="Reward model, held-out", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, cells in reward_model_grid(figures):
        for column, cell in zip(REWARD_MODEL_COLUMNS, cells, strict=True):
            table.add_row(f"{name}: {column}", cell)
    for name, value, what in reward_model_rates(figures):
        table.add_row(f"{name}: {what}", value)
    return table


_BY_TOKEN, _BY_SPAN = ("precision", "recall", "f1", "character_f1"), ("exact", "partial", "nearly", "iou")
WAYS = ("greedy", "sampled", "best_temperature")
MEASURES = [
    f"{label}_{rate}" for rates in (_BY_TOKEN, _BY_SPAN) for label in ("good", "poor") for rate in rates
] + ["wrong_sign_rate", "unmatched", "ambiguous", "unreadable", "forced"]


def evaluation_table(report: Mapping[str, Any]) -> Table:
    """The full report on a reward model: rates with their intervals, next to those of the baselines."""
    baselines: Mapping[str, Any] = report["baselines"]
    title = f"Reward model against {report['records']} held-out critiques"
    table = Table(title=title, title_justify="left")
    for column in ("measure", "reward model", "95 % interval", *(name.replace("_", " ") for name in baselines)):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for name in MEASURES:
        label, _, rate = name.partition("_")
        of_label = report[label]["intervals"] if label in ("good", "poor") else {}
        bounds = of_label.get(rate) or report["intervals"].get(name)
        shown = "–".join(f"{bound:.3f}" for bound in bounds) if bounds else ""
        table.add_row(
            name.replace("_", " "), f"{report[name]:.3f}", shown, *(f"{b[name]:.3f}" for b in baselines.values())
        )
    return table


def policy_table(figures: Mapping[str, Any]) -> Table:
    """A policy measured: a row for each measure, a column for each way of answering; the rest in the caption.

    A policy that did not answer in words, but chose, has one column.
    """
    if not any(key.startswith(WAYS) for key in figures):
        figures = {f"value_{key}": value for key, value in figures.items()}
    ways = {
        way: way.replace("_", " ") for way in (*WAYS, "value") if any(key.startswith(f"{way}_") for key in figures)
    }
    if "best_temperature" in figures:
        ways["best_temperature"] = f"at {figures['best_temperature']:g}"
    rows = dict.fromkeys(key.removeprefix(f"{w}_") for w in ways for key in figures if key.startswith(f"{w}_"))
    table = Table(title_justify="left", caption_justify="left")
    for column in ("measure", *ways.values()):
        table.add_column(Text(column), justify="left" if column == "measure" else "right")
    for row in rows:
        table.add_row(stripped(row.replace("_", " ")), *(_figure(figures.get(f"{way}_{row}")) for way in ways))
    shown = {f"{way}_{row}" for way in ways for row in rows} | {"best_temperature"}
    left = {
        key.replace("_", " "): value for key, value in figures.items() if key not in shown and value is not None
    }
    rest = (f"{key}: {_figure(value)}" for key, value in left.items())
    table.caption = Text(stripped(", ".join(rest)))
    return table


def _figure(value: Any) -> str:
    return "–" if value is None else f"{without_dust(value):.4g}" if is_number(value) else str(value)


def show_samples(console: Console, samples: Sequence[Sample], count: int = 5) -> None:
    """Print up to `count` samples: tokens coloured by the sign of delta, critique beneath."""
    for sample in samples[:count]:
        score = "" if sample.score is None else f" · score {signed(sample.score)}"
        console.print(Text(stripped(f"{sample.id} · step {sample.step}{score}"), style="bold"))
        console.print(coloured_tokens(sample, brackets=console.no_color or not console.is_terminal))
        console.print(_critique(sample))
        console.print()


def coloured_tokens(sample: Sample, brackets: bool) -> Text:
    """The response with a style per token; with `brackets`, runs of one sign are bracketed as well."""
    text = Text()
    deltas = [*sample.delta, *[None] * len(sample.tokens)]
    signed = [(_sign(delta), token) for delta, token in zip(deltas, _token_texts(sample), strict=False)]
    for sign, run in groupby(signed, key=lambda pair: pair[0]):
        opening, closing = BRACKETS[sign] if brackets else ("", "")
        body = stripped("".join(token for _, token in run))
        text.append(f"{opening}{body}{closing}" if body else "", STYLES[sign])
    return text


def _token_texts(sample: Sample) -> Iterator[str]:
    """Per token its characters (once, where several tokens share one), or its name where it has none."""
    if not sample.tokens:
        yield sample.response
    done = 0
    for token, start, end in zip(sample.tokens, sample.starts, sample.ends, strict=False):
        yield sample.response[max(start, done) : end] if end > start else token
        done = max(done, end)


def _sign(delta: float | None) -> int:
    value = delta or 0.0
    return (value > 0) - (value < 0)


class Told(NamedTuple):
    """What one policy answered, and what a critic said of it, if it was asked."""

    name: str
    response: str
    judgement: Judgement | None = None


def show_answers(console: Console, prompt: str, answers: Sequence[Told]) -> None:
    """Print the answers to a prompt side by side, or below each other where a column would be too narrow.

    What a critic marked is coloured, with its reasons and the critique beneath.
    """
    brackets = console.no_color or not console.is_terminal
    views = [told_view(told, brackets) for told in answers]
    if prompt:
        console.print(Text(stripped(prompt), style="bold"))
    if len(views) > 1 and console.width >= NARROWEST * len(views):
        table = Table(expand=True)
        for told in answers:
            table.add_column(Text(stripped(told.name)), ratio=1, overflow="fold")
        table.add_row(*views)
        console.print(table)
        return
    for told, view in zip(answers, views, strict=True):
        if len(views) > 1:
            console.rule(Text(stripped(told.name)), align="left")
        console.print(view)
    console.print()


def show_feedback(console: Console, records: Sequence[Feedback], figures: Mapping[str, Any]) -> None:
    """Print records, coloured, then what the figures of their file mean and what to write next."""
    _show_records(console, records)
    shown = f", the {len(records)} worst above" if records else ""
    console.print(Text(f"{figures['records']} records, {figures['spans']} spans{shown}"))
    for sentence in figures["judgement"]:
        console.print(Text(sentence, style="bold"))
    for sentence in figures["next"]:
        console.print(Text(f"- {sentence}"))
    if "out" in figures:
        console.print(Text(f"page: {figures['out']}"), soft_wrap=True)


def _show_records(console: Console, records: Sequence[Feedback]) -> None:
    if records and all(no_text(record.response) for record in records):
        console.print(Text(f"{len(records)} answers are not shown: {NO_TEXT}", style="yellow"))
        return
    brackets = console.no_color or not console.is_terminal
    for record in records:
        asked = " ".join(record.prompt[-1].content.split())
        console.print(Text(stripped(f"{record.id}: {asked[:200]}"), style="bold"))
        console.print(told_view(Told("", record.response, record.judgement()), brackets))
        console.print()


def show_gate(console: Console, records: Sequence[Feedback], verdict: Mapping[str, Any], count: int = 5) -> None:
    """Print a reward model's critiques of fresh answers, its figures, and whether it is fit to train against."""
    _show_records(console, records[:count])
    for line in gate_lines(verdict):
        console.print(Text(stripped(line)), soft_wrap=True)


def gate_lines(verdict: Mapping[str, Any]) -> list[str]:
    """The verdict on a reward model (`gate.json`) in words: what was measured, fit or not, and why."""
    found = verdict["figures"]
    lines = []
    if found.get("f1") is not None:
        lines.append(
            f"F1 {found['f1']:.2f} ({found['f1_low']:.2f} to {found['f1_high']:.2f}) on {found['heldout']} held-out"
            f" critiques; random spans {found['random_f1']:.2f}, always neutral {found['neutral_f1']:.2f}"
        )
    if found.get("verdict_r") is not None:
        lines.append(
            f"its verdicts follow those of the annotations with r {found['verdict_r']:.2f}"
            f" ({found['verdict_r_low']:.2f} to {found['verdict_r_high']:.2f})"
        )
    lines.append(
        f"it rewards {100 * found['fresh_paid']:.0f} % of {found['fresh']} fresh answers, and"
        f" {100 * found['spoiled_paid']:.0f} % of {found['spoiled']} made unreadable on purpose"
    )
    if found.get("corrected"):
        faulted = round(found["corrected_faulted"] * found["corrected"])
        lines.append(
            f"it finds fault with {faulted} of {found['corrected']} held-out answers as people corrected them"
        )
    alone = verdict.get("spans_alone")
    if verdict["fit"]:
        lines.append("Fit to train against.")
    else:
        lines += ["Not fit to train against:", *(f"- {reason}" for reason in verdict["reasons"])]
        lines += ["Its spans alone are fit: train --credit.outcome_weight 0."] if alone and alone["fit"] else []
    return [*lines, *(f"Note: {caution}" for caution in verdict["cautions"])]


def told_view(told: Told, brackets: bool) -> Group:
    """One answer: its text, coloured where it was judged, and the judgement beneath; never what is no text."""
    if no_text(told.response):
        return Group(Text(f"({len(told.response)} characters: {NO_TEXT})", style="yellow"))
    if told.judgement is None:
        return Group(Text(stripped(told.response.rstrip())))
    if isinstance(told.judgement, Failure):
        why = f"no critique: {told.judgement.kind}: {told.judgement.message}"
        return Group(Text(stripped(told.response.rstrip())), Text(stripped(why), style="yellow"))
    spans, score = told.judgement.spans, told.judgement.score
    words = f"(a critique that is {NO_TEXT})" if no_text(told.judgement.text) else told.judgement.text
    text = Text(stripped(words), style="italic")
    verdict = [] if score is None else [Text(f"score {signed(score)}")]
    reasons = [_reason(span) for span in spans if span.reason]
    return Group(coloured_spans(told.response, spans, brackets), *reasons, text, *verdict)


def no_text(response: str) -> bool:
    """Whether an answer is made of bytes that are no characters, as a model writes that has learned little."""
    broken = response.count("\ufffd")
    return broken >= FEWEST_BROKEN and broken >= BROKEN * len(response)


def _reason(span: Span) -> Text:
    sign, words = {1: "+", 0: "~", -1: "-"}[span.label], " ".join(span.text.split())
    shown = words if len(words) <= 40 else f"{words[:37]}..."
    return Text(stripped(f"  {sign} {shown}: {span.reason}"), STYLES[span.label])


def coloured_spans(response: str, spans: Sequence[Span], brackets: bool) -> Text:
    """A response with its spans in colour; with `brackets`, in brackets as well. What is both good and poor is
    plain.
    """
    edges = sorted({0, len(response), *(edge for span in spans for edge in (span.start, span.end))})
    pieces = [
        ({span.label for span in spans if span.start <= start and end <= span.end}, response[start:end])
        for start, end in pairwise(edges)
    ]
    text = Text()
    for sign, run in groupby(pieces, key=lambda piece: sum(piece[0])):
        opening, closing = BRACKETS[sign] if brackets else ("", "")
        text.append(
            f"{opening}{stripped(''.join(piece for _, piece in run))}{closing}", STYLES[sign] if sign else ""
        )
    text.rstrip()
    return text


def _critique(sample: Sample) -> Text:
    if sample.failure is not None:
        return Text(stripped(f"no critique: {sample.failure.kind}: {sample.failure.message}"), style="yellow")
    return Text(stripped(sample.critique), style="italic")
