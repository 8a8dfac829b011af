"""The task `reports`: stated facts, numbers against a slow oracle, held-out tables."""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_DOWN, ROUND_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.errors import UserError
from text2grad.tasks.base import TaskSettings, load_task
from text2grad_lab.tasks.reports import ReportsTask, forms_of
from text2grad_lab.tasks.statements import Fact, Report, numbers, states

MEASURES = ("covered", "invented", "length", "right")
FACTS = (
    Fact("name", ("ford pinto 4",)),
    Fact("year", ("1971",)),
    Fact("horsepower", (), "130", ("horsepower", "hp"), ("horsepower", "hp")),
    Fact("weight", (), "3504", ("weigh*", "pound*"), ("lb", "lbs", "pounds")),
    Fact("mileage", (), "17.6", ("mpg", "miles per gallon"), ("mpg", "miles")),
    Fact("cylinders", (), "8", ("cylinder*",)),
    Fact("price", (), "2400000", ("cost*", "price*"), ("dollars", "$")),
)
PROMPT = "name: ford pinto 4; year: 1971; Weight: 3504 lb"


def report(text: str) -> Report:
    return Report(FACTS, text, PROMPT)


@pytest.mark.parametrize(
    ("sentence", "stated"),
    [
        ("The Ford Pinto 4 was built in 1971.", "name year"),
        ("It has 130 horsepower and weighs 3,504 lb.", "horsepower weight"),
        ("With 130 hp, 8 cylinders and 17.6 mpg it weighs 3504 pounds.", "horsepower cylinders mileage weight"),
        ("Its horsepower is 130 and its weight is 3504.", "horsepower weight"),
        ("Eight cylinders give it 130hp.", "cylinders horsepower"),
        ("It weighs about 3,500 pounds.", "weight"),
        ("It weighs 3\u202f504 pounds.", "weight"),
        ("It weighs 3504.0 pounds.", "weight"),
        ("It costs 2.4 million dollars.", "price"),
        ("It costs $2,400,000.", "price"),
        ("It costs nearly 2,400 thousand dollars.", "price"),
        ("It does 17.60 miles per gallon.", "mileage"),
        ("Does it do about 18 mpg?", "mileage"),
        # sentences that state nothing
        ("It weighs 3,500 pounds.", ""),
        ("It does 18 mpg.", ""),
        ("It weighs about 4,000 pounds.", ""),
        ("It weighs about 3,400 pounds.", ""),
        ("It weighs 130 pounds and has 3504 horsepower.", ""),
        ("It has 3504 horsepower and weighs 130.", ""),
        ("It weighs -3504 pounds.", ""),
        ("It weighs 3504 kg.", ""),
        ("It costs €2,400,000.", ""),
        ("It was built in 1971.5 or $1971 or 21971.", ""),
        ("It weighs 35,04 pounds.", ""),
        ("It weighs 3504 pounds", ""),
        ("weight: 3504, mpg: 17.6, hp: 130.", ""),
        ("8, 130, 3504, 17.6.", ""),
        ("It weighs ３５０４ pounds.", ""),
        ("It has eighteen cylinders, six cylinders or one cylinder.", ""),
        ("A ford pinto 45 or a ford pinto.", ""),
    ],
)
def test_stated_facts(sentence: str, stated: str) -> None:
    assert sorted(report(sentence).stated) == sorted(stated.split())


@pytest.mark.parametrize(
    ("sentence", "poor", "reason"),
    [
        ("It has 150 horsepower.", "150", "this number is not in the row"),
        ("It weighs 130 pounds.", "130", "this is not the weight"),
        ("It is a 130.", "130", "it does not say what this number is"),
        ("It weighs 3504 kg.", "3504 kg", "the unit of the weight is lb"),
        ("It costs £2,400,000 today.", "£2,400,000", "the unit of the price is dollars"),
        ("It weighs ３５０４ pounds.", "３５０４", "these are no plain digits"),
        ("It has six cylinders.", "six", "this number is not in the row"),
        ("It has 8 cylinders, yes 8 cylinders.", "8", "the cylinders is said again"),
        ("It was built in Detroit by Henry Ford.", "Detroit", "this name is not in the row"),
        ("hp: 130, mpg: 17.6.", "hp: 130, mpg: 17.6.", "a list of values is no sentence"),
        ("A. B. C. D is it. Yes.", "D is it. Yes.", "after the 3rd sentence"),
    ],
)
def test_faults_and_their_reasons(sentence: str, poor: str, reason: str) -> None:
    (fault,) = [remark for remark in report(sentence).remarks if remark.label < 0]
    assert (sentence[slice(*fault.place)], fault.reason) == (poor, reason)


