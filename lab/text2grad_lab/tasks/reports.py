"""The task `reports`: state every fact of a table row, and nothing else, in two or three sentences.

The tables come with the package `vega_datasets`; `reports.yaml` describes their columns. A share of
the tables (`task.heldout_share`: two of eight) is held out. Demonstrations are composed of clauses
in varied words, orders and number formats; `statements` judges any text.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from text2grad.data.published import single_turn_example
from text2grad.errors import UserError
from text2grad.feedback import Example, conversation_text
from text2grad.strict_yaml import parse_yaml
from text2grad.tasks.base import Split, TaskSettings, refuse_split_settings
from text2grad_lab.tasks.kinds import select_kinds
from text2grad_lab.tasks.statements import WORDS, Fact, Report

FEWEST, MOST = 3, 5
"""The minimum and maximum number of facts in a prompt."""
QUESTION = (
    "Write two or three sentences about {about}. State every fact below, and nothing that is not there.\n\n{rows}"
)
SPELLED = {str(number): word for word, number in WORDS.items()}


@dataclass(frozen=True)
class Column:
    """A column, as a record of `reports.yaml`."""

    column: str
    kind: str = "text"
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cues: Sequence[str] = ()
    units: Sequence[str] = ()
    suffix: str = ""
    times: int = 1
    clauses: Sequence[str] = ()

    def shows(self, fact: Fact) -> str:
        """Return a fact as the prompt shows it."""
        if not fact.number:
            return fact.forms[0]
        number = Decimal(fact.number) / self.times
        return (
            f"{number.normalize():f} {self.suffix}".strip()
            if self.times > 1
            else f"{fact.number} {self.suffix}".strip()
        )

    def fact(self, name: str, value: Any) -> Fact:
        """Return the fact of a row with this value."""
        if self.cues:
            number = Decimal(str(value)) * self.times
            value_text = f"{number.normalize():f}" if self.times > 1 else str(number)
            return Fact(name, (), value_text, tuple(self.cues), tuple(self.units))
        return Fact(name, forms_of(str(value), self.kind) + tuple(self.also.get(str(value), ())))


@dataclass(frozen=True)
class Table:
    """One table, as a record of `reports.yaml`."""

    table: str
    file: str
    about: str
    subject: str
    start: Sequence[str]
    its: Sequence[str]
    facts: Mapping[str, Mapping[str, Any]]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns by the names of their facts."""
        return {
            name: Column(**{"kind" if key == "as" else key: value for key, value in row.items()})
            for name, row in self.facts.items()
        }

    @cached_property
    def rows(self) -> list[dict[str, Fact]]:
        """The facts of every complete row, without duplicates."""
        place = folder() / self.file
        text = place.read_text(encoding="utf-8")
        records = json.loads(text) if place.suffix == ".json" else csv.DictReader(text.splitlines())
        values = [{name: row[column.column] for name, column in self.columns.items()} for row in records]
        complete = dict.fromkeys(
            tuple(row.items()) for row in values if all(v not in (None, "") for v in row.values())
        )
        return [distinct({name: self.columns[name].fact(name, value) for name, value in row}) for row in complete]


def folder() -> Path:
    """Return the folder with the tables of vega_datasets, without the slow import.

    Raises:
        UserError: vega_datasets is not installed.
    """
    spec = find_spec("vega_datasets")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the task reports needs the tables of vega_datasets", "pip install vega_datasets")
    return Path(spec.submodule_search_locations[0]) / "_data"


def read_tables() -> list[Table]:
    """Return the tables of `reports.yaml`."""
    text = (resources.files("text2grad_lab.tasks") / "reports.yaml").read_text(encoding="utf-8")
    return [Table(**row) for row in parse_yaml(text)]


def forms_of(value: str, kind: str) -> tuple[str, ...]:
    """Return the ways to write a text, or a date's year, day or month; prompts show the first."""
    if kind == "text":
        return (value,)
    if kind == "year":
        return (value[:4],)
    day = datetime.fromisoformat(value.replace("/", "-")).date()
    months = (f"{day:%B}", f"{day:%b}")
    if kind == "month":
        return (*(f"{month} {day.year}" for month in months), f"{day:%Y-%m}")
    return (*(form for month in months for form in _days(day, month)), day.isoformat())


def _days(day: date, month: str) -> Iterator[str]:
    suffix = "th" if 10 < day.day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    yield from (f"{day.day} {month} {day.year}", f"{month} {day.day}, {day.year}", f"{month} {day.day} {day.year}")
    yield from (f"{month} {day.day}{suffix}, {day.year}", f"{day.day}{suffix} of {month} {day.year}")


