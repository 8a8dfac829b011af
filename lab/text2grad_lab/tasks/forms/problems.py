"""Seeded forms, and demonstrations by an agent that makes mistakes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.data.published import single_turn_example
from text2grad.feedback import Environment, Example, Message, Transcript, turns_of
from text2grad.tasks.base import TaskSettings, refuse_split_settings
from text2grad.tasks.demo import SLIPS
from text2grad_lab.tasks.forms.tools import SUBMIT, Desk

SIZES = {"sft": 240, "train": 288, "heldout": 72}
"""Examples per split; `task.limit` sets the number of demonstrations."""
FIELDS = (2, 3)
"""Numbers of fields that a form asks for."""
FORGETS = 0.15
"""The share of demonstrations that submit without the last field."""
GIVEN = ("Ada", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "Jack", "Karen", "Leo")
SURNAMES = ("Brown", "Carter", "Davis", "Evans", "Foster", "Green", "Hill", "Moore", "Price", "Reed", "Stone")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September")
PLACES = ("Leeds, England", "Porto, Portugal", "Lyon, France", "Bergen, Norway", "Turin, Italy", "Cork, Ireland")
Write = Callable[[str], str]


@dataclass(frozen=True)
class Rule:
    """One way to write a value: its phrase in the question, the right text, and a usual mistake.

    `slip` is the share of demonstrations that make the mistake.
    """

    phrase: str
    write: Write
    mistake: Write
    slip: float


def _date(text: str) -> tuple[int, int, str]:
    day, month, year = text.split()
    return int(day), MONTHS.index(month) + 1, year


def _day_month_year(text: str, digits: int = 2) -> str:
    day, month, year = _date(text)
    return f"{day:0{digits}}/{month:0{digits}}/{year}"


def _year_month_day(text: str, swapped: bool = False) -> str:
    day, month, year = _date(text)
    return "-".join([year, *(f"{number:02}" for number in ((day, month) if swapped else (month, day)))])


def _swap(text: str, between: str) -> str:
    first, second = text.replace(",", "").split()
    return f"{second}{between}{first}"


def _initials(text: str, after: str = ".") -> str:
    return "".join(word[0] + after for word in text.split())


def _copy(text: str) -> str:
    return text


RULES: Mapping[str, tuple[Rule, ...]] = {
    "name": (
        Rule("surname first", lambda raw: _swap(raw, ", "), lambda raw: _swap(raw, " "), SLIPS["habit"]),
        Rule("in capitals", str.upper, _copy, SLIPS["rare"]),
        Rule("initials only", _initials, lambda raw: _initials(raw, ""), SLIPS["rare"]),
    ),
    "date": (
        Rule("year-month-day", _year_month_day, lambda raw: _year_month_day(raw, True), SLIPS["habit"]),
        Rule("day/month/year", _day_month_year, lambda raw: _day_month_year(raw, 1), SLIPS["rare"]),
        Rule("month and year", lambda raw: raw.split(" ", 1)[1], _copy, SLIPS["rare"]),
    ),
    "code": (
        Rule("in capitals", str.upper, _copy, SLIPS["rare"]),
        Rule("without the dash", lambda raw: raw.replace("-", ""), _copy, SLIPS["rare"]),
        Rule("digits only", lambda raw: raw[-3:], lambda raw: raw.replace("-", ""), SLIPS["habit"]),
    ),
    "price": (
        Rule("in cents", lambda raw: raw[1:].replace(".", ""), lambda raw: raw[1:], SLIPS["habit"]),
        Rule("without the sign", lambda raw: raw[1:], _copy, SLIPS["rare"]),
        Rule("rounded down", lambda raw: raw[:-3], _copy, SLIPS["rare"]),
    ),
    "place": (
        Rule("town only", lambda raw: raw.split(",")[0], _copy, SLIPS["rare"]),
        Rule("country first", lambda raw: _swap(raw, ", "), _copy, SLIPS["habit"]),
        Rule("in capitals", str.upper, _copy, SLIPS["rare"]),
    ),
}
"""The rules for each type of field."""
KINDS: Mapping[str, Mapping[str, str]] = {
    "visit": {"guest": "name", "arrival": "date", "room": "code", "home": "place"},
    "parcel": {"sender": "name", "posted": "date", "label": "code", "postage": "price"},
    "invoice": {"client": "name", "due": "date", "number": "code", "total": "price"},
    "loan": {"member": "name", "back": "date", "shelf": "code", "branch": "place"},
    "repair": {"owner": "name", "bought": "date", "serial": "code", "cost": "price"},
    "hire": {"driver": "name", "pickup": "date", "plate": "code", "deposit": "price"},
    "ticket": {"passenger": "name", "leaves": "date", "seat": "code", "station": "place"},
    "course": {"student": "name", "start": "date", "class": "code", "fee": "price"},
}
"""The kinds of form with the type of each field; two kinds are held out."""


def _value(kind: str, rng: random.Random) -> str:
    """Return a value of a type, as the record has it."""
    values = {
        "name": f"{rng.choice(GIVEN)} {rng.choice(SURNAMES)}",
        "date": f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(2021, 2026)}",
        "code": f"{rng.choice('abcdefgh')}{rng.choice('kmnpqrst')}-{rng.randint(100, 999)}",
        "price": f"${rng.randint(3, 99)}.{rng.randint(10, 99)}",
        "place": rng.choice(PLACES),
    }
    return values[kind]


@dataclass(frozen=True)
class Form:
    """A form of some fields in the order of the question, each with its rule, and the record."""

    kind: str
    rules: Mapping[str, Rule]
    record: Mapping[str, str]

    @classmethod
    def draw(cls, kind: str, rng: random.Random) -> Form:
        """Return a form of this kind with random fields, rules and values."""
        types = KINDS[kind]
        fields = rng.sample(sorted(types), rng.choice(FIELDS))
        rules = {field: rng.choice(RULES[types[field]]) for field in fields}
        return cls(kind, rules, {field: _value(name, rng) for field, name in types.items()})

    def question(self) -> str:
        """Return the question to the policy."""
        asked = "; ".join(f"{field}: {rule.phrase}" for field, rule in self.rules.items())
        return f"Fill in the {self.kind} form. {asked}."

    def meta(self) -> dict[str, Any]:
        """Return the data that the environment and the critic see, but not the policy."""
        right = {field: rule.write(self.record[field]) for field, rule in self.rules.items()}
        phrases = {field: rule.phrase for field, rule in self.rules.items()}
        return {"kind": self.kind, "record": dict(self.record), "right": right, "rules": phrases}

    def transcript(self, slips: Sequence[str] = (), forgets: bool = False) -> Transcript:
        """Return an episode of an agent with mistakes in the fields `slips`.

        If it `forgets`, it submits without the last field.
        """
        desk, turns, others = Desk(self.record), [], ""
        fields = list(self.rules)[: -1 if forgets else None]
        values = {field: rule.mistake if field in slips else rule.write for field, rule in self.rules.items()}
        calls = [(f"read {field}", f"set {field} to {values[field](self.record[field])}") for field in fields]
        for line in (*(line for pair in calls for line in pair), SUBMIT):
            turns.append(((Message(role="tool", content=others),) if others else (), line))
            others = desk.respond(line)
        return Transcript.of(turns)


class FormTask:
    """Forms whose values only the environment knows, with held-out kinds of form.

    `sft` has demonstrations with mistakes, `train` and `heldout` right transcripts as references.
    """

    name = "forms"
    critic_prompt = "qa"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        self.seed, self.sizes = settings.seed, {**SIZES, "sft": settings.limit or SIZES["sft"]}
        kinds = sorted(KINDS)
        random.Random(f"{self.seed}/forms").shuffle(kinds)
        cut = round(len(kinds) * settings.heldout_share)
        self.kinds = {"heldout": kinds[:cut], "train": kinds[cut:]}

    def environment(self) -> Environment:
        """Return the record and the form of one episode."""
        return Desk()

    def examples(self, split: str) -> list[Example]:
        """Return the forms of a split; equal seeds give equal examples."""
        rng = random.Random(f"{self.seed}/{split}")
        kinds = self.kinds["heldout" if split == "heldout" else "train"]
        return [
            self._example(split, number, kinds[number % len(kinds)], rng) for number in range(self.sizes[split])
        ]

    def _example(self, split: str, number: int, kind: str, rng: random.Random) -> Example:
        form = Form.draw(kind, rng)
        slips = [field for field, rule in form.rules.items() if rng.random() < rule.slip]
        forgets = rng.random() < FORGETS
        reference = form.transcript(slips, forgets) if split == "sft" else form.transcript()
        example = single_turn_example(f"{split}-{number}", form.question(), "", form.meta())
        return example.model_copy(update={"reference": reference})

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return `pass`, 1 if the form was submitted and every field of it is right."""
        return {"pass": float(is_right(example, response))}


def is_right(example: Example, response: str) -> bool:
    """True if the calls of the response, made again, fill in the form and submit it."""
    desk, right = Desk(example.meta["record"]), example.meta["right"]
    lines = [response[turn.start : turn.end].strip() for turn in turns_of(response)]
    for line in lines[:-1]:
        desk.respond(line)
    return lines[-1] == SUBMIT and SUBMIT not in lines[:-1] and desk.form == right