def test_a_capitalised_unit_is_not_a_name() -> None:
    fact = Fact("high", (), "27.8", ("high",), ("°C", "degrees", "Celsius"))
    (remark,) = Report([fact], "The high was 27.8 degrees Celsius.", "high: 27.8 °C").remarks
    assert (remark.name, remark.label) == ("high", 1)
    (wrong,) = Report([fact], "The high was 27.8 °F.", "high: 27.8 °C").remarks
    assert (wrong.reason, wrong.label) == ("the unit of the high is °C", -1)


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("The ford pinto 4 has 130 hp. It weighs 3504 lb.", (3 / 7, 1, 1, 3 / 7)),
        ("The ford pinto 4 has 130 hp. It weighs 3505 lb, does 12 mpg.", (2 / 7, 1 / 3, 1, 2 / 9)),
        ("The ford pinto 4 has 130 hp.", (2 / 7, 1, 0, 2 / 8)),
        ("It has 130 hp. It is. It was. It weighs 3504 lb.", (1 / 7, 1, 0, 1 / 9)),
        ("It has 130 hp. It weighs 3504 lb. And", (2 / 7, 1, 0, 2 / 8)),
        ("It has 130 hp. It is. It was. It weighs 99 lb\nand 98", (1 / 7, 1 / 3, 0, 1 / 9)),
        ("", (0, 1, 0, 0)),
    ],
)
def test_measures_of_an_answer(text: str, scores: tuple[float, ...]) -> None:
    assert tuple(report(text).scores().values()) == pytest.approx(scores)


decimals = st.decimals(Decimal("-99999"), Decimal(99999), places=3, allow_nan=False)


def slowly(value: Decimal, number: Decimal, decimals: int, free: bool) -> bool:
    """True if `number`, with this many decimals, is the value or any rounding of it."""
    if number == value:
        return True
    if number == 0 or value == 0 or (number < 0) != (value < 0):
        return False
    for place in range(-decimals, 8 if free else 1 - decimals):
        step = Decimal(10) ** place
        roundings = {(value / step).to_integral_value(way) for way in (ROUND_DOWN, ROUND_UP)}
        nearest = min(abs(rounding * step - value) for rounding in roundings)
        candidates = {rounding * step for rounding in roundings if abs(rounding * step - value) == nearest}
        if number in candidates and abs(number / step) >= (10 if free else 100):
            return True
    return False


@given(decimals, st.integers(0, 3), st.integers(-3, 5), st.booleans(), st.integers(-1, 1))
def test_rounding_equals_a_slow_oracle(value: Decimal, decimals: int, place: int, free: bool, off: int) -> None:
    step = Decimal(10) ** place
    number = (value / step).to_integral_value() * step + off * Decimal(10) ** -decimals
    spelled = f"{number:,.{decimals}f}"
    text = f"about {spelled}" if free else spelled
    (parsed,) = numbers(text)
    assert parsed.value == Decimal(spelled.replace(",", "")) and parsed.free == free
    assert states(parsed, value) == slowly(value, parsed.value, decimals, free), (text, value)


@given(decimals)
def test_a_number_states_itself_in_every_format(value: Decimal) -> None:
    for spelled in (
        f"{value:f}",
        f"{value:,f}",
        f"{value:,f}".replace("-", "−"),
        f"{value:,f}".replace(",", "\u2009"),
    ):
        (parsed,) = numbers(f"it is {spelled}.")
        assert states(parsed, value) and parsed.value == value


