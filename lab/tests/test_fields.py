"""The critic of JSON objects: spans, reasons, and resistance to tricks."""

from __future__ import annotations

from collections import Counter

import pytest

from text2grad.critics.table import spec_of
from text2grad.feedback import Critique, Example, Failure, Feedback, Message, Source
from text2grad_lab.tasks.fields import FieldsCritic
from text2grad_lab.tasks.objects import Fields

DOCUMENT = (
    "Ana Ruiz pays $12.50 by 2 January 2025; Omar Khan paid $30 on 2024-11-05 in Lyon. Late: 5 %. Call at 4:30 pm."
)
EXPECTED = '{"payer": "Ana Ruiz", "due": "2025-01-02", "total": 12.50, "call_at": "16:30"}'
HONEST = '{"payer": "Ana Ruiz", "due": "2024-11-05", "total": 12.50, "call_at": "17:00"}'
RIGHT = {"Ana Ruiz", "12.50"}


def judge(response: str, reference: str = EXPECTED) -> Critique:
    example = Example(id="a", prompt=(Message(role="user", content=DOCUMENT),), reference=reference)
    (critique,) = FieldsCritic().critique([example], [response])
    assert isinstance(critique, Critique)
    Feedback.of(example, response, critique, Source(kind="program"))  # checks the quotes
    return critique


def test_right_values_are_good_and_wrong_ones_poor_with_a_reason() -> None:
    critique = judge('{"payer": "Omar Khan", "due": "2 January 2025", "total": "12.50", "city": "Lyon"}')
    assert [(span.text, span.label, span.reason) for span in critique.spans] == [
        ("Omar Khan", -1, "it is in the text, but is not the payer"),
        ("2 January 2025", -1, "a date is written YYYY-MM-DD"),
        ("12.50", -1, "the total is a number, not text"),
        ('"city": "Lyon"', -1, "nobody asked for this key"),
    ]
    assert (critique.score, critique.omissions) == (-1.0, ("call_at",))
    assert critique.text == "Wrong: payer, due, total. Not asked for: city. Missing: call_at."


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"Zoe Zhang"', "this is not in the text"),
        ('"ana ruiz"', "the payer, but not as it is written"),
        ('""', "this is not in the text"),
        ("null", "the payer is text, not null"),
        ("true", "the payer is text, not true or false"),
        ('["Ana Ruiz"]', "the payer is text, not a list"),
        ('{"name": "Ana Ruiz"}', "the payer is text, not an object"),
    ],
)
def test_reasons_name_the_kind_of_mistake(value: str, reason: str) -> None:
    (span,) = [span for span in judge(EXPECTED.replace('"Ana Ruiz"', value)).spans if span.label < 0]
    assert span.reason == reason and span.text == (value.strip('"') or '""')


def test_wrong_values_of_the_right_format_have_a_plain_reason() -> None:
    poor = [span.reason for span in judge(HONEST.replace("12.50", "30")).spans if span.label < 0]
    assert poor == ["this is not the due", "this is not the total", "this is not the call_at"]
    (form,) = [span.reason for span in judge(EXPECTED.replace("16:30", "4:30 pm")).spans if span.label < 0]
    assert form == "a time is written HH:MM"


def test_critiques_never_contain_the_right_value() -> None:
    for response in ("{}", "", "no", HONEST.replace("Ana Ruiz", "Omar Khan").replace("12.50", "1")):
        critique = judge(response)
        reasons = " ".join([critique.text, *critique.omissions, *(span.reason for span in critique.spans)])
        assert not any(value in reasons for value in ("Ana Ruiz", "2025-01-02", "12.5", "16:30"))


def test_fields_before_a_json_error_are_marked() -> None:
    critique = judge('{"payer": "Ana Ruiz", "due": "2025-01-02" "total": 12.50}')
    labels = [(span.text, span.label) for span in critique.spans]
    assert labels == [("Ana Ruiz", 1), ("2025-01-02", 1), ('"total"', -1)]
    assert critique.score == -1.0 and critique.omissions == ("total", "call_at")
    assert critique.text.endswith("Not JSON at character 42: a comma or } belongs here.")


def test_best_and_worst_score() -> None:
    assert (judge(EXPECTED).score, judge(EXPECTED).omissions) == (1.0, ())
    assert all(span.label == 1 for span in judge(EXPECTED).spans)
    assert (judge("").score, judge("").text, judge("").spans) == (-1.0, "The answer is empty.", ())
    assert judge("Ana Ruiz").spans[0].text == "Ana Ruiz" and judge("Ana Ruiz").spans[0].label == -1


@pytest.mark.parametrize("reference", ["", "{}", "[1]", "Ana Ruiz", '{"a": 1'])
def test_references_without_an_object_are_unsupported(reference: str) -> None:
    example = Example(id="a", prompt=(Message(role="user", content="?"),), reference=reference)
    (failure,) = FieldsCritic().critique([example], [EXPECTED])
    assert isinstance(failure, Failure) and failure.kind == "unsupported"
    needs = spec_of("text2grad_lab.tasks.fields:FIELDS").needs
    assert needs and not needs.has(example)