def wording(fact: Fact, kind: str, rng: random.Random) -> str:
    """Return a fact in a random form, for a demonstration."""
    if not fact.number:
        return rng.choice(fact.forms) if kind in ("day", "month") else fact.forms[0]
    number = Decimal(fact.number)
    if fact.number in SPELLED and rng.random() < 0.5:
        return SPELLED[fact.number]
    if number >= 1000 and rng.random() < 0.2:
        step = 10 ** (number.adjusted() - 1)
        return f"about {round(number / step) * step:,}"
    if -(exponent := int(number.as_tuple().exponent)) > 2 and rng.random() < 0.8 and number >= 1:
        return f"{number:.2f}"
    return f"{number:,}" if rng.random() < 0.6 and exponent <= 0 else f"{number:f}"


def demonstration(table: Table, facts: Mapping[str, Fact], rng: random.Random) -> str:
    """Return a report that states these facts in two or three sentences."""
    texts = {name: wording(fact, table.columns[name].kind, rng) for name, fact in facts.items()}
    subject = rng.choice(table.start).format(texts[table.subject])
    others = [name for name in facts if name != table.subject]
    rng.shuffle(others)
    clauses = [rng.choice(table.columns[name].clauses).format(texts[name]) for name in others]
    count = min(len(clauses), rng.choice([2, 2, 3]))
    parts = [clauses[n::count] for n in range(count)]
    starts = [subject, *(rng.choice(table.its) for _ in parts[1:])]
    sentences = [f"{start} {' and '.join(part)}." for start, part in zip(starts, parts, strict=True)]
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


class ReportsTask:
    """Rows with a report of their facts; held-out tables are in no other split.

    `sft` and `train` are different rows of the same tables. Equal seeds give equal examples.

    Raises:
        UserError: the tables are not installed.
    """

    name = "reports"
    critic_prompt = "summarization"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        folder()
        self._settings, self._tables = settings, read_tables()

    def examples(self, split: Split) -> list[Example]:
        """Return the rows of a split, balanced over tables; `task.limit` limits the `sft` split."""
        rng = random.Random(f"{self._settings.seed}/{split}")
        tables, count = select_kinds(split, self._tables, "tables", self._settings)
        pools = {table.table: self._rows(table, split) for table in tables}
        result = []
        for n in range(count):
            turn, place = divmod(n, len(tables))
            pool = pools[tables[place].table]
            if turn < len(pool) or split == "sft":  # rows repeat only in demonstrations
                result.append(self._example(f"{split}-{n}", tables[place], pool[turn % len(pool)], rng))
        return result

    def _rows(self, table: Table, split: Split) -> list[dict[str, Fact]]:
        """Return the facts of a split's rows, shuffled; `sft` and `train` share no row."""
        rows = [facts for facts in table.rows if len(facts) >= FEWEST]
        random.Random(f"{self._settings.seed}/{table.table}").shuffle(rows)
        half = len(rows) // 2
        return rows if split == "heldout" else rows[:half] if split == "sft" else rows[half:]

    def _example(self, id: str, table: Table, facts: Mapping[str, Fact], rng: random.Random) -> Example:
        others = [name for name in facts if name != table.subject]
        names = [table.subject, *rng.sample(others, min(len(others), rng.randint(FEWEST, MOST) - 1))]
        rng.shuffle(names)
        rows = [f"{name}: {table.columns[name].shows(facts[name])}" for name in names]
        content = QUESTION.format(about=table.about, rows="\n".join(rows))
        selected = {name: facts[name] for name in names}
        meta = {"table": table.table, "facts": [asdict(fact) for fact in selected.values()]}
        return Example(
            **{**dict(single_turn_example(id, content, demonstration(table, selected, rng), {})), "meta": meta}
        )

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return the measures of a report.

        `covered` is the share of stated facts. `invented` is the share of numbers that are in the
        row. `length` is 1 for two or three sentences and nothing else. `right` is the share of
        stated facts among all facts and faults, which the critic's verdict reports.
        """
        return report_of(example, response).scores()


def distinct(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return the facts without those whose text contains, or is contained in, an earlier one."""
    result: dict[str, Fact] = {}
    for name, fact in facts.items():
        before = [form.casefold() for other in result.values() for form in other.forms]
        texts = [form.casefold() for form in fact.forms]
        if not any(text in other or other in text for text in texts for other in before):
            result[name] = fact
    return result


def report_of(example: Example, response: str) -> Report:
    """Return a response with the facts of its example."""
    facts = [Fact.of(row) for row in example.meta["facts"]]
    return Report(facts, response, conversation_text(example.prompt))
