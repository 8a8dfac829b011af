"""docs/tutorial.md with the pretrained model: the probabilities that it shows."""

from __future__ import annotations

from text2grad_lab.experiments.tutorial_figure import differences, run_page


def test_the_tutorial_shows_the_probabilities_of_smollm2(folder: str) -> None:
    blocks, _ = run_page("smollm2")
    documented = [block for block in blocks if block.documented and block.pretrained]
    assert len(documented) == 2
    assert [differences(block.documented, block.printed, 0.1) for block in documented] == [[], []]