@pytest.mark.parametrize(
    "text",
    [
        "about " + "7" * 40,
        "about " + "7" * 40 + " million",
        "about 0." + "0" * 40 + "7",
        "about 9." + "0" * 40 + "1",
    ],
)
def test_numbers_of_any_length_are_compared(text: str) -> None:
    """Decimals raise beyond 28 digits; a policy may generate more."""
    (parsed,) = numbers(text)
    assert not states(parsed, Decimal(8)) and not states(parsed, Decimal("0.07"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("CO2, A4 and v1.2 are none", []),
        ("10-12 and 3/4", [10, 12, 3, 4]),
        ("1,234,567 and 12,34", [1234567, 12, 34]),
        ("1.5 thousand, 2 million", [1500, 2000000]),
        ("two or one", [2]),
        ("5. 6", [5, 6]),
    ],
)
def test_numbers_of_a_text(text: str, values: list[int]) -> None:
    assert [number.value for number in numbers(text)] == values


@given(st.text("abZ 13504.,-:$\n€３hpweighs", max_size=60))
def test_every_remark_lies_inside_the_text(text: str) -> None:
    judged_report = report(text)
    assert all(0 <= start < end <= len(text) for (start, end), *_ in judged_report.remarks)
    assert len(judged_report.stated) == len(set(judged_report.stated)) and 0 <= judged_report.share <= 1
    assert all(0 <= score <= 1 for score in judged_report.scores().values())


def test_days_and_months_are_written_in_many_forms() -> None:
    days = forms_of("2012/01/03", "day")
    assert days[0] == "3 January 2012" and {"January 3rd, 2012", "Jan 3, 2012", "2012-01-03"} <= set(days)
    assert forms_of("2006-05-01", "month") == ("May 2006", "May 2006", "2006-05")
    assert (forms_of("1970-01-01", "year"), forms_of("x", "text")) == (("1970",), ("x",))


@pytest.fixture
def task() -> ReportsTask:
    pytest.importorskip("vega_datasets", reason="the tables are of the extra `reports`")
    return ReportsTask(TaskSettings(name="text2grad_lab.tasks.reports:ReportsTask", limit=80))


def test_two_tables_are_held_out(task: ReportsTask) -> None:
    tables = {
        split: {example.meta["table"] for example in task.examples(split)} for split in ("sft", "train", "heldout")
    }
    assert len(tables["heldout"]) == 2 and len(tables["sft"]) == len(tables["train"]) == 6
    assert not tables["heldout"] & (tables["sft"] | tables["train"])
    prompts = [{example.prompt for example in task.examples(split)} for split in ("sft", "train")]
    assert not prompts[0] & prompts[1] and len(task.examples("sft")) == 80


def test_every_demonstration_states_all_facts_and_nothing_else(task: ReportsTask) -> None:
    """This also tests the reader, since held-out tables are included."""
    for example in [*task.examples("sft"), *task.examples("heldout")]:
        assert task.scores(example, example.reference) == dict.fromkeys(MEASURES, 1.0), example.reference


def test_exchanged_numbers_state_nothing(task: ReportsTask) -> None:
    """Each demonstration is compared with its row after two numbers were exchanged."""
    tried = 0
    for example in [*task.examples("sft"), *task.examples("heldout")]:
        facts = [Fact.of(row) for row in example.meta["facts"]]
        one, other, *_ = [*[fact for fact in facts if fact.number], None, None]
        if one and other and one.number != other.number:
            exchanged = {one.name: replace(one, number=other.number), other.name: replace(other, number=one.number)}
            changed = [exchanged.get(fact.name, fact) for fact in facts]
            stated = Report(changed, example.reference, "").stated
            assert not {one.name, other.name} & set(stated), (example.reference, stated)
            tried += 1
    assert tried > 100


def test_missing_tables_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text2grad_lab.tasks.reports.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install vega_datasets"):
        load_task(TaskSettings(name="text2grad_lab.tasks.reports:ReportsTask"))
    with pytest.raises(UserError, match="predefined splits"):
        load_task(TaskSettings(name="text2grad_lab.tasks.reports:ReportsTask", split=(0.5, 0.25, 0.25)))
