"""The task `extraction`: documents, held-out kinds and comparison of answers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.tasks.base import TaskSettings
from text2grad_lab.tasks.extraction import ExtractionTask, read_kinds
from text2grad_lab.tasks.objects import Fields, read_members

EXPECTED = '{"payer": "Ana Ruiz", "due": "2025-01-02", "total": 12.50, "rooms": 3}'


def task(**changes: object) -> ExtractionTask:
    name = "text2grad_lab.tasks.extraction:ExtractionTask"
    return ExtractionTask(TaskSettings.model_validate({"name": name, **changes}))


def kinds(examples: list[Example]) -> set[str]:
    return {example.meta["kind"] for example in examples}


def test_no_two_kinds_share_a_key() -> None:
    all_kinds = read_kinds()
    keys = [key for kind in all_kinds for key in kind.keys]
    assert len(all_kinds) >= 8 and len(keys) == len(set(keys))
    assert {kind.form for kind in all_kinds} == {"prose", "list", "table"}


@pytest.mark.parametrize("seed", [0, 1, 2, 100])
def test_two_kinds_are_held_out_with_all_their_keys(seed: int) -> None:
    extraction = task(seed=seed)
    heldout, *trained = (extraction.examples(split) for split in ("heldout", "sft", "train"))
    assert len(kinds(heldout)) == 2 and len(kinds(trained[0])) == 8
    assert not kinds(heldout) & (kinds(trained[0]) | kinds(trained[1]))
    prompts = [example.prompt for split in (heldout, *trained) for example in split]
    assert len(set(prompts)) == len(prompts)


def test_seeds_are_reproducible_and_the_limit_applies_to_demonstrations() -> None:
    assert task().examples("train") == task().examples("train") != task(seed=1).examples("train")
    assert [len(task(limit=7).examples(split)) for split in ("sft", "train", "heldout")] == [7, 400, 200]
    assert task(limit=7).examples("sft") == task().examples("sft")[:7]
    assert task(heldout_share=0.0).examples("heldout") == []
    with pytest.raises(UserError, match="predefined splits"):
        task(heldout_data="x.jsonl")


def test_every_value_occurs_in_its_document_and_the_reference_is_right() -> None:
    """Dates, times and numbers may have another format in the text."""
    for example in task().examples("sft") + task().examples("heldout"):
        expected = json.loads(example.reference)
        document = example.prompt[0].content
        copied = [
            v for v in expected.values() if isinstance(v, str) and not v.replace("-", "").replace(":", "").isdigit()
        ]
        assert all(value in document for value in copied), example
        assert 3 <= len(expected) <= 4 and all(key in document for key in expected)
        assert task().scores(example, example.reference) == {"fields": 1.0, "exact": 1.0, "valid": 1.0}


@pytest.mark.parametrize(
    ("response", "fields", "exact", "valid"),
    [
        (EXPECTED, 1, 1, 1),
        ('{"rooms":3,"total":12.5,\n"due":"2025-01-02","payer":"Ana Ruiz"}', 1, 1, 1),
        (EXPECTED.replace("12.50", '"12.50"'), 0.75, 0, 1),
        (EXPECTED.replace("12.50", "1.25e1"), 1, 1, 1),
        (EXPECTED.replace("3}", "4}"), 0.75, 0, 1),
        (EXPECTED.replace(', "rooms": 3', ""), 0.75, 0, 0),
        (EXPECTED.replace("}", ', "city": "Lyon"}'), 0.8, 0, 0),
        (EXPECTED.replace("Ana Ruiz", "Ana  Ruiz"), 0.75, 0, 1),
        (EXPECTED.replace("Ana Ruiz", "\\u0041na Ruiz"), 1, 1, 1),
        (EXPECTED[:-1], 0, 0, 0),
        (f"```json\n{EXPECTED}\n```", 0, 0, 0),
        (f"[{EXPECTED}]", 0, 0, 0),
        ("{}", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_measures_of_an_answer(response: str, fields: float, exact: float, valid: float) -> None:
    assert Fields.of(EXPECTED, response).scores() == {"fields": fields, "exact": exact, "valid": valid}


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ('{"a": 1 "b": 2}', '"b"', "a comma or } belongs here"),
        ('{"a" 1}', "1", "a colon belongs here"),
        ("{'a': 1}", "'a'", "a key in double quotes belongs here"),
        ('{"a": 1,}', "}", "a key in double quotes belongs here"),
        ('{"a": None}', "None", "a value belongs here"),
        ('{"a": 01}', "1", "a comma or } belongs here"),
        ('{"a": NaN}', "NaN", "a value belongs here"),
        ('{"a": .5}', ".5", "a value belongs here"),
        ('{"a": "b', '"b', "this text in quotes does not end, or has a sign that JSON does not take"),
        ('{"a": "b\nc"}', '"b\nc"', "this text in quotes does not end, or has a sign that JSON does not take"),
        ('{"a": [1, }', "[", "one value belongs here"),
        ('{"a": 1', "", "the object does not end"),
        ('{"a": 1,', "", "the object does not end"),
        ('so {"a": 1}', "so", "nothing belongs before the object"),
        ('{"a": 1} ok?\n', "ok?", "nothing belongs after the object"),
        ("no idea ", "no idea", "no JSON object"),
    ],
)
def test_json_errors_have_their_exact_place(text: str, place: str, reason: str) -> None:
    (fault,) = read_members(text)[1]
    assert (text[slice(*fault.place)], fault.reason) == (place, reason)


values = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text()
objects = st.dictionaries(st.text(max_size=3), values | st.lists(values, max_size=2), max_size=4)


def slowly(text: str) -> list[tuple[str, Any]] | None:
    """Return the members of a JSON object by the json library; None if it is not one."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        members = json.loads(
            text, object_pairs_hook=list, parse_int=Decimal, parse_float=Decimal, parse_constant=refuse
        )
    except ValueError:
        return None
    return members if text.strip().startswith("{") else None


@given(objects, st.booleans(), st.data())
def test_members_equal_those_of_the_json_library(value: dict[str, Any], tight: bool, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=tight, separators=(",", ":") if tight else None)
    at = data.draw(st.integers(0, len(text)))
    text = data.draw(st.sampled_from([text, text[:at], text[:at] + text[at + 1 :], f'{text[:at]}",{text[at:]}']))
    members, faults = read_members(text)
    expected = slowly(text)
    assert bool(faults) == (expected is None)
    if expected is not None:
        flat = [(m.key, m.value) for m in members if not isinstance(m.value, list | dict)]
        assert flat == [(key, value) for key, value in expected if not isinstance(value, list)]
    for member in members:
        start, end = member.place
        assert start < end <= member.extent[1]
        quoted = text[start - 1 : end + 1] if isinstance(member.value, str) and member.value else text[start:end]
        assert json.loads(quoted, parse_float=Decimal) == member.value


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": ' + "[" * 100_000, '{"a": ' + '{"a": ' * 50_000, '{"a": ' + "9" * 9000 + "}"),
        *('{"a": 1e' + "9" * 30, '{"a": [1e' + "9" * 30 + "]}", '{"a": -1e' + "9" * 30 + ","),
    ],
)
def test_huge_numbers_and_deep_nesting_are_parsed(text: str) -> None:
    members, faults = read_members(text)
    assert len(members) + len(faults) == 1
