"""A program critic of an agent: it names wrong calls, wrong arguments and unused results.

Every turn is judged given the turns before it: a computation with a wrong number from the table can
be right. The verdict depends only on the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from text2grad.feedback import Critique, Example, Judgement, Label, Source, Span, turns_of
from text2grad_lab.tasks.lookup.problems import is_right
from text2grad_lab.tasks.lookup.tools import ANSWER, COMPUTE, LOOK_UP, Tools, value_of

WORD = re.compile(r"\d+|[a-z]+|\S")


@dataclass
class _Reading:
    """The state of judging a transcript turn by turn: tool results and spans so far."""

    example: Example
    response: str
    x: str | None = None
    result: str | None = None
    spans: list[Span] = field(default_factory=list)

    def mark(self, start: int, end: int, label: Label, reason: str = "") -> None:
        """Label these characters without surrounding whitespace."""
        text = self.response[start:end]
        start, text = start + len(text) - len(text.lstrip()), text.strip()
        if text:
            self.spans.append(Span(start=start, end=start + len(text), label=label, text=text, reason=reason))

    def compare(self, start: int, end: int, expected: str, reason: str = "") -> None:
        """Label expected words as good and others, or words next to missing ones, as poor."""
        places = [(start + match.start(), start + match.end()) for match in WORD.finditer(self.response[start:end])]
        words = [self.response[a:b] for a, b in places]
        for (first, last), expected_word in zip(
            places, _align_expected(words, WORD.findall(expected)), strict=True
        ):
            word = self.response[first:last]
            if expected_word == word:
                self.mark(first, last, 1)
            elif expected_word.endswith(f" {word}"):
                self.mark(first, first + 1, -1, reason or f"{expected_word.removesuffix(word).strip()} is missing")
            else:
                right = _right_digits(word, expected_word)
                self.mark(first, first + right, 1)
                self.mark(
                    first + right,
                    last,
                    -1,
                    reason or (f"should be {expected_word}" if expected_word else "too much"),
                )

    def look_up(self, start: int, end: int, column: str, item: str) -> None:
        """Judge a call of the table."""
        plan, expected_item = self.example.meta["plan"], self.example.meta["item"]
        if self.x is not None:
            self.mark(start, end, -1, "it was looked up before")
        else:
            self.compare(start, end, f"lookup {plan['column']} of {expected_item}")
        self.x = Tools(self.example.meta["table"]).number(column, item) or self.x

    def compute(self, start: int, end: int, equation: str) -> None:
        """Judge a call of the calculator."""
        if self.x is None:
            self.mark(start, end, -1, "nothing was looked up to compute with")
        elif self.result is not None:
            self.mark(start, end, -1, "it was computed before")
        elif value_of(equation) == value_of(expected := self.example.meta["plan"]["sum"].format(x=self.x)):
            self.mark(start, end, 1)
        else:
            self.compare(start, end, f"compute {expected}")
        self.result = value_of(equation) or self.result

    def answer(self, start: int, end: int) -> None:
        """Judge the answer, which ends the episode."""
        if self.result is None:
            self.mark(start, end, -1, "it was not computed")
            return
        expected = str(self.example.meta["plan"]["answer"]).format(x=self.x, result=self.result)
        unused = self.result not in self.response[start:end].split()
        self.compare(start, end, f"answer {expected}", f"the result {self.result} is not used" if unused else "")

    def judge_turns(self) -> None:
        """Judge all turns."""
        for turn in turns_of(self.response):
            start, end = turn.start, turn.end
            line = self.response[start:end].strip()
            if call := LOOK_UP.fullmatch(line):
                self.look_up(start, end, *call.groups())
            elif call := COMPUTE.fullmatch(line):
                self.compute(start, end, call[1])
            elif ANSWER.fullmatch(line):
                self.answer(start, end)
            else:
                self.mark(start, end, -1, "there is no such call")

    def words(self, right: bool) -> Iterator[str]:
        """Yield the sentences of the critique."""
        yield "The answer is right." if right else "The answer is wrong."
        for span in self.spans:
            if span.label < 0:
                yield f"`{span.text}`: {span.reason}."


def _right_digits(word: str, expected_digits: str) -> int:
    """Count the right digits of a wrong number before the first wrong one; 0 for other words."""
    if not (word.isdigit() and expected_digits.isdigit()):
        return 0
    return next(
        (place for place, (ours, theirs) in enumerate(zip(word, expected_digits, strict=False)) if ours != theirs),
        0,
    )


def _align_expected(words: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return the expected words for each written word, with missing ones before it; "": none."""
    if len(words) == len(expected):
        return list(expected)
    expected_words: list[str] = []
    missing = ""
    for kind, first, last, start, right in SequenceMatcher(None, words, expected, autojunk=False).get_opcodes():
        if kind == "insert":
            missing = " ".join(expected[start:right])
            continue
        aligned = [*expected[start:right], *[""] * (last - first)][: last - first]
        if missing:
            aligned[0], missing = f"{missing} {aligned[0]}", ""
        expected_words += aligned
    if missing:  # after the last word
        expected_words[-1] = f"{missing} {words[-1]}"
    return expected_words


class LookupCritic:
    """Judges transcripts of the task `lookup`."""

    source = Source(kind="program", prompt_version="lookup")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Judge each turn given the earlier ones; the answer decides the verdict."""
        return [_judge(example, response) for example, response in zip(examples, responses, strict=True)]


def _judge(example: Example, response: str) -> Critique:
    reading, right = _Reading(example, response), is_right(example, response)
    reading.judge_turns()
    spans = tuple(sorted(reading.spans, key=lambda span: span.start))
    return Critique(text=" ".join(reading.words(right)), spans=spans, score=1.0 if right else -1.0)
