"""Find the facts of a row that a report states, and its other claims.

A text fact is stated by one of its forms. A number is stated if it has the fact's value and one of
the fact's cues is the nearest cue, with no number in between, so a list of numbers states nothing.
Only the first `MOST` complete sentences count; lines of `label: value` are not sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

from text2grad.feedback import Label, Place

FEWEST, MOST = 2, 3
"""The minimum and maximum number of sentences."""
HEDGES = "about|around|roughly|nearly|almost|approximately|some|circa|close to|just over|just under|~"
SCALES = {"thousand": 3, "million": 6, "billion": 9}
WORDS = {
    word: number
    for number, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), start=2
    )
}
OTHER_UNITS = (
    *("kg", "kilograms", "tons", "km", "kilometers", "kilometres", "km/h"),
    *("mph", "inches", "feet", "°F", "F", "€", "euros", "£"),
)
"""Units that no table has."""
_NUMBER = re.compile(
    rf"(?:(?P<hedge>\b(?:{HEDGES})\s*)?)(?P<currency>[$€£])?(?P<digits>(?<![\w.])[-−]?\d+(?:[,\u00a0\u2009\u202f]\d{{3}}(?!\d))*(?:\.\d+)?)"
    rf"(?P<scale>\s+(?:{'|'.join(SCALES)})\b)?|\b(?P<word>{'|'.join(WORDS)})\b",
    re.IGNORECASE,
)
_END = re.compile(r"[.!?]+[\"')]*(?=\s|$)")
_LABEL = re.compile(r"\w\s*[:=|](?=\s|$)")
_LABELLED = re.compile(r"\W*\w+(?:\W\w+){0,3}\s*[:=|](?=\s|$)")
_NAME = re.compile(r"(?<![\w'])[A-Z][a-z]+(?:\s+[A-Z][a-z]+)*")
_JOINT = re.compile(r"[,;]|\band\b|\bbut\b|\bwhile\b")


@dataclass(frozen=True)
class Fact:
    """A fact of a row: a text with `forms` that state it, or a `number` with `cues` and `units`."""

    name: str
    forms: tuple[str, ...] = ()
    number: str = ""
    cues: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Fact:
        """Return the fact of a record in an example's `meta`."""
        values: dict[str, Any] = {k: value if isinstance(value, str) else tuple(value) for k, value in row.items()}
        return cls(**values)


LONGEST = Decimal(10) ** 20
"""The limit of a number divided by the value of its last digit: decimals have 28 digits."""


class Number(NamedTuple):
    """A number in a text.

    `precise` is the value of a unit in its last digit. A `free` number is hedged or in thousands
    and may be rounded further. A `spelled` number is a word; a `plain` one has ASCII digits.
    """

    place: Place
    value: Decimal
    precise: Decimal
    free: bool
    spelled: bool
    plain: bool


class Remark(NamedTuple):
    """A good span that states the fact `name`, or a poor span without a name."""

    place: Place
    label: Label
    reason: str
    name: str = ""


def numbers(text: str, start: int = 0, end: int | None = None) -> Iterator[Number]:
    """Yield the numbers in a part of a text, with signs, separators and words for thousands."""
    for match in _NUMBER.finditer(text, start, len(text) if end is None else end):
        if match["word"]:
            value = Decimal(WORDS[match["word"].lower()])
            yield Number(match.span("word"), value, Decimal(1), False, True, True)
            continue
        digits = re.sub(r"[^\d.-]", "", match["digits"].replace("−", "-"))
        scale = Decimal(10) ** SCALES[match["scale"].strip().lower()] if match["scale"] else Decimal(1)
        places = len(digits.partition(".")[2])
        place = match.start("digits"), match.end("scale") if match["scale"] else match.end("digits")
        free = bool(match["hedge"] or match["scale"])
        step = scale / 10**places
        yield Number(place, Decimal(digits) * scale, step, free, False, digits.isascii())


