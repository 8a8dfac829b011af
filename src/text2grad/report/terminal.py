"""Results and samples on a terminal. Without colour, labels are brackets: [+good+] [-poor-]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from text2grad.feedback import Critique, Failure, Feedback, Judgement, Message, Place, Span, Transcript
from text2grad.report.curves import signed, without_dust
from text2grad.report.folder import Sample
from text2grad.report.samples import named_turn
from text2grad.report.tables import REWARD_MODEL_COLUMNS, is_number, results, reward_model_grid, reward_model_rates
from text2grad.report.visible import stripped

STYLES = {1: "bold green", -1: "underline red", 0: "dim"}
BRACKETS = {1: ("[+", "+]"), -1: ("[-", "-]"), 0: ("", "")}
NO_TEXT = "no text yet: train longer, or take a larger model"
FEWEST_BROKEN, BROKEN = 3, 0.01
"""Least broken characters, and their share, of what is no text."""
NARROWEST, WIDEST = 36, 10_000
"""Characters of a column of answers, and of a line in a file."""
SHOWN = 5


def show_table(console: Console, table: Table) -> None:
    """Print a whole table: folded on a terminal, else with long lines."""
    for column in table.columns:
        column.overflow = "fold"
    width = console.width
    if not console.is_terminal:
        whole = console.measure(table, options=console.options.update(width=WIDEST))
        console.width = max(width, whole.maximum)
    console.print(table)
    console.width = width


def _table(title: str, columns: Iterable[str], **options: Any) -> Table:
    """A table of names, then figures."""
    table = Table(title=Text(stripped(title)) if title else None, title_justify="left", **options)
    for number, column in enumerate(columns):
        table.add_column(Text(stripped(column)), justify="right" if number else "left")
    return table


def results_table(summary: Mapping[str, Any]) -> Table:
    """The results of summary.json, a row per policy."""
    result = results(summary)
    table = _table(result.metric, ["policy", *result.columns])
    for name, cells in zip(result.names, result.cells, strict=True):
        table.add_row(Text(stripped(name)), *(cell.text for cell in cells))
    table.caption = "± standard deviation over the seeds" if result.has_spread else None
    return table


def reward_model_table(figures: Mapping[str, Any]) -> Table:
    """Token precision, recall and failures of the reward model."""
    table = _table("Reward model, held-out", ["measure", "value"])
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
    """All rates of a reward model, with intervals, beside baselines."""
    baselines: Mapping[str, Any] = report["baselines"]
    columns = ("measure", "reward model", "95 % interval", *(name.replace("_", " ") for name in baselines))
    table = _table(f"Reward model against {report['records']} held-out critiques", columns)
    for name in MEASURES:
        label, _, rate = name.partition("_")
        of_label = report[label]["intervals"] if label in ("good", "poor") else {}
        bounds = of_label.get(rate) or report["intervals"].get(name) or ()
        figures = (f"{rates[name]:.3f}" for rates in (report, *baselines.values()))
        own, *others = figures
        table.add_row(name.replace("_", " "), own, "–".join(f"{bound:.3f}" for bound in bounds), *others)
    return table


def policy_table(figures: Mapping[str, Any]) -> Table:
    """A row per measure, a column per way to answer (one where it chose letters); the rest in the caption."""
    if not any(key.startswith(WAYS) for key in figures):
        figures = {f"value_{key}": value for key, value in figures.items()}
    ways = {way: way.replace("_", " ") for way in (*WAYS, "value") if any(k.startswith(f"{way}_") for k in figures)}
    if "best_temperature" in figures:
        ways["best_temperature"] = f"at {figures['best_temperature']:g}"
    rows = dict.fromkeys(key.removeprefix(f"{w}_") for w in ways for key in figures if key.startswith(f"{w}_"))
    table = _table("", ["measure", *ways.values()], caption_justify="left")
    for row in rows:
        table.add_row(stripped(row.replace("_", " ")), *(_figure(figures.get(f"{way}_{row}")) for way in ways))
    shown = {f"{way}_{row}" for way in ways for row in rows} | {"best_temperature"}
    left = {key: value for key, value in figures.items() if key not in shown and value is not None}
    rest = ", ".join(f"{key.replace('_', ' ')}: {_figure(value)}" for key, value in left.items())
    table.caption = Text(stripped(rest))
    return table


def _figure(value: Any) -> str:
    return "–" if value is None else f"{without_dust(value):.4g}" if is_number(value) else str(value)


def show_samples(console: Console, samples: Sequence[Sample], count: int = SHOWN) -> None:
    """Print up to `count` samples: tokens coloured by the sign of delta, then the critique."""
    for sample in samples[:count]:
        score = "" if sample.score is None else f" · score {signed(sample.score)}"
        failure = sample.failure
        critique = Text(stripped(sample.critique), style="italic") if failure is None else _no_critique(failure)
        console.print(Text(stripped(f"{sample.id} · step {sample.step}{score}"), style="bold"))
        console.print(coloured_tokens(sample, _needs_brackets(console)), critique, "", sep="\n")


def _needs_brackets(console: Console) -> bool:
    return console.no_color or not console.is_terminal


def _no_critique(failure: Failure) -> Text:
    return Text(stripped(f"no critique: {failure.kind}: {failure.message}"), style="yellow")


def coloured_tokens(sample: Sample, brackets: bool) -> Text:
    """The response, coloured by token."""
    deltas = [*sample.delta, *[None] * len(sample.tokens)]
    signs = [((delta or 0.0) > 0) - ((delta or 0.0) < 0) for delta in deltas]
    return _coloured(zip(signs, _token_texts(sample), strict=False), brackets)


def _token_texts(sample: Sample) -> Iterator[str]:
    """The characters of each token (shared ones once), or its name."""
    if not sample.tokens:
        yield sample.response
    done = 0
    for token, start, end in zip(sample.tokens, sample.starts, sample.ends, strict=False):
        yield sample.response[max(start, done) : end] if end > start else token
        done = max(done, end)


def coloured_answer(response: str, judgement: Judgement | None, brackets: bool) -> Text:
    """A response, coloured by span; one of several turns as the conversation that it is."""
    spans = judgement.spans if isinstance(judgement, Critique) else ()
    if not isinstance(response, Transcript):
        return coloured_spans(response, spans, brackets)
    parts: list[Text] = []
    for number, turn in enumerate(response.turns, start=1):
        parts += map(_by_another, turn.messages)
        name = Text(f"{named_turn(number, judgement)}: ", style="bold")
        parts.append(name + coloured_spans(response, spans, brackets, (turn.start, turn.end)))
    return Text("\n").join([*parts, *map(_by_another, response.after)])


def _by_another(message: Message) -> Text:
    content = message.content.strip()
    shown = content if len(content) <= MOST_OF_OTHERS else f"{content[:MOST_OF_OTHERS]}..."
    return Text(stripped(f"{message.role}: {shown}"), style="dim")


def coloured_spans(response: str, spans: Sequence[Span], brackets: bool, of: Place | None = None) -> Text:
    """A response, or the characters `of` it, coloured by span; plain where both good and poor."""
    start, end = of or (0, len(response))
    places = [place for span in spans for place in (span.start, span.end) if start <= place <= end]
    edges = sorted({start, end, *places})
    pieces = [
        (sum({span.label for span in spans if span.start <= start and end <= span.end}), response[start:end])
        for start, end in pairwise(edges)
    ]
    text = _coloured(pieces, brackets)
    text.rstrip()
    return text


def _coloured(pieces: Iterable[tuple[int, str]], brackets: bool) -> Text:
    """Pieces of a text with their signs (1, -1, 0), coloured."""
    text = Text()
    for sign, run in groupby(pieces, key=lambda piece: piece[0]):
        opening, closing = BRACKETS[sign] if brackets else ("", "")
        body = stripped("".join(piece for _, piece in run))
        text.append(f"{opening}{body}{closing}" if body else "", STYLES[sign] if sign else "")
    return text


class PolicyAnswer(NamedTuple):
    """An answer of a policy, judged or not."""

    name: str
    response: str
    judgement: Judgement | None = None


def show_answers(console: Console, prompt: str, answers: Sequence[PolicyAnswer]) -> None:
    """Print the answers to a prompt with their critiques, side by side if there is room."""
    views = [answer_view(answer, _needs_brackets(console)) for answer in answers]
    if prompt:
        console.print(Text(stripped(prompt), style="bold"))
    if len(views) > 1 and console.width >= NARROWEST * len(views):
        table = Table(expand=True)
        for answer in answers:
            table.add_column(Text(stripped(answer.name)), ratio=1, overflow="fold")
        table.add_row(*views)
        console.print(table)
        return
    for answer, view in zip(answers, views, strict=True):
        if len(views) > 1:
            console.rule(Text(stripped(answer.name)), align="left")
        console.print(view)
    console.print()


MOST_OF_OTHERS = 400
"""Characters of what a tool or a user said that are shown."""


def answer_view(answer: PolicyAnswer, brackets: bool) -> Group:
    """An answer, coloured, and its judgement."""
    judged = answer.judgement
    if no_text(answer.response):
        return Group(Text(f"({len(answer.response)} characters: {NO_TEXT})", style="yellow"))
    if judged is None or isinstance(judged, Failure):
        plain = coloured_answer(answer.response, judged, brackets)
        return Group(plain) if judged is None else Group(plain, _no_critique(judged))
    words = f"(a critique that is {NO_TEXT})" if no_text(judged.text) else judged.text
    verdict = [] if judged.score is None else [Text(f"score {signed(judged.score)}")]
    reasons = [_reason(span) for span in judged.spans if span.reason]
    response = coloured_answer(answer.response, judged, brackets)
    return Group(response, *reasons, Text(stripped(words), style="italic"), *verdict)


def no_text(response: str) -> bool:
    """Whether an answer is mostly broken bytes, from an undertrained model."""
    broken = response.count("\ufffd")
    return broken >= FEWEST_BROKEN and broken >= BROKEN * len(response)


def _reason(span: Span) -> Text:
    sign, words = {1: "+", 0: "~", -1: "-"}[span.label], " ".join(span.text.split())
    shown = words if len(words) <= 40 else f"{words[:37]}..."
    return Text(stripped(f"  {sign} {shown}: {span.reason}"), STYLES[span.label])


def show_feedback(console: Console, records: Sequence[Feedback], figures: Mapping[str, Any]) -> None:
    """Print records, coloured, then the meaning of the figures."""
    _show_records(console, records)
    shown = f", the {len(records)} worst above" if records else ""
    console.print(Text(f"{figures['records']} records, {figures['spans']} spans{shown}"))
    console.print(*(Text(sentence, style="bold") for sentence in figures["judgement"]), sep="\n")
    console.print(*(Text(f"- {sentence}") for sentence in figures["next"]), sep="\n")
    if "out" in figures:
        console.print(Text(f"page: {figures['out']}"), soft_wrap=True)


def _show_records(console: Console, records: Sequence[Feedback]) -> None:
    if records and all(no_text(record.response) for record in records):
        console.print(Text(f"{len(records)} answers are not shown: {NO_TEXT}", style="yellow"))
        return
    for record in records:
        prompt = " ".join(record.prompt[-1].content.split())
        console.print(Text(stripped(f"{record.id}: {prompt[:200]}"), style="bold"))
        console.print(
            answer_view(PolicyAnswer("", record.response, record.judgement()), _needs_brackets(console)), ""
        )


def show_gate(
    console: Console, records: Sequence[Feedback], verdict: Mapping[str, Any], count: int = SHOWN
) -> None:
    """Print a reward model's critiques of fresh answers, and its verdict."""
    _show_records(console, records[:count])
    for line in gate_lines(verdict):
        console.print(Text(stripped(line)), soft_wrap=True)


