"""Random values of documents, as text in a document and as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from importlib import resources
from typing import NamedTuple

from text2grad.strict_yaml import parse_yaml

WORDS: dict[str, list[str]] = parse_yaml(
    (resources.files("text2grad_lab.tasks") / "values.yaml").read_text(encoding="utf-8")
)


class Value(NamedTuple):
    """A value as `text` in a document and as `answer` in the JSON object."""

    text: str
    answer: str


def draw(kind: str | Sequence[str], rng: random.Random) -> Value:
    """Return a value of a kind in `KINDS`, of a `code` pattern (# is a digit), or of a list."""
    if not isinstance(kind, str):
        return verbatim(rng.choice(kind))
    name, _, pattern = kind.partition(" ")
    if name == "code":
        return verbatim("".join(rng.choice("0123456789") if sign == "#" else sign for sign in pattern))
    return KINDS[name](rng)


def verbatim(text: str) -> Value:
    """Return a value with the same text in both."""
    return Value(text, json.dumps(text))


def _date(rng: random.Random) -> Value:
    day = date(2025, 1, 1) + timedelta(days=rng.randrange(900))
    suffix = "th" if 10 < day.day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    month = f"{day:%B}"
    forms = [
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"{month} {day.day}{suffix}, {day.year}",
        f"{day:%A}, {day.day} {month[:3]} {day.year}",
        day.isoformat(),
    ]
    return Value(rng.choice(forms), json.dumps(day.isoformat()))


def _time(rng: random.Random) -> Value:
    hour, minute = rng.randrange(7, 22), rng.choice([0, 5, 15, 20, 30, 45])
    half = "am" if hour < 12 else "pm"
    twelve = f"{(hour - 1) % 12 + 1}:{minute:02}"
    forms = [f"{hour:02}:{minute:02}", f"{twelve} {half}", f"{twelve}{half}"]
    return Value(rng.choice(forms), json.dumps(f"{hour:02}:{minute:02}"))


def _amount(rng: random.Random, least: int = 100, most: int = 2400) -> Value:
    cents = rng.choice([0, 0, 50, 99, rng.randrange(100)])
    number = rng.randrange(least, most) + cents / 100
    spelled = f"{number:,.2f}" if cents else rng.choice([f"{number:,.0f}", f"{number:,.2f}"])
    form = rng.choice([f"${spelled}", f"{spelled} dollars", f"USD {spelled}"])
    return Value(form, f"{number:.2f}" if cents else f"{number:.0f}")


def _count(rng: random.Random) -> Value:
    number = rng.randrange(2, 10)
    return Value(rng.choice([str(number), WORDS["count"][number - 1]]), str(number))


KINDS: dict[str, Callable[[random.Random], Value]] = {
    "person": lambda rng: verbatim(f"{rng.choice(WORDS['first'])} {rng.choice(WORDS['last'])}"),
    "city": lambda rng: verbatim(rng.choice(WORDS["city"])),
    "street": lambda rng: verbatim(f"{rng.randrange(1, 140)} {rng.choice(WORDS['street'])}"),
    "company": lambda rng: verbatim(rng.choice(WORDS["company"])),
    "place": lambda rng: verbatim(rng.choice(WORDS["place"])),
    "phone": lambda rng: verbatim(f"555-{rng.randrange(10000):04}"),
    "date": _date,
    "time": _time,
    "amount": _amount,
    "price": lambda rng: _amount(rng, 4, 60),
    "count": _count,
}