def states(number: Number, value: Decimal) -> bool:
    """True if a number equals a value, or is the value rounded.

    A rounded number needs at least three digits; two, if it is hedged ("about") or in thousands.
    """
    if not number.plain or number.value == value:
        return number.plain
    size, far = abs(number.value), abs(number.value - value)
    if number.spelled or number.value * value <= 0 or size / number.precise >= LONGEST:
        return False
    if not number.free:
        return size / number.precise >= 100 and far <= number.precise / 2
    step = number.precise
    while size / step >= 10:
        if size % step == 0 and far <= step / 2:
            return True
        step *= 10
    return False


def pattern(form: str, cased: bool = False) -> re.Pattern[str]:
    """Return a pattern for a separate word or phrase; * is any ending, a space any whitespace.

    With `cased`, a form in capitals such as MS is matched with its case.
    """
    inside = r"\s+".join(re.escape(part).replace(r"\*", r"\w*") for part in form.split())
    before = r"(?<!\w)(?<![$€£])(?<!\d[.,])" if form[0].isdigit() else r"(?<![^\W\d])" if form[0].isalpha() else ""
    after = r"(?!\w)(?![.,]\d)" if form[-1].isalnum() else ""
    return re.compile(before + inside + after, 0 if cased and form.upper() == form else re.IGNORECASE)


