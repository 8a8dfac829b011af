"""The task `extraction`: write requested keys of a message, list or table as a JSON object.

A seeded generator writes documents of ten kinds (`extraction.yaml`). Wording, order, and formats of
dates, times, amounts and names vary, and each document has distractors. A share of the kinds
(`task.heldout_share`: two of ten) is held out with all their keys.

The reference is the object. The critic `fields` judges each of its fields.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from text2grad.data.published import single_turn_example
from text2grad.feedback import Example
from text2grad.strict_yaml import parse_yaml
from text2grad.tasks.base import Split, TaskSettings, refuse_split_settings
from text2grad_lab.tasks.kinds import select_kinds
from text2grad_lab.tasks.objects import Fields
from text2grad_lab.tasks.values import Value, draw

FEWEST, MOST = 3, 4
"""The minimum and maximum number of requested keys."""
ROWS = 4
SEPARATORS = ("{}: {}", "{} - {}", "{} = {}", "* {}: {}")
BARS = (" | ", "; ", "\t")
QUESTION = (
    "Read the text and answer with a JSON object and nothing else. Its keys: {keys}{of}. Dates as YYYY-MM-DD,"
    " times as HH:MM, amounts and counts as numbers, everything else as it is written.\n\n{document}"
)


@dataclass(frozen=True)
class Kind:
    """One kind of document, as a record of `extraction.yaml`."""

    kind: str
    form: str
    keys: Mapping[str, Any]
    opening: Sequence[str]
    others: Mapping[str, Any] = field(default_factory=dict)
    sentences: Sequence[Sequence[str]] = ()
    asides: Sequence[str] = ()
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    row: str = ""
    row_names: Sequence[str] = ("",)


def read_kinds() -> list[Kind]:
    """Return the kinds of `extraction.yaml`."""
    text = (resources.files("text2grad_lab.tasks") / "extraction.yaml").read_text(encoding="utf-8")
    return [Kind(**row) for row in parse_yaml(text)]


def values_of(kind: Kind, rng: random.Random) -> dict[str, Value]:
    """Return a value for each key and each other slot of a document, with distinct answers."""
    values: dict[str, Value] = {}
    for key, value_kind in {**kind.keys, **kind.others}.items():
        answers = {value.answer for value in values.values()}
        while key not in values or values[key].answer in answers:
            values[key] = draw(value_kind, rng)
    return values


def prose(kind: Kind, values: Mapping[str, Value], rng: random.Random) -> str:
    """Return an opening, and all sentences and one aside in random order and wording."""
    sentences = [rng.choice(wordings) for wordings in kind.sentences] + [rng.choice(kind.asides)]
    rng.shuffle(sentences)
    text = rng.choice([" ", "\n"]).join([rng.choice(kind.opening), *sentences])
    return text.format(**{key: value.text for key, value in values.items()})


def listing(kind: Kind, values: Mapping[str, Value], rng: random.Random) -> str:
    """Return an opening, and a line for each value in random order."""
    separator = rng.choice(SEPARATORS)
    lines = [separator.format(rng.choice(labels), values[key].text) for key, labels in kind.labels.items()]
    rng.shuffle(lines)
    return "\n".join([rng.choice(kind.opening), *lines])


def table(kind: Kind, values: Mapping[str, Value], rng: random.Random) -> str:
    """Return an opening and a table of the requested row and others in random order."""
    rows = [values]
    while len(rows) < ROWS:
        other = values_of(kind, rng)
        if all(other[kind.row] != row[kind.row] for row in rows):
            rows.append(other)
    rng.shuffle(rows)
    columns = rng.sample(list(kind.columns), len(kind.columns))
    bar = rng.choice(BARS)
    lines = [bar.join(rng.choice(kind.columns[key]) for key in columns)]
    lines += [bar.join(row[key].text for key in columns) for row in rows]
    return "\n".join([rng.choice(kind.opening), *lines])


FORMS = {"prose": prose, "list": listing, "table": table}


class ExtractionTask:
    """Documents with the requested object; held-out kinds occur in no other split.

    `sft` and `train` are different documents of the same kinds. Equal seeds give equal examples.
    """

    name = "extraction"
    critic_prompt = "qa"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        self._settings, self._kinds = settings, read_kinds()

    def examples(self, split: Split) -> list[Example]:
        """Return the documents of a split, balanced over kinds; `task.limit` limits `sft`."""
        rng = random.Random(f"{self._settings.seed}/{split}")
        kinds, count = select_kinds(split, self._kinds, "kinds", self._settings)
        return [self._example(f"{split}-{n}", kinds[n % len(kinds)], rng) for n in range(count)]

    def _example(self, id: str, kind: Kind, rng: random.Random) -> Example:
        values = values_of(kind, rng)
        keys = rng.sample([key for key in kind.keys if key != kind.row], rng.randint(FEWEST, MOST))
        which = rng.choice(kind.row_names).format(**{key: value.text for key, value in values.items()})
        document = FORMS[kind.form](kind, values, rng)
        content = QUESTION.format(keys=", ".join(keys), of=f", of {which}" if which else "", document=document)
        reference = "{" + ", ".join(f"{json.dumps(key)}: {values[key].answer}" for key in keys) + "}"
        return single_turn_example(id, content, reference, {"kind": kind.kind})

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Return `fields` (share of right ones), `exact` (all right) and `valid` (right keys)."""
        return Fields.of(example.reference, response).scores()
