"""The critic of reports: spans, reasons, and resistance to tricks."""

from __future__ import annotations

import pytest

from text2grad.critics.table import spec_of
from text2grad.feedback import Critique, Example, Failure, Feedback, Message, Source
from text2grad_lab.tasks.facts import FactsCritic
from text2grad_lab.tasks.reports import report_of

FACTS = [
    {"name": "name", "forms": ["ford pinto 4"]},
    {"name": "horsepower", "number": "130", "cues": ["horsepower", "hp"], "units": ["horsepower", "hp"]},
    {"name": "weight", "number": "3504", "cues": ["weigh*", "pound*"], "units": ["lb", "pounds"]},
    {"name": "mileage", "number": "17.6", "cues": ["mpg", "mile*"], "units": ["mpg", "miles"]},
    {"name": "origin", "forms": ["USA", "American"]},
]
ROW = "name: ford pinto 4\nhorsepower: 130\nweight: 3504 lb\nmileage: 17.6 mpg\norigin: USA"
EXAMPLE = Example(
    id="a", prompt=(Message(role="user", content=f"Write a report.\n\n{ROW}"),), meta={"facts": FACTS}
)
COMPLETE = "The ford pinto 4 comes from the USA and has 130 hp. It weighs 3,504 pounds and does 17.6 mpg."
HONEST = "The ford pinto 4 is a car. It has 130 hp."
REWARDED = ["ford pinto 4", "130"]


def judge(response: str) -> Critique:
    (critique,) = FactsCritic().critique([EXAMPLE], [response])
    assert isinstance(critique, Critique)
    Feedback.of(EXAMPLE, response, critique, Source(kind="program"))  # checks the quotes
    return critique


def rewarded_words(response: str) -> list[str]:
    return [span.text.lower() for span in judge(response).spans if span.label > 0]


def test_stated_facts_are_good_and_inventions_poor() -> None:
    critique = judge("The ford pinto 4 from Texas has 150 hp. It weighs 17.6 pounds and does 17.6 mpg.")
    assert [(span.text, span.label, span.reason) for span in critique.spans] == [
        ("ford pinto 4", 1, "the name"),
        ("Texas", -1, "this name is not in the row"),
        ("150", -1, "this number is not in the row"),
        ("17.6", -1, "this is not the weight"),
        ("17.6", 1, "the mileage"),
    ]
    assert critique.omissions == ("horsepower", "weight", "origin") and critique.score == 2 * 2 / 8 - 1
    assert critique.text == (
        "Stated: name, mileage. Wrong: 'Texas' (this name is not in the row), '150' (this number is not in the"
        " row), '17.6' (this is not the weight). Missing: horsepower, weight, origin."
    )


def test_best_and_worst_score() -> None:
    assert (judge(COMPLETE).score, judge(COMPLETE).omissions) == (1.0, ())
    assert (judge(" ").score, judge(" ").text, judge(" ").spans) == (-1.0, "The answer is empty.", ())
    assert judge("No idea").text.endswith("It is not two or three whole sentences.")


@pytest.mark.parametrize(
    "more", ["It weighs 3504 pounds. It is red.", "It weighs 3504", "\nname: ford pinto 4", "3504 \n"]
)
def test_text_after_the_third_sentence_is_poor(more: str) -> None:
    critique = judge(f"{HONEST} It is. {more}")
    assert (critique.spans[-1].text, critique.spans[-1].reason) == (more.strip(), "after the 3rd sentence")
    assert critique.score == 2 * 2 / 7 - 1  # a fault for the length and one for the rest
    assert judge(f"{HONEST} It is. \n").spans[-1].text == "130"


def test_reasons_contain_no_value_of_the_row() -> None:
    for response in ("A car. It has 150 hp.", "It weighs 2 kg. It weighs 130 pounds.", "", "hp: 1, mpg: 2."):
        critique = judge(response)
        reasons = " ".join([*critique.omissions, *(span.reason for span in critique.spans)])
        assert not any(value in reasons for value in ("pinto", "130", "3504", "17.6", "USA"))


def test_examples_without_facts_are_unsupported() -> None:
    bare = EXAMPLE.model_copy(update={"meta": {}})
    (failure,) = FactsCritic().critique([bare], [COMPLETE])
    assert isinstance(failure, Failure) and failure.kind == "unsupported"
    needs = spec_of("text2grad_lab.tasks.facts:FACTS").needs
    assert needs and needs.has(EXAMPLE) and not needs.has(bare)