def gate_lines(verdict: Mapping[str, Any]) -> list[str]:
    """The verdict on a reward model (`gate.json`) in words."""
    figures = verdict["figures"]
    lines = []
    if figures.get("f1") is not None:
        f1, low, high, random, neutral = (
            f"{figures[key]:.2f}" for key in ("f1", "f1_low", "f1_high", "random_f1", "neutral_f1")
        )
        on = f"on {figures['heldout']} held-out critiques"
        lines.append(f"F1 {f1} ({low} to {high}) {on}; random spans {random}, always neutral {neutral}")
    if figures.get("verdict_r") is not None:
        r, low, high = (f"{figures[key]:.2f}" for key in ("verdict_r", "verdict_r_low", "verdict_r_high"))
        lines.append(f"its verdicts correlate with the annotations: r {r} ({low} to {high})")
    lines.append(
        f"it rewards {100 * figures['fresh_paid']:.0f} % of {figures['fresh']} fresh answers, and"
        f" {100 * figures['spoiled_paid']:.0f} % of {figures['spoiled']} made unreadable"
    )
    if corrected := figures.get("corrected"):
        faulted = round(figures["corrected_faulted"] * corrected)
        lines.append(f"it finds fault with {faulted} of {corrected} answers corrected by people")
    if verdict["fit"]:
        lines.append("Fit to train against.")
    else:
        alone = (verdict.get("spans_alone") or {}).get("fit")
        lines += ["Not fit to train against:", *(f"- {reason}" for reason in verdict["reasons"])]
        lines += ["Its spans alone are fit: train --credit.outcome_weight 0."] if alone else []
    return [*lines, *(f"Note: {caution}" for caution in verdict["cautions"])]
