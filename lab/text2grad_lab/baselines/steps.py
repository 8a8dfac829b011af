"""Steps of an answer: statements of a program, or sentences and clauses (paper, appendix N)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from text2grad.critics.program import Attempt
from text2grad.critics.program.extract import Program
from text2grad.critics.program.source import Lines, parse_code
from text2grad.feedback import Example, Place, Span
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.qa import DEFAULT_DATA, QATask

PROMPT = "steps"
"""The prompt whose critiques label steps."""
_JOINTS = ("and", "but", "or", "so", "because", "while", "which", "although")
_BREAK = re.compile(
    rf"[.!?;؟؛।॥][\"'”’)\]]*\s+|[。！？；][\"'”’」』）】]*\s*|,\s+(?=(?:{'|'.join(_JOINTS)})\b)|\s*[\r\n]\s*"
)
"""The end of a step of a text: after a sentence or a clause."""


def is_ultrafeedback(settings: TaskSettings) -> bool:
    """True if a task's data is UltraFeedback, by its name."""
    return settings.name == QATask.name and "ultrafeedback" in Path(settings.data or DEFAULT_DATA).name.lower()


def steps_of(example: Example, response: str) -> list[Place]:
    """Return the steps of a response in order, non-blank and without overlap.

    If the example has tests and the response a program, they are its statements; else sentences and
    clauses.
    """
    program = Attempt(example, response).program if example.meta.get("tests") else None
    return (program_steps(program, response) if program else []) or text_steps(response)


def program_steps(program: Program, response: str) -> list[Place]:
    """Return the logical statements of the program in a response; the header of compound ones.

    `def` lines are given by the question and are not steps. The steps of a program that Python
    cannot parse are its lines.
    """
    code = parse_code(program.code)
    extents = [code.extent_of(statement) for statement in code.statements()] if code else _lines(program.code)
    places = [program.place(start, end) for start, end in extents if end > start]
    return list(_stripped(response, _without_overlap(places)))


def text_steps(text: str) -> list[Place]:
    """Return sentences, and clauses after a semicolon, a line break, or a comma with a conjunction.

    The rule is simple: a step also ends after an abbreviation.
    """
    edges = [0, *(match.end() for match in _BREAK.finditer(text)), len(text)]
    return list(_stripped(text, itertools.pairwise(edges)))


def labelled_steps(steps: Sequence[Place], response: str, spans: Sequence[Span]) -> list[Span]:
    """Return a span for each step: poor if a poor span overlaps it, else good."""
    poor = [span for span in spans if span.label < 0]
    wrong = [any(span.start < end and span.end > start for span in poor) for start, end in steps]
    return [
        Span(start=start, end=end, label=-1 if is_wrong else 1, text=response[start:end])
        for (start, end), is_wrong in zip(steps, wrong, strict=True)
    ]


def step_spans(spans: Sequence[Span]) -> list[Span]:
    """Return spans of a critic asked for steps (`PROMPT`), each truncated where the next begins."""
    by_start = {
        span.start: span for span in sorted(spans, key=lambda span: (span.start, -span.label)) if span.label
    }
    steps = []
    for start, end in _without_overlap([(span.start, span.end) for span in by_start.values()]):
        text = by_start[start].text[: end - start].rstrip()
        steps.append(by_start[start].model_copy(update={"end": start + len(text), "text": text}))
    return [span for span in steps if span.text]


def _lines(code: str) -> list[Place]:
    """Return the lines of a program without blank ones and comments."""
    lines = Lines.of(code)
    extents = [lines.extent(number) for number in range(1, len(lines.lines) + 1)]
    return [(start, end) for start, end in extents if end > start and code[start] != "#"]


def _without_overlap(places: Sequence[Place]) -> Iterator[Place]:
    """Yield sorted places, each truncated where the next starts.

    The header of a `match` includes its first case.
    """
    ordered = sorted(places)
    for (start, end), (after, _) in itertools.pairwise(ordered):
        yield start, min(end, after)
    yield from ordered[-1:]


def _stripped(text: str, places: Iterable[Place]) -> Iterator[Place]:
    """Yield non-blank places without surrounding whitespace."""
    for start, end in places:
        piece = text[start:end]
        if piece.strip():
            yield start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