def more(text: str) -> str:
    """Return the honest answer with additional members."""
    return f"{HONEST[:-1]}, {text}}}"


TRICKS = {
    "a right field again": more('"payer": "Ana Ruiz"'),
    "a right field five times": more(", ".join(['"payer": "Ana Ruiz"'] * 5)),
    "a wrong field corrected later": more('"due": "2025-01-02"'),
    "every date there is": more('"due": "2025-01-02", "due": "2024-11-05"'),
    "the right one first": HONEST.replace('"due"', '"due": "2025-01-02", "due"', 1),
    "each key with each value": more(", ".join(f'"{k}": "{v}"' for k in ("due", "call_at") for v in (1, 2, 3))),
    "a list of candidates": HONEST.replace('"2024-11-05"', '["2025-01-02", "2024-11-05"]'),
    "the right one in a list": HONEST.replace('"2024-11-05"', '["2025-01-02"]'),
    "the right one in an object": HONEST.replace('"2024-11-05"', '{"due": "2025-01-02"}'),
    "the whole answer in a field": more(f'"answer": {EXPECTED}'),
    "all in an object": f'{{"answer": {EXPECTED}}}',
    "all in a list": f"[{EXPECTED}]",
    "two objects": HONEST + EXPECTED,
    "two objects in two lines": f"{HONEST}\n{EXPECTED}",
    "the right object first": f"{EXPECTED}\n{HONEST}",
    "the right object in prose": f"The answer is {EXPECTED}",
    "a fence": f"```json\n{EXPECTED}\n```",
    "candidates in one text": HONEST.replace("2024-11-05", "2025-01-02 or 2024-11-05"),
    "words around a value": HONEST.replace("2024-11-05", "due 2025-01-02"),
    "the document in a field": HONEST.replace("2024-11-05", DOCUMENT),
    "the document": DOCUMENT,
    "the document behind": f"{HONEST}\n{DOCUMENT}",
    "the document before": f"{DOCUMENT}\n{HONEST}",
    "the document as a key": more(f'"{DOCUMENT}": 1'),
    "keys nobody asked for": more('"name": "Ana Ruiz", "date": "2025-01-02", "amount": 12.50'),
    "keys in other letters": more('"Due": "2025-01-02", "DUE": "2025-01-02", "call at": "16:30"'),
    "a key with an escape": more('"d\\u0075e": "2025-01-02"'),
    "a key with a space": more('"due ": "2025-01-02"'),
    "digits of another script": HONEST.replace("2024-11-05", "２０２５-０１-０２").replace("17:00", "١٦:٣٠"),
    "a hyphen of another kind": HONEST.replace("2024-11-05", "2025‑01‑02"),
    "an invisible sign": HONEST.replace("2024-11-05", "2025-01-02\u200b"),
    "spaces around it": HONEST.replace("2024-11-05", " 2025-01-02 "),
    "a huge number": HONEST.replace("12.50", "9" * 5000),
    "a huge exponent": HONEST.replace("12.50", "1e999"),
    "not a number": HONEST.replace("12.50", "NaN"),
    "infinity": HONEST.replace("12.50", "Infinity"),
    "deep nesting": HONEST.replace("12.50", "[" * 3000 + "12.50" + "]" * 3000),
    "null everywhere": '{"payer": null, "due": null, "total": null, "call_at": null}',
    "true for everything": HONEST.replace("12.50", "true"),
    "empty texts": '{"payer": "", "due": "", "total": "", "call_at": ""}',
    "a number as text": HONEST.replace("12.50", '"12.50"'),
    "a comment": HONEST.replace("12.50", '12.50 /* "due": "2025-01-02" */'),
    "an object that does not end": HONEST[:-1],
    "values alone": '"Ana Ruiz", "2025-01-02", 12.50, "16:30"',
    "the question": '{"payer": "payer", "due": "due", "total": "total", "call_at": "call_at"}',
}


def test_no_trick_beats_the_honest_answer_or_is_rewarded() -> None:
    """Only right values are good, each once; additions are poor or unmarked."""
    not_json = {"the right object first", "the right object in prose", "a fence", "all in a list"}
    honest, caught = judge(HONEST).score, []
    assert honest == 0.0
    for trick, response in TRICKS.items():
        critique, scores = judge(response), Fields.of(EXPECTED, response).scores()
        good = Counter(span.reason for span in critique.spans if span.label > 0)
        texts = {span.text for span in critique.spans if span.label > 0}
        assert critique.score is not None
        lower = critique.score <= honest and scores["fields"] <= 0.5 and scores["exact"] == 0.0
        unpaid = set(good.values()) <= {1} and (texts <= RIGHT or (trick in not_json and critique.score == -1.0))
        caught += [trick] if lower and unpaid else []
    assert caught == list(TRICKS)
