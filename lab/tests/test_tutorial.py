"""docs/tutorial.md: its code blocks print the documented output."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from text2grad_lab.experiments.tutorial_figure import differences, draw, run_page


def test_the_tutorial_prints_what_it_shows_and_can_be_drawn() -> None:
    blocks, variables = run_page("tiny")
    documented = [block for block in blocks if block.documented and not block.pretrained]
    assert len(documented) == 4
    assert [differences(block.documented, block.printed, 0.05) for block in documented] == [[]] * 4
    figure = ElementTree.fromstring(draw(variables))
    assert {critique.text for critique in variables["critiques"]} <= {element.text for element in figure.iter()}


@pytest.mark.parametrize(
    ("printed", "wrong"),
    [("'a' 0.52", []), ("'a' 0.60", ["'a' 0.60"]), ("'b' 0.50", ["'b' 0.50"]), ("'a' 0.50\nmore", ["more"])],
)
def test_numbers_may_differ_by_rounding_but_words_may_not(printed: str, wrong: list[str]) -> None:
    assert differences("'a' 0.50", printed, 0.05) == wrong