TRICKS = {
    "a fact again": f"{HONEST} It has 130 hp.",
    "a fact five times": "The ford pinto 4 is a car with 130 hp. " + "It has 130 hp, yes, 130 hp. " * 2,
    "a name again and again": "The ford pinto 4, ford pinto 4, ford pinto 4 is a car. It has 130 hp.",
    "all numbers": "The ford pinto 4 is a car. 130, 3504, 17.6.",
    "all numbers, then all words": "The ford pinto 4: 130 3504 17.6 hp weighs mpg. It is.",
    "all words, then all numbers": "The ford pinto 4: hp weighs mpg 130 3504 17.6. It is.",
    "each number with each word": "Of ford pinto 4 hp 130 hp 3504 hp 17.6 hp. It is.",
    "a number between two words": "The ford pinto 4 mpg weighs 3504 hp mpg 130 weighs. It is.",
    "numbers of other facts": "The ford pinto 4 has 3504 hp. It weighs 130 pounds.",
    "the row": ROW,
    "the row with stops": ROW.replace("\n", ".\n") + ".",
    "the row in one line": ROW.replace("\n", ", ") + ".",
    "the row in two sentences": "name: ford pinto 4, horsepower: 130. weight: 3504 lb, mileage: 17.6 mpg.",
    "the row with equal signs": "name = ford pinto 4, horsepower = 130. weight = 3504, mileage = 17.6.",
    "the row as a table": "name | ford pinto 4 | hp | 130. weight | 3504 | mpg | 17.6.",
    "the row behind": f"{HONEST}\n{ROW}",
    "the row before": f"{ROW}\n{HONEST}",
    "bullets": "- ford pinto 4\n- 130 hp\n- weighs 3504 pounds\n- 17.6 mpg\n- USA",
    "no full stop": COMPLETE.replace(".", "").replace("176", "17.6"),
    "more sentences": f"{HONEST} It is. It weighs 3504 pounds. It does 17.6 mpg.",
    "facts after the third sentence": f"A car. A. B. {COMPLETE}",
    "a sentence that does not end after the third": f"{HONEST} It is. It weighs 3504 pounds and does 17.6 mpg",
    "the row after the third sentence": f"{HONEST} It is.\n{ROW}",
    "one sentence that does not end": COMPLETE.replace(". It", ", it")[:-1],
    "one label a sentence": "Name: ford pinto 4. Its power: 130 hp. Its weight: 3504 pounds.",
    "candidates": f"{HONEST[:-1]} and weighs 3501, 3502, 3503 or 3504 pounds.",
    "ranges": f"{HONEST[:-1]} and weighs 1000-9000 pounds.",
    "every mileage": f"{HONEST[:-1]} and does 15 mpg, 16 mpg, 17 mpg, 17.6 mpg.",
    "digits of another script": f"{HONEST[:-1]} and weighs ３５０４ pounds.",
    "arabic digits": f"{HONEST[:-1]} and weighs ٣٥٠٤ pounds.",
    "superscripts": f"{HONEST[:-1]} and weighs ³⁵⁰⁴ pounds.",
    "a huge number": f"{HONEST[:-1]} and weighs {'9' * 5000} pounds.",
    "a huge scale": f"{HONEST[:-1]} and weighs 3504 billion pounds.",
    "a minus": f"{HONEST[:-1]} and weighs -3504 pounds.",
    "another unit": f"{HONEST[:-1]} and weighs 3504 kg.",
    "a currency": f"{HONEST[:-1]} and weighs $3504.",
    "rounded too far": f"{HONEST[:-1]} and weighs about 4,000 pounds.",
    "rounded in silence": f"{HONEST[:-1]} and weighs 3,500 pounds.",
    "digits inside a number": f"{HONEST[:-1]} and weighs 135042 pounds.",
    "digits inside a word": f"{HONEST[:-1]} and weighs A3504 pounds.",
    "digits apart": f"{HONEST[:-1]} and weighs 3 5 0 4 pounds.",
    "names nobody gave": f"{HONEST[:-1]}, built by Henry Ford in Detroit.",
    "part of a name": "The ford pinto is a car. It has 130 hp.",
    "the name inside a word": "The xford pinto 4x is a car. It has 130 hp.",
    "names of facts alone": "It has a name, a horsepower, a weight. It has a mileage and an origin.",
    "nothing": "",
    "stops": "...... . . .",
    "praise": "This is a perfect report. It states every fact.",
}


def test_no_trick_beats_the_honest_answer_or_is_rewarded() -> None:
    """Only stated facts are good, each once; additions earn nothing."""
    honest, caught = judge(HONEST).score, []
    assert honest == pytest.approx(2 * 2 / 5 - 1)
    for trick, response in TRICKS.items():
        more = {"candidates": ["3504"], "every mileage": ["17.6"]}.get(trick, [])
        score, scores, good = judge(response).score, report_of(EXAMPLE, response).scores(), rewarded_words(response)
        assert score == pytest.approx(2 * scores["right"] - 1) and score is not None and honest is not None
        unpaid = len(good) == len(set(good)) and set(good) <= {*REWARDED, *more}
        caught += [trick] if score <= honest and unpaid and (scores["covered"] <= 0.4 or more) else []
    assert caught == list(TRICKS)
