"""Reports: a row of a real table -> two or three sentences that state every fact of it and no
other.

The tables come with the package `vega_datasets`; `reports.yaml` says what their columns are. A
share of the tables (`task.heldout_share`: two of the eight) is held out whole. A demonstration is
put together from clauses in varied words, orders and forms of its numbers; what is right of any
other text, `statements` can tell.
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
from text2grad_lab.tasks.sorts import sorts_of
from text2grad_lab.tasks.statements import WORDS, Fact, Report

FEWEST, MOST = 3, 5
"""Facts of a row that are shown."""
ASKED = (
    "Write two or three sentences about {about}. State every fact below, and nothing that is not there.\n\n{rows}"
)
SPELLED = {str(number): word for word, number in WORDS.items()}


@dataclass(frozen=True)
class Column:
    """What a column says, as a record of `reports.yaml`."""

    column: str
    kind: str = "text"
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cues: Sequence[str] = ()
    units: Sequence[str] = ()
    shown: str = ""
    times: int = 1
    clauses: Sequence[str] = ()

    def shows(self, fact: Fact) -> str:
        """A fact as the row shows it."""
        if not fact.number:
            return fact.forms[0]
        number = Decimal(fact.number) / self.times
        return (
            f"{number.normalize():f} {self.shown}".strip()
            if self.times > 1
            else f"{fact.number} {self.shown}".strip()
        )

    def fact(self, name: str, value: Any) -> Fact:
        """The fact that a row with this value states."""
        if self.cues:
            number = Decimal(str(value)) * self.times
            shown = f"{number.normalize():f}" if self.times > 1 else str(number)
            return Fact(name, (), shown, tuple(self.cues), tuple(self.units))
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
        """The facts of each row that lacks no value, without repeats."""
        place = folder() / self.file
        text = place.read_text(encoding="utf-8")
        read = json.loads(text) if place.suffix == ".json" else csv.DictReader(text.splitlines())
        found = [{name: row[column.column] for name, column in self.columns.items()} for row in read]
        whole = dict.fromkeys(tuple(row.items()) for row in found if all(v not in (None, "") for v in row.values()))
        return [distinct({name: self.columns[name].fact(name, value) for name, value in row}) for row in whole]


def folder() -> Path:
    """Return the folder in which vega_datasets keeps its tables; importing it would take a second.

    Raises:
        UserError: vega_datasets is not installed.
    """
    spec = find_spec("vega_datasets")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the task reports needs the tables of vega_datasets", "pip install vega_datasets")
    return Path(spec.submodule_search_locations[0]) / "_data"


def read_tables() -> list[Table]:
    """The tables of `reports.yaml`."""
    text = (resources.files("text2grad_lab.tasks") / "reports.yaml").read_text(encoding="utf-8")
    return [Table(**row) for row in parse_yaml(text)]


def forms_of(value: str, kind: str) -> tuple[str, ...]:
    """The ways to write a text, the year, day or month of a date; the row shows the first."""
    if kind == "text":
        return (value,)
    if kind == "year":
        return (value[:4],)
    day = datetime.fromisoformat(value.replace("/", "-")).date()
    months = (f"{day:%B}", f"{day:%b}")
    if kind == "month":
        return (*(f"{month} {day.year}" for month in months), f"{day:%Y-%m}")
    return (*(each for month in months for each in _days(day, month)), day.isoformat())


def _days(day: date, month: str) -> Iterator[str]:
    suffix = "th" if 10 < day.day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    yield from (f"{day.day} {month} {day.year}", f"{month} {day.day}, {day.year}", f"{month} {day.day} {day.year}")
    yield from (f"{month} {day.day}{suffix}, {day.year}", f"{day.day}{suffix} of {month} {day.year}")


def wording(fact: Fact, kind: str, rng: random.Random) -> str:
    """A fact as the text of a demonstration has it: a date in any form, a number in several."""
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
    """A report that states these facts, in two or three sentences."""
    texts = {name: wording(fact, table.columns[name].kind, rng) for name, fact in facts.items()}
    subject = rng.choice(table.start).format(texts[table.subject])
    rest = [name for name in facts if name != table.subject]
    rng.shuffle(rest)
    clauses = [rng.choice(table.columns[name].clauses).format(texts[name]) for name in rest]
    count = min(len(clauses), rng.choice([2, 2, 3]))
    parts = [clauses[n::count] for n in range(count)]
    starts = [subject, *(rng.choice(table.its) for _ in parts[1:])]
    sentences = [f"{start} {' and '.join(part)}." for start, part in zip(starts, parts, strict=True)]
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


class ReportsTask:
    """Rows with a report of their facts; tables that are held out are in no other split.

    `sft` and `train` are different rows of the same tables. Equal seeds give equal examples.

    Raises:
        MissingPackageError: the tables are not installed.
    """

    name = "reports"
    critic_prompt = "summarization"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        folder()
        self._settings, self._tables = settings, read_tables()

    def examples(self, split: Split) -> list[Example]:
        """The rows of a split, every table as often as the others; `task.limit` is of the `sft`
        split."""
        rng = random.Random(f"{self._settings.seed}/{split}")
        tables, count = sorts_of(split, self._tables, "tables", self._settings)
        pools = {table.table: self._rows(table, split) for table in tables}
        found = []
        for n in range(count):
            turn, place = divmod(n, len(tables))
            pool = pools[tables[place].table]
            if turn < len(pool) or split == "sft":  # a row may have several demonstrations, and is asked for once
                found.append(self._example(f"{split}-{n}", tables[place], pool[turn % len(pool)], rng))
        return found

    def _rows(self, table: Table, split: Split) -> list[dict[str, Fact]]:
        """The facts of a table's rows for a split, in the order of the seed; of training rows half
        are of `sft`."""
        rows = [facts for facts in table.rows if len(facts) >= FEWEST]
        random.Random(f"{self._settings.seed}/{table.table}").shuffle(rows)
        half = len(rows) // 2
        return rows if split == "heldout" else rows[:half] if split == "sft" else rows[half:]

    def _example(self, id: str, table: Table, facts: Mapping[str, Fact], rng: random.Random) -> Example:
        others = [name for name in facts if name != table.subject]
        chosen = [table.subject, *rng.sample(others, min(len(others), rng.randint(FEWEST, MOST) - 1))]
        rng.shuffle(chosen)
        shown = [f"{name}: {table.columns[name].shows(facts[name])}" for name in chosen]
        content = ASKED.format(about=table.about, rows="\n".join(shown))
        kept = {name: facts[name] for name in chosen}
        meta = {"table": table.table, "facts": [asdict(fact) for fact in kept.values()]}
        return Example(
            **{**dict(single_turn_example(id, content, demonstration(table, kept, rng), {})), "meta": meta}
        )

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """`covered`: share of the facts that are stated; `invented`: 1 where every number is in the
        row, 0 where none is; `length`: two or three sentences and nothing else; `right`: share of
        the facts that are stated, out of all facts and all faults, which is what its critic's
        verdict says."""
        return report_of(example, response).scores()


def distinct(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """The facts whose text is not part of that of an earlier one, nor the other way round."""
    kept: dict[str, Fact] = {}
    for name, fact in facts.items():
        before = [form.casefold() for other in kept.values() for form in other.forms]
        texts = [form.casefold() for form in fact.forms]
        if not any(text in other or other in text for text in texts for other in before):
            kept[name] = fact
    return kept


def report_of(example: Example, response: str) -> Report:
    """A response beside the facts of its example."""
    facts = [Fact.of(row) for row in example.meta["facts"]]
    return Report(facts, response, conversation_text(example.prompt))
