"""A program critic of filled-in forms: wrong calls and wrong pieces of values, with reasons.

Every turn is judged given the turns before it. Reasons never contain the right value. Nothing is
good twice: a second attempt at a field can only avoid a poor span. The form decides the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from text2grad.feedback import Critique, Example, Judgement, Label, Source, Span, turns_of
from text2grad_lab.tasks.forms.problems import is_right
from text2grad_lab.tasks.forms.tools import READ, SET, SUBMIT, Desk

PIECE = re.compile(r"\d+|[A-Za-z]+|\S")


class _Reading:
    """The state of judging a transcript turn by turn: the form and the spans so far."""

    def __init__(self, example: Example, response: str) -> None:
        self.right, self.rules = example.meta["right"], example.meta["rules"]
        self.response, self.desk = response, Desk(example.meta["record"])
        self.read: set[str] = set()
        self.tried: set[str] = set()
        self.spans: list[Span] = []

    def mark(self, start: int, end: int, label: Label, reason: str = "") -> None:
        """Label these characters."""
        text = self.response[start:end]
        self.spans.append(Span(start=start, end=end, label=label, text=text, reason=reason))

    def judge_turns(self) -> None:
        """Judge all turns up to the first that submits."""
        for turn in turns_of(self.response):
            text = self.response[turn.start : turn.end]
            line = text.strip()
            if line:
                start = turn.start + len(text) - len(text.lstrip())
                self.judge_line(line, start)
            if line == SUBMIT:
                return

    def judge_line(self, line: str, start: int) -> None:
        """Judge one call, which begins at the character `start` of the response."""
        end = start + len(line)
        call = READ.fullmatch(line) or SET.fullmatch(line)
        if line == SUBMIT:
            missing = [field for field in self.right if field not in self.desk.form]
            self.mark(start, end, -1 if missing else 1, f"{' and '.join(missing)} not filled in" if missing else "")
        elif call is None:
            self.mark(start, end, -1, "there is no such call")
        elif call[1] not in self.right:
            self.mark(start + call.start(1), start + call.end(1), -1, "the question does not ask for it")
        elif call.re is READ:
            again = call[1] in self.read
            self.mark(start, end, -1 if again else 1, "it was read before" if again else "")
            self.read.add(call[1])
        else:
            self.judge_value(call[1], start, start + call.start(2), end)
        self.desk.respond(line)

    def judge_value(self, field: str, start: int, value_start: int, end: int) -> None:
        """Judge a call that writes a value: good pieces up to the first wrong one."""
        value, right = self.response[value_start:end], self.right[field]
        first, self.tried = field not in self.tried, {*self.tried, field}
        if field not in self.read:
            return self.mark(start, end, -1, "its field was not read yet")
        if self.desk.form.get(field) == right:
            return self.mark(start, end, -1, "the field was filled in before")
        wrong = _find_wrong_piece(value, right)
        good_end = end if wrong is None else value_start + wrong[0]
        good = self.response[start:good_end].rstrip()
        if first:
            self.mark(start, start + len(good), 1)
        if wrong is not None:
            place = (value_start + wrong[0], value_start + wrong[1])
            self.mark(*place, -1, self.reason(field, self.response[slice(*place)], value))

    def reason(self, field: str, piece: str, value: str) -> str:
        """Return why a piece of a value is wrong, without the right value."""
        right, record = self.right[field], self.desk.record[field]
        if right.startswith(value):
            return f"the value is not complete; {field} should be: {self.rules[field]}"
        if value.startswith(right):
            return f"too much; {field} should be: {self.rules[field]}"
        if piece.isalnum() and piece.lower() not in record.lower() and piece not in right:
            return "the record does not have this"
        return f"{field} should be: {self.rules[field]}"

    def words(self, right: bool) -> Iterator[str]:
        """Yield the sentences of the critique."""
        yield "The form is right." if right else "The form is wrong."
        for span in self.spans:
            if span.label < 0:
                yield f"`{span.text}`: {span.reason}."


def _find_wrong_piece(value: str, right: str) -> tuple[int, int] | None:
    """Return the characters [start, end) of the first wrong piece of a value; None if it is right.

    The last piece is the wrong one if the value is not complete, and all pieces if only the spaces
    are wrong.
    """
    if value == right:
        return None
    pieces, right_pieces = list(PIECE.finditer(value)), PIECE.findall(right)
    for piece, expected in zip(pieces, [*right_pieces, ""], strict=False):
        if piece[0] != expected:
            return piece.span()
    return pieces[-1].span() if len(pieces) < len(right_pieces) else (0, len(value))


class FormCritic:
    """Judges transcripts of the task `forms`."""

    source = Source(kind="program", prompt_version="forms")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Judge each turn given those before it; the verdict is that of the form."""
        return [_judge(example, response) for example, response in zip(examples, responses, strict=True)]


def _judge(example: Example, response: str) -> Critique:
    reading, right = _Reading(example, response), is_right(example, response)
    reading.judge_turns()
    return Critique(text=" ".join(reading.words(right)), spans=tuple(reading.spans), score=1.0 if right else -1.0)
