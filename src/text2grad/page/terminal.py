"""Results and judged answers on a terminal.

Without colour, labels are brackets: [+good+] [-poor-].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from text2grad.feedback import Critique, Failure, Feedback, Judgement, Message, Span, Transcript
from text2grad.page.quality import describe_feedback
from text2grad.page.render import is_number, signed, stripped, without_dust

STYLES = {1: "bold green", -1: "underline red", 0: "dim"}
BRACKETS = {1: ("[+", "+]"), -1: ("[-", "-]"), 0: ("", "")}
NARROWEST, WIDEST = 36, 10_000
"""Characters of a column of answers, and of a line in a file."""
MAX_RECORDS = 5
"""Records that a command prints."""
MAX_MESSAGE = 400
"""Characters shown of a message of a tool or a user."""
WAYS = ("greedy", "sampled", "best_temperature")
RATES = ("precision", "recall", "f1", "character_f1", "exact", "partial", "nearly", "iou")
MEASURES = [f"{label}_{rate}" for label in ("good", "poor") for rate in RATES] + [
    "wrong_sign_rate",
    "unmatched",
    "ambiguous",
    "unreadable",
    "forced",
]


def show_table(console: Console, table: Table) -> None:
    """Print a table: folded on a terminal, else with long lines."""
    for column in table.columns:
        column.overflow = "fold"
    width = console.width
    if not console.is_terminal:
        size = console.measure(table, options=console.options.update(width=WIDEST))
        console.width = max(width, size.maximum)
    console.print(table)
    console.width = width


def _table(title: str, columns: Iterable[str], **options: Any) -> Table:
    """Return a table with a column of names, then columns of figures."""
    table = Table(title=Text(stripped(title)) if title else None, title_justify="left", **options)
    for number, column in enumerate(columns):
        table.add_column(Text(stripped(column)), justify="right" if number else "left")
    return table


def results_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with a row of figures for each policy."""
    table = _table(title, ["policy", *dict.fromkeys(name for figures in rows.values() for name in figures)])
    for name, figures in rows.items():
        table.add_row(Text(stripped(name)), *(f"{value:.3f}" for value in figures.values()))
    return table


def evaluation_table(report: Mapping[str, Any]) -> Table:
    """Return all rates of a reward model with intervals, next to the baselines."""
    baselines: Mapping[str, Any] = report["baselines"]
    columns = ("measure", "reward model", "95 % interval", *(name.replace("_", " ") for name in baselines))
    table = _table(f"Reward model against {report['records']} held-out critiques", columns)
    for name in MEASURES:
        label, _, rate = name.partition("_")
        of_label = report[label]["intervals"] if label in ("good", "poor") else {}
        bounds = of_label.get(rate) or report["intervals"].get(name) or ()
        value, *others = (f"{rates[name]:.3f}" for rates in (report, *baselines.values()))
        table.add_row(name.replace("_", " "), value, "–".join(f"{bound:.3f}" for bound in bounds), *others)
    return table


def policy_table(figures: Mapping[str, Any]) -> Table:
    """Return a row per measure and a column per decoding method; the caption has other figures."""
    if not any(key.startswith(WAYS) for key in figures):
        figures = {f"value_{key}": value for key, value in figures.items()}
    ways = {way: way.replace("_", " ") for way in (*WAYS, "value") if any(k.startswith(f"{way}_") for k in figures)}
    if "best_temperature" in figures:
        ways["best_temperature"] = f"at {figures['best_temperature']:g}"
    rows = dict.fromkeys(key.removeprefix(f"{w}_") for w in ways for key in figures if key.startswith(f"{w}_"))
    table = _table("", ["measure", *ways.values()], caption_justify="left")
    for row in rows:
        table.add_row(stripped(row.replace("_", " ")), *(_figure(figures.get(f"{way}_{row}")) for way in ways))
    in_table = {f"{way}_{row}" for way in ways for row in rows} | {"best_temperature"}
    others = {key: value for key, value in figures.items() if key not in in_table and value is not None}
    caption = ", ".join(f"{key.replace('_', ' ')}: {_figure(value)}" for key, value in others.items())
    table.caption = Text(stripped(caption))
    return table