@dataclass(frozen=True)
class Report:
    """A report with the facts of its row, and the prompt."""

    facts: Sequence[Fact]
    text: str
    prompt: str

    @cached_property
    def forms(self) -> list[tuple[Place, Fact]]:
        """The places of forms of facts; of overlapping ones the longest."""
        matches = [
            (match.span(), fact)
            for fact in self.facts
            for form in fact.forms
            for match in pattern(form, cased=True).finditer(self.text)
        ]
        matches.sort(key=lambda item: item[0][0] - item[0][1])
        selected: list[tuple[Place, Fact]] = []
        for place, fact in matches:
            if not any(start < place[1] and place[0] < end for (start, end), _ in selected):
                selected.append((place, fact))
        return sorted(selected, key=lambda item: item[0])

    def _in_form(self, at: int) -> bool:
        return any(start <= at < end for (start, end), _ in self.forms)

    @cached_property
    def sentences(self) -> list[Place]:
        """The complete sentences, which end with . ! or ? and do not cross lines."""
        places, start = [], 0
        for line in re.finditer(r"[^\n]+", self.text):
            start = line.start()
            for end in _END.finditer(self.text, *line.span()):
                if not self._in_form(end.start()):
                    start += len(self.text[start : end.end()]) - len(self.text[start : end.end()].lstrip())
                    places.append((start, end.end()))
                    start = end.end()
        return places

    @cached_property
    def remarks(self) -> list[Remark]:
        """The stated facts, each once, and the faults, in text order."""
        stated: set[str] = set()
        results: list[Remark] = []
        for start, end in self.sentences[:MOST]:
            if _LABELLED.match(self.text, start, end) or len(_LABEL.findall(self.text, start, end)) > 1:
                results.append(Remark((start, end), -1, "a list of values is no sentence"))
                continue
            for remark in sorted([*self._texts(start, end), *self._numbers(start, end), *self._names(start, end)]):
                if remark.name in stated and remark.label > 0:
                    if not self._in_form(remark.place[0]):
                        results.append(Remark(remark.place, -1, f"the {remark.name} is said again"))
                    continue
                stated |= {remark.name} if remark.label > 0 else set()
                results.append(remark)
        for _, end in self.sentences[MOST - 1 : MOST]:
            if beyond := self.text[end:].strip():
                start = self.text.index(beyond, end)
                results.append(Remark((start, start + len(beyond)), -1, f"after the {MOST}rd sentence"))
        return results

    def _texts(self, start: int, end: int) -> Iterator[Remark]:
        for place, fact in self.forms:
            if start <= place[0] and place[1] <= end:
                yield Remark(place, 1, f"the {fact.name}", fact.name)

    def _numbers(self, start: int, end: int) -> Iterator[Remark]:
        inside = [number for number in numbers(self.text, start, end) if not self._in_form(number.place[0])]
        cues = [
            (match.span(), fact)
            for fact in self.facts
            for cue in fact.cues
            for match in pattern(cue).finditer(self.text, start, end)
            if not self._in_form(match.start())
        ]
        for index, number in enumerate(inside):
            least = inside[index - 1].place[1] if index else start
            most = inside[index + 1].place[0] if index + 1 < len(inside) else end
            candidates = [
                (self._distance(number.place, place), fact) for place, fact in cues if least <= place[0] < most
            ]
            fact = min(candidates, key=lambda item: item[0])[1] if candidates else None
            if remark := self._judge_number(number, fact, most):
                yield remark

    def _distance(self, number: Place, cue: Place) -> float:
        """Return the distance of a number and a cue in words.

        A comma or "and" adds two; a cue before the number adds 0.5.
        """
        before = cue[1] <= number[0]
        between = self.text[cue[1] : number[0]] if before else self.text[number[1] : cue[0]]
        return len(re.findall(r"\w+", between)) + 2 * len(_JOINT.findall(between)) + 0.5 * before

    def _judge_number(self, number: Number, fact: Fact | None, most: int) -> Remark | None:
        """Judge a number, given the fact with the nearest cue."""
        place = number.place
        if fact and states(number, Decimal(fact.number)):
            if wrong := self._wrong_unit(place, most, fact):
                return Remark(wrong, -1, f"the unit of the {fact.name} is {fact.units[0]}")
            return Remark(place, 1, f"the {fact.name}", fact.name)
        if number.spelled and not fact:
            return None
        if not number.plain:
            return Remark(place, -1, "these are no plain digits")
        if not self._is_known(number):
            return Remark(place, -1, "this number is not in the row")
        return Remark(place, -1, f"this is not the {fact.name}" if fact else "it does not say what this number is")

    def _is_known(self, number: Number) -> bool:
        return any(fact.number and states(number, Decimal(fact.number)) for fact in self.facts)

    def _wrong_unit(self, number: Place, most: int, fact: Fact) -> Place | None:
        """Return the place of a number with a currency or unit that is not the fact's."""
        start, end = number
        if self.text[start - 1 : start] in set("$€£") - set(fact.units):
            return start - 1, end
        all_units = {unit for other in self.facts for unit in other.units} | set(OTHER_UNITS)
        for unit in all_units - set(fact.units) if fact.units else ():
            unit_pattern = pattern(unit, cased=True)
            if match := re.compile(r"\s*" + unit_pattern.pattern, unit_pattern.flags).match(self.text, end, most):
                return start, match.end()
        return None

    def _names(self, start: int, end: int) -> Iterator[Remark]:
        """Yield capitalised words inside a sentence that are not in the prompt."""
        shown_words = {word.casefold() for word in re.findall(r"\w+", self.prompt)}
        shown_words |= {word.casefold() for fact in self.facts for unit in fact.units for word in unit.split()}
        for match in _NAME.finditer(self.text, start + 1, end):
            words = {word.casefold() for word in match[0].split()}
            if not words & shown_words and not self._in_form(match.start()):
                yield Remark(match.span(), -1, "this name is not in the row")

    @property
    def stated(self) -> list[str]:
        """The names of the facts that are stated."""
        return [remark.name for remark in self.remarks if remark.label > 0]

    @property
    def missing(self) -> list[str]:
        """The names of the facts that are not stated."""
        return [fact.name for fact in self.facts if fact.name not in self.stated]

    @property
    def brief(self) -> bool:
        """True if the text is two or three sentences and nothing else."""
        ends = self.sentences[-1][1] if self.sentences else 0
        return FEWEST <= len(self.sentences) <= MOST and not self.text[ends:].strip()

    @property
    def share(self) -> float:
        """The share of stated facts among all facts and faults; a wrong length is one fault."""
        faults = sum(remark.label < 0 for remark in self.remarks) + (not self.brief)
        return len(self.stated) / max(1, len(self.facts) + faults)

    def scores(self) -> dict[str, float]:
        """The measures of the task `reports`."""
        digits = [n for n in numbers(self.text) if not n.spelled and not self._in_form(n.place[0])]
        return {
            "covered": len(self.stated) / max(1, len(self.facts)),
            "invented": sum(map(self._is_known, digits)) / len(digits) if digits else 1.0,
            "length": float(self.brief),
            "right": self.share,
        }