def _figure(value: Any) -> str:
    return "–" if value is None else f"{without_dust(value):.4g}" if is_number(value) else str(value)


class PolicyAnswer(NamedTuple):
    """An answer of a policy, with its judgement if it has one."""

    name: str
    response: str
    judgement: Judgement | None = None


def _needs_brackets(console: Console) -> bool:
    return console.no_color or not console.is_terminal


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


def answer_view(answer: PolicyAnswer, brackets: bool) -> Group:
    """Return an answer, coloured by its spans, and its judgement."""
    judgement = answer.judgement
    response = coloured_answer(answer.response, judgement, brackets)
    if judgement is None:
        return Group(response)
    if isinstance(judgement, Failure):
        failure = Text(stripped(f"no critique: {judgement.kind}: {judgement.message}"), style="yellow")
        return Group(response, failure)
    score = [] if judgement.score is None else [Text(f"score {signed(judgement.score)}")]
    reasons = [_reason(span) for span in judgement.spans if span.reason]
    return Group(response, *reasons, Text(stripped(judgement.text), style="italic"), *score)


def coloured_answer(response: str, judgement: Judgement | None, brackets: bool) -> Text:
    """Return a response coloured by its spans; a transcript becomes a conversation."""
    spans = judgement.spans if isinstance(judgement, Critique) else ()
    if not isinstance(response, Transcript):
        return _coloured(response, spans, brackets, 0, len(response))
    parts: list[Text] = []
    for number, turn in enumerate(response.turns, start=1):
        parts += map(_message_of_others, turn.messages)
        title = Text(f"{turn_title(number, judgement)}: ", style="bold")
        parts.append(title + _coloured(response, spans, brackets, turn.start, turn.end))
    return Text("\n").join([*parts, *map(_message_of_others, response.after)])


def _message_of_others(message: Message) -> Text:
    content = message.content.strip()
    short = content if len(content) <= MAX_MESSAGE else f"{content[:MAX_MESSAGE]}..."
    return Text(stripped(f"{message.role}: {short}"), style="dim")


def _coloured(response: str, spans: Sequence[Span], brackets: bool, start: int, end: int) -> Text:
    """Return characters [start, end) coloured by span, plain if both good and poor."""
    places = [place for span in spans for place in (span.start, span.end) if start <= place <= end]
    pieces = [
        (sum({span.label for span in spans if span.start <= first and last <= span.end}), response[first:last])
        for first, last in pairwise(sorted({start, end, *places}))
    ]
    text = Text()
    for sign, run in groupby(pieces, key=lambda piece: piece[0]):
        opening, closing = BRACKETS[sign] if brackets else ("", "")
        body = stripped("".join(piece for _, piece in run))
        text.append(f"{opening}{body}{closing}" if body else "", STYLES[sign] if sign else "")
    text.rstrip()
    return text


def _reason(span: Span) -> Text:
    sign, words = {1: "+", 0: "~", -1: "-"}[span.label], " ".join(span.text.split())
    quote = words if len(words) <= 40 else f"{words[:37]}..."
    return Text(stripped(f"  {sign} {quote}: {span.reason}"), STYLES[span.label])


def show_feedback(console: Console, records: Sequence[Feedback], figures: Mapping[str, Any]) -> None:
    """Print the worst records, coloured, then the meaning of the figures."""
    show_records(console, records)
    for line in describe_feedback(figures):
        console.print(Text(stripped(line), style="bold"), soft_wrap=True)


def show_records(console: Console, records: Sequence[Feedback]) -> None:
    """Print judged answers, coloured, below their prompts."""
    for record in records:
        prompt = " ".join(record.prompt[-1].content.split())
        answer = PolicyAnswer("", record.response, record.judgement())
        console.print(Text(stripped(f"{record.id}: {prompt[:200]}"), style="bold"))
        console.print(answer_view(answer, _needs_brackets(console)), "")


def turn_title(number: int, judgement: Judgement | None) -> str:
    """Return the title of a turn of the policy, with its score if it has one."""
    scores = judgement.turn_scores if isinstance(judgement, Critique) else ()
    score = scores[number - 1] if number <= len(scores) else None
    return f"turn {number}" if score is None else f"turn {number} ({score:+.2f})"
